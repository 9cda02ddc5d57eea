"""Tells LEVELLER's agent of this host, if there is one, how far the training is (leveller/jobs/theseus.py)."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time

__all__ = ["step"]

_NAME = "\0theseus-leveller"
_HELLO, _STEP, _VERSION = 1, 4, 1
_RETRY_SECONDS = 2.0


class _Progress:
    """One a process. Whoever says a step never waits: what the agent does not take at once is not said."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._completed = 0
        self._connection: socket.socket | None = None
        self._try_at = 0.0
        self._pid = os.getpid()

    def step(self, count: int) -> None:
        with self._lock:
            self._completed += count
            if self._connection is None and time.monotonic() < self._try_at:
                return
            self._say()

    def _say(self) -> None:
        if os.getpid() != self._pid:  # a forked child is no rank
            return
        if self._connection is None and not self._connect():
            return
        assert self._connection is not None
        payload = struct.pack("<QQ", self._completed, time.monotonic_ns())
        try:
            self._connection.send(struct.pack("<II", len(payload), _STEP) + payload)
        except BlockingIOError:
            pass
        except OSError:
            self._connection.close()
            self._connection = None

    def _connect(self) -> bool:
        self._try_at = time.monotonic() + _RETRY_SECONDS
        job = _job()
        if not job:
            return False
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            connection.connect(_NAME)
            owner = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
            if owner not in (0, os.geteuid()):
                raise PermissionError("another user's process listens there")
            connection.send(_hello(job))
        except OSError:
            connection.close()
            return False
        self._connection = connection
        return True


def _job() -> str:
    for name in ("LEVELLER_JOB", "THESEUS_JOB_ID"):
        if os.environ.get(name):
            return os.environ[name]
    address = os.environ.get("MASTER_ADDR", "")
    return f"{address}:{os.environ.get('MASTER_PORT', '')}" if address else ""


def _hello(job: str) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<I", len(value.encode())) + value.encode()

    rank, ranks = (int(os.environ.get(name) or default) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    payload = struct.pack("<II", _VERSION, os.getpid()) + text(job) + struct.pack("<II", rank, ranks) + text("")
    return struct.pack("<II", len(payload), _HELLO) + payload


_progress = _Progress()


def step(count: int = 1) -> None:
    """Says that `count` further iterations of the training are complete.

    LEVELLER's agent then needs no log to know how the job does; ranks of a job may all say it, or one. Where no agent
    listens it costs a look at the clock. A process without LEVELLER_JOB, THESEUS_JOB_ID or
    MASTER_ADDR belongs to no job, and says nothing. Raises ValueError where `count` is below 1.
    """
    if count < 1:
        raise ValueError(f"iterations that are complete are 1 or more, not {count}")
    _progress.step(count)
