"""Handles of asynchronous calls, as torch.distributed knows them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from theseus_py.errors import TheseusError, Timeout
from theseus_py.torch.p2p import NativeWork


def backend_error(error: TheseusError) -> dist.DistBackendError:
    """Return the RuntimeError that torch's users expect, with our text and our error as its cause."""
    text = str(error)
    if isinstance(error, Timeout):
        text = f"the call ran into its timeout or the group's: {text}"
    wrapped = dist.DistBackendError(text)
    wrapped.__cause__ = error
    return wrapped


def seconds_of(timeout: timedelta | float | None) -> float:
    """Return a timeout in seconds; -1 where none is given (torch's "unset" is a negative timedelta)."""
    if timeout is None:
        return -1.0
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return seconds if seconds > 0 else -1.0


class DoneWork(dist.Work):
    """A call that ended, well, before it returned. One object serves all calls of a group that wait in place."""

    def __init__(self) -> None:
        super().__init__()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return []

    def get_future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result([])
        return future


class PendingWork(dist.Work):
    """A call in progress: native work, what to do with its result, and the tensors it uses.

    Results in non-contiguous tensors are put in place by whoever learns first that the call has ended: wait(),
    is_completed(), or the group's waiter thread.
    """

    def __init__(
        self,
        works: Sequence[NativeWork],
        tensors: list[torch.Tensor],
        finish: Callable[[], None] | None,
        keep: Any,
        waiter: Waiter,
        *,
        timeout: float = -1.0,
        source: int = -1,
    ) -> None:
        super().__init__()
        self._works = works
        self._tensors = tensors
        self._finish = finish
        self._keep = keep
        self._waiter = waiter
        self._timeout = timeout
        self._source = source
        self._lock = threading.Lock()
        self._settled = False
        self._error: BaseException | None = None
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the result. Raises RuntimeError with the reason where there will be none, or not in time."""
        seconds = seconds_of(timeout)
        if seconds < 0:
            seconds = self._timeout
        if not self._settled:
            try:
                for work in self._works:
                    work.wait(seconds)
            except TheseusError as error:
                if not self.is_completed():
                    raise backend_error(error) from error
            self._settle()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self._settled:
            if not all(work.done() for work in self._works):
                return False
            self._settle()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def source_rank(self) -> int:
        return self._source

    def _source_rank(self) -> int:
        return self._source

    def get_future(self) -> Future[Any]:
        """Return the future of the result tensors; it holds, and then() passes on, the error of a failed call."""
        if self._future is None:
            settled: Future[Any] = Future()
            # Future.set_exception would crash DDP's reducer, which takes the value for tensors; a callback that raises
            # makes an error that C++ understands.
            self._future = settled.then(self._value)
            self._waiter.watch(self, settled)
        return self._future

    def _value(self, _: Future[Any]) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors

    def _settle(self) -> None:
        """Run once, when all native work has ended: keep the first error, else put the result in place."""
        with self._lock:
            if self._settled:
                return
            for work in self._works:
                error = work.exception()
                if error is not None:
                    self._error = backend_error(error)
                    break
            else:
                try:
                    if self._finish is not None:
                        self._finish()
                except Exception as failure:
                    self._error = failure
            self._finish = self._keep = None
            self._settled = True


class Waiter:
    """A thread that completes futures, started when the first is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[tuple[PendingWork, Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def watch(self, work: PendingWork, future: Future[Any]) -> None:
        """Set `future` when `work` has ended, well or not."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"theseus {self._name}", daemon=True)
                self._thread.start()
        self._queue.put((work, future))

    def stop(self) -> None:
        """End the thread after what it has been given so far."""
        with self._lock:
            if self._thread is not None:
                self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, future = item
            try:
                work.wait()
            except BaseException as error:
                work._error = work._error or error
            future.set_result(None)
            del item, work, future


class CombinedWork(PendingWork):
    """Several calls seen as one."""

    def __init__(self, parts: Sequence[dist.Work], waiter: Waiter) -> None:
        self._parts = [part for part in parts if isinstance(part, PendingWork)]
        super().__init__([], [tensor for part in self._parts for tensor in part.result()], None, None, waiter)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for every call; raises the first error."""
        for part in self._parts:
            part.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(part.is_completed() for part in self._parts)

    def exception(self) -> BaseException | None:
        return next((error for part in self._parts if (error := part.exception()) is not None), None)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def _value(self, _: Future[Any]) -> list[torch.Tensor]:
        error = self._error or self.exception()
        if error is not None:
            raise error
        return self._tensors
