"""Plans by hash: kept in a folder, and fetched in pieces from the other agents.

FETCH  u64 request, u64 hash, u64 offset
CHUNK  u64 request, u64 total (0: not here), bytes from the offset on
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import struct
from collections.abc import Callable
from pathlib import Path

from theseus_py import _core
from theseus_py.agent.channel import Channel, Kind
from theseus_py.errors import InvalidArgument, SystemError_

__all__ = ["LONGEST_BODY", "Bodies", "read_descriptor"]

LONGEST_BODY = 256 << 20
_CHUNK_BYTES = 1 << 18
_FETCH = struct.Struct("<QQQ")
_CHUNK = struct.Struct("<QQ")
_ANSWER_SECONDS = 3.0
_RETRY_SECONDS = 0.5


class Bodies:
    """The plans that this host has, and those that it still wants."""

    def __init__(self, folder: Path, channel: Channel, on_arrival: Callable[[], None] = lambda: None) -> None:
        self._folder = folder
        self._channel = channel
        self._on_arrival = on_arrival
        self._wanted: dict[int, asyncio.Task[None]] = {}
        self._requests = itertools.count(1)
        self._answers: dict[int, asyncio.Future[tuple[int, bytes]]] = {}

    def path(self, body_hash: int) -> Path:
        return self._folder / f"{body_hash:016x}"

    def has(self, body_hash: int) -> bool:
        return self.path(body_hash).exists()

    @property
    def missing(self) -> list[int]:
        return sorted(self._wanted)

    def store(self, body_hash: int, body: bytes) -> None:
        """Keeps a plan. InvalidArgument: its hash is another one; SystemError_: no room."""
        if _core.hash_plan(body) != body_hash:
            raise InvalidArgument(f"the plan's bytes do not have the hash {body_hash:016x} that its record names")
        if self.has(body_hash):
            return
        temporary = self._folder / f".{body_hash:016x}.new"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(body)
            temporary.replace(self.path(body_hash))
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise SystemError_(f"the agent has no room for a plan of {len(body)} bytes: {error}") from error

    def want(self, body_hash: int, size: int) -> None:
        """Fetches a plan, in the background and until it is here."""
        if not self.has(body_hash) and body_hash not in self._wanted and size <= LONGEST_BODY:
            self._wanted[body_hash] = asyncio.ensure_future(self._fetch(body_hash, size))

    def close(self) -> None:
        for task in self._wanted.values():
            task.cancel()
        self._wanted.clear()

    async def _fetch(self, body_hash: int, size: int) -> None:
        while not self.has(body_hash) and body_hash in self._wanted:
            for host in self._channel.connected:
                body = await self._fetch_from(host, body_hash, size)
                if body is None:
                    continue
                with contextlib.suppress(InvalidArgument, SystemError_):
                    self.store(body_hash, body)
                    break
            else:
                await asyncio.sleep(_RETRY_SECONDS)
        self._wanted.pop(body_hash, None)
        self._on_arrival()

    async def _fetch_from(self, host: str, body_hash: int, size: int) -> bytes | None:
        body = bytearray()
        while len(body) < size and body_hash in self._wanted:
            request = next(self._requests)
            answer = self._answers[request] = asyncio.get_running_loop().create_future()
            try:
                if not self._channel.send(host, Kind.FETCH, _FETCH.pack(request, body_hash, len(body))):
                    return None
                total, piece = await asyncio.wait_for(answer, _ANSWER_SECONDS)
            except (TimeoutError, asyncio.TimeoutError):
                return None
            finally:
                del self._answers[request]
            if total != size or not piece or len(body) + len(piece) > size:
                return None
            body += piece
        return bytes(body) if len(body) == size else None

    def on_fetch(self, host: str, payload: bytes) -> None:
        """Answers a FETCH. struct.error: it was none."""
        request, body_hash, offset = _FETCH.unpack(payload)
        total, piece = 0, b""
        with contextlib.suppress(OSError), self.path(body_hash).open("rb") as file:
            total = os.fstat(file.fileno()).st_size
            piece = os.pread(file.fileno(), _CHUNK_BYTES, offset) if offset < total else b""
        self._channel.send(host, Kind.CHUNK, _CHUNK.pack(request, total) + piece)

    def on_chunk(self, payload: bytes) -> None:
        """Takes a CHUNK. struct.error: it was none."""
        request, total = _CHUNK.unpack_from(payload)
        answer = self._answers.get(request)
        if answer is not None and not answer.done():
            answer.set_result((total, payload[_CHUNK.size :]))


def read_descriptor(descriptor: int, size: int) -> bytes:
    """Returns the `size` bytes of a client's file, read and not mapped: it may be cut short at any time.

    InvalidArgument: it has another size, or is too long.
    """
    if not 0 < size <= LONGEST_BODY:
        raise InvalidArgument(f"a plan of {size} bytes cannot be: at most {LONGEST_BODY} are taken")
    try:
        body = bytearray()
        while len(body) <= size:
            piece = os.pread(descriptor, min(1 << 20, size + 1 - len(body)), len(body))
            if not piece:
                break
            body += piece
    except OSError as error:
        raise InvalidArgument(f"the plan's file cannot be read: {error}") from error
    if len(body) != size:
        raise InvalidArgument(f"the plan's file does not have the {size} bytes that its record names")
    return bytes(body)
