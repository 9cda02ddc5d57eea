"""Follows the log of a job from outside, as any command of `theseus` does: through the agent of a host."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from theseus_py import _core
from theseus_py.agent.client import AgentConnection, find
from theseus_py.errors import TheseusError

_POLL_SECONDS = 0.01
_LOOK_SECONDS = 0.2
_END_SECONDS = 15.0

OnRecord = Callable[[float, Mapping[str, Any]], None]


class JobWatch:
    """A thread that hands on every record of the job's log, with the time it was seen. Use as a context manager."""

    def __init__(self, job: str, on_record: OnRecord) -> None:
        self._job = job
        self._on_record = on_record
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo job watch", daemon=True)
        self.ready = False  # whether the job's agents have elected a leader and begun the log

    def __enter__(self) -> JobWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            # An agent that ends, or has not yet begun the log, is asked again.
            with contextlib.suppress(TheseusError), _one_agent(self._job) as agent:
                if agent is not None and agent.log is not None:
                    self._follow(_core.SharedLogReader.from_fd(os.dup(agent.log)))
            self._over.wait(_LOOK_SECONDS)

    def _follow(self, reader: _core.SharedLogReader) -> None:
        self.ready = True
        while not self._over.is_set():
            while (record := reader.next()) is not None:
                self._on_record(time.monotonic(), _core.decode_record(record))
            self._over.wait(_POLL_SECONDS)


@contextlib.contextmanager
def _one_agent(job: str) -> Iterator[AgentConnection | None]:
    """The first agent of the job, or None."""
    with contextlib.ExitStack() as stack:
        agents = [stack.enter_context(each) for each in find()]
        yield next((each for each in agents if each.job == job), None)


def agents_of(job: str) -> list[int]:
    """Returns the process ids of the job's agents on this machine, also of those that no longer listen."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"theseus_py.agent" in words and job.encode() in words:
                found.append(int(folder.name))
    return sorted(found)


def wait_for_agents_to_end(job: str) -> list[int]:
    """Waits until the job has no agent left, which they see to by themselves; returns those that do not end."""
    deadline = time.monotonic() + _END_SECONDS
    while (left := agents_of(job)) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    return left
