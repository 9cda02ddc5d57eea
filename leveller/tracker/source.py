"""Follows a log: a file that grows, rotates or is not there yet, or a named pipe."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from leveller.tracker.formats import FORMATS, Format, user_format
from leveller.tracker.parse import Iteration, LineParser

__all__ = ["Follower", "Tracker", "format_of"]

_AT_ONCE = 1 << 16
_MOST_AT_ONCE = 1 << 20


def format_of(name: str) -> Format | None:
    """Returns a format by name, "auto" (None), or "pattern:" and a regular expression. ValueError: there is none."""
    if name == "auto":
        return None
    if name.startswith("pattern:"):
        return user_format(name.removeprefix("pattern:"))
    if name not in FORMATS:
        raise ValueError(f"unknown log format '{name}': choose auto, {', '.join(FORMATS)}, or pattern:REGEX")
    return FORMATS[name]


class Follower:
    """What is new in a log, whenever it is asked. What stood in it before the first look is passed over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._inode = 0
        self._first = True

    def read(self) -> bytes:
        """Returns what came since the last call; nothing where there is no such file (yet)."""
        if self._descriptor is None or self._rotated():
            rest = self._take()
            self._open()
            return rest + self._take()
        return self._take()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        self.close()
        first, self._first = self._first, False
        with suppress(OSError):
            # A pipe without a writer must not hold us up.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            found = os.fstat(descriptor)
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
                os.close(descriptor)
                return
            self._descriptor, self._inode = descriptor, found.st_ino
            if first and stat.S_ISREG(found.st_mode):
                os.lseek(descriptor, 0, os.SEEK_END)

    def _rotated(self) -> bool:
        assert self._descriptor is not None
        held = os.fstat(self._descriptor)
        if not stat.S_ISREG(held.st_mode):
            return False
        try:
            there = os.stat(self._path)
        except OSError:
            return False  # moved away; the new one comes
        shorter = held.st_size < os.lseek(self._descriptor, 0, os.SEEK_CUR)
        return shorter or (there.st_ino, there.st_dev) != (held.st_ino, held.st_dev)

    def _take(self) -> bytes:
        if self._descriptor is None:
            return b""
        parts: list[bytes] = []
        with suppress(BlockingIOError):
            while sum(map(len, parts)) < _MOST_AT_ONCE and (part := os.read(self._descriptor, _AT_ONCE)):
                parts.append(part)
        return b"".join(parts)


class Tracker:
    """Iterations of one job, as they are logged.

    source: path of a file or a named pipe; `format`: as `format_of` has it
    """

    def __init__(self, source: Path, format: str = "auto", period: float = 0.05) -> None:
        self._follower = Follower(source)
        self._parser = LineParser(format_of(format))
        self._period = period

    @property
    def format(self) -> str | None:
        """The format in use; None as long as none was recognised."""
        return self._parser.format.name if self._parser.format is not None else None

    def poll(self, now: float | None = None) -> list[Iteration]:
        """Returns the iterations that were logged since the last call, at `now` (time.monotonic())."""
        return self._parser.feed(self._follower.read(), time.monotonic() if now is None else now)

    async def __aiter__(self) -> AsyncIterator[Iteration]:
        """Goes on for ever."""
        try:
            while True:
                for each in self.poll():
                    yield each
                await asyncio.sleep(self._period)
        finally:
            self.close()

    def close(self) -> None:
        self._follower.close()
