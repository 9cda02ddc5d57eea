"""Processes that say themselves how far they are: `theseus_py.step()`, over an abstract Unix socket.

A stream of frames, little-endian: u32 length of the payload, u32 type, payload; text is u32 length and bytes.

    HELLO 1  ->  u32 version, u32 pid, text job, u32 rank, u32 ranks, text host
    STEP  4  ->  u64 iterations completed, u64 nanoseconds (CLOCK_MONOTONIC)

The socket is one a network namespace. Who connects is known by the kernel's word (SO_PEERCRED), so that its connections
are the job's as well; the `pid` it says itself is not believed.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

__all__ = ["NAME", "BadFrame", "TheseusJobs", "parse_hello"]

NAME = "\0theseus-leveller"
VERSION = 1
HELLO, STEP = 1, 4
_HEAD = struct.Struct("<II")
_STEP = struct.Struct("<QQ")
_LONGEST = 1 << 12
_MOST_PROCESSES = 4096
_GREETING_SECONDS = 5.0
_JOB = re.compile(r"[\x21-\x7e]{1,128}")


class BadFrame(Exception):
    """A process broke the protocol."""


def parse_hello(payload: bytes) -> str:
    """Returns the job that a process says it belongs to. BadFrame: that is no greeting of this version."""
    if len(payload) < 12 or struct.unpack_from("<I", payload)[0] != VERSION:
        raise BadFrame("another version")
    (length,) = struct.unpack_from("<I", payload, 8)
    job = payload[12 : 12 + length].decode(errors="replace")
    if len(payload) < 12 + length or not _JOB.fullmatch(job):
        raise BadFrame("no name of a job")
    return job


class TheseusJobs:
    """Listens for processes, and tells `on_step(job, step, seconds)` what they say."""

    def __init__(self, on_step: Callable[[str, int, float], None]) -> None:
        self._on_step = on_step
        self._server: asyncio.AbstractServer | None = None
        self._pids: dict[int, str] = {}

    @property
    def processes(self) -> dict[int, str]:
        """The job of each connected process, by its pid."""
        return dict(self._pids)

    async def listen(self) -> None:
        """Opens the socket. OSError: another agent of this network namespace has it."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(NAME)
            self._server = await asyncio.start_unix_server(self._serve, sock=listener)
        except OSError as error:
            listener.close()
            why = "another agent of LEVELLER runs in this network namespace: stop it first"
            raise OSError(error.errno, why) from error

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        credentials = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = struct.unpack("3i", credentials)[0]
        try:
            if len(self._pids) >= _MOST_PROCESSES:
                return
            kind, payload = await asyncio.wait_for(_frame(reader), _GREETING_SECONDS)
            if kind != HELLO:
                raise BadFrame("no greeting")
            job = self._pids[pid] = parse_hello(payload)
            while True:
                kind, payload = await _frame(reader)
                if kind == STEP and len(payload) == _STEP.size:
                    step, nanoseconds = _STEP.unpack(payload)
                    self._on_step(job, step, nanoseconds * 1e-9)
        except (OSError, BadFrame, asyncio.IncompleteReadError, asyncio.TimeoutError, asyncio.CancelledError):
            pass  # it is gone, or had better be
        finally:
            self._pids.pop(pid, None)
            with suppress(OSError, RuntimeError):
                writer.close()


async def _frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    length, kind = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    if length > _LONGEST:
        raise BadFrame("a message is too long")
    return kind, await reader.readexactly(length)
