"""Ranks as threads of this process, kept with their communicators from test to test.

A pool thread is one rank of every communicator that is made here. When a call fails or does not come back, the
communicators in question are aborted and made anew, so that one failure does not spread to other tests.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from theseus_py import Communicator, _core, create_unique_id

Result = TypeVar("Result")
# Far more than any call here needs, even on a machine that is busy with other things.
PATIENCE = 120.0
_KEPT = 3


@contextlib.contextmanager
def settings(**values: str) -> Iterator[None]:
    """Environment variables that hold for the communicators that are made inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    _core.reload_settings()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        _core.reload_settings()


class RankThread:
    """One thread that runs what it is given, in order."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._main, daemon=True).start()

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs.put((job, future))
        return future

    def _main(self) -> None:
        while True:
            job, future = self._jobs.get()
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)


class Pool:
    """Threads and communicators, by what was set when they were made."""

    def __init__(self) -> None:
        self._threads: list[RankThread] = []
        self._communicators: dict[tuple[int, tuple[tuple[str, str], ...]], list[Communicator]] = {}

    def run(self, ranks: int, body: Callable[[int], Result]) -> list[Result]:
        """Run body(rank) on each of `ranks` threads; return the results by rank, or raise the first error."""
        while len(self._threads) < ranks:
            self._threads.append(RankThread())
        futures = [self._threads[rank].submit(lambda rank=rank: body(rank)) for rank in range(ranks)]
        errors: list[tuple[int, BaseException]] = []
        results: list[Any] = []
        for rank, future in enumerate(futures):
            try:
                results.append(future.result(PATIENCE if not errors else 10))
            except BaseException as error:
                errors.append((rank, error))
        if errors:
            if any(not future.done() for future in futures):
                self._threads = []  # some of these threads may never come back
            rank, error = errors[0]
            raise AssertionError(
                "; ".join(f"rank {each}: {type(what).__name__}: {what}" for each, what in errors)
            ) from error
        return results

    def join(self, ranks: int) -> list[Communicator]:
        """Make a communicator of the pool's first `ranks` threads."""
        unique_id = create_unique_id()
        return self.run(ranks, lambda rank: Communicator.init(unique_id, ranks, rank))

    def run_with(
        self, ranks: int, body: Callable[[Communicator], Result], environment: Mapping[str, str] | None = None
    ) -> list[Result]:
        """As run(), over a communicator that was made under `environment` and kept until others are asked for."""
        key = (ranks, tuple(sorted((environment or {}).items())))
        if key not in self._communicators:
            while len(self._communicators) >= _KEPT:
                self._destroy(next(iter(self._communicators)))
            with settings(**(environment or {})):
                self._communicators[key] = self.join(ranks)
        communicators = self._communicators[key]
        try:
            return self.run(ranks, lambda rank: body(communicators[rank]))
        except BaseException:
            for communicator in self._communicators.pop(key):
                communicator.abort()
            raise

    def _destroy(self, key: tuple[int, tuple[tuple[str, str], ...]]) -> None:
        communicators = self._communicators.pop(key)
        self.run(len(communicators), lambda rank: communicators[rank].destroy())

    def close(self) -> None:
        """Destroy all communicators."""
        for key in list(self._communicators):
            self._destroy(key)
