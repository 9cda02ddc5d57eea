"""libnftables inside this process: a command takes a tenth of what starting the program nft does."""

from __future__ import annotations

import ctypes
import ctypes.util

__all__ = ["NftError", "Nftables"]


class NftError(Exception):
    """nftables refused, or is not there."""


class Nftables:
    """One netlink socket to nftables, in the network namespace of the thread that made it.

    Tables with the flag `owner` live as long as this object: the kernel takes them away with the socket, however the
    process ends. NftError: the library is missing, or may not speak to the kernel.
    """

    def __init__(self) -> None:
        self._context = None
        try:
            self._library = ctypes.CDLL(ctypes.util.find_library("nftables") or "libnftables.so.1")
        except OSError:
            raise NftError("libnftables is missing: install the package nftables (libnftables1)") from None
        lib = self._library
        lib.nft_ctx_new.restype = ctypes.c_void_p
        lib.nft_ctx_new.argtypes = [ctypes.c_uint32]
        for name in ("nft_ctx_buffer_error", "nft_ctx_buffer_output", "nft_ctx_free"):
            getattr(lib, name).argtypes = [ctypes.c_void_p]
        for name in ("nft_ctx_get_error_buffer", "nft_ctx_get_output_buffer"):
            getattr(lib, name).argtypes = [ctypes.c_void_p]
            getattr(lib, name).restype = ctypes.c_char_p
        lib.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._context = lib.nft_ctx_new(0)
        if not self._context:
            raise NftError("nftables cannot be reached: root, or CAP_NET_ADMIN in this network namespace, is needed")
        lib.nft_ctx_buffer_error(self._context)
        lib.nft_ctx_buffer_output(self._context)

    def run(self, commands: str) -> str:
        """Runs commands as one transaction, and returns what they print. NftError: nothing was changed."""
        if not self._context:
            raise NftError("nftables has been closed")
        failed = self._library.nft_run_cmd_from_buffer(self._context, commands.encode())
        printed = (self._library.nft_ctx_get_output_buffer(self._context) or b"").decode(errors="replace")
        said = (self._library.nft_ctx_get_error_buffer(self._context) or b"").decode(errors="replace")
        if failed:
            raise NftError(f"nftables refused: {said.strip().splitlines()[0] if said.strip() else 'no reason given'}")
        return printed

    def close(self) -> None:
        """Gives the socket up, and with it tables that it owns."""
        if self._context:
            self._library.nft_ctx_free(self._context)
            self._context = None

    def __del__(self) -> None:
        self.close()
