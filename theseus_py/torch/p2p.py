"""Sends and receives between pairs of ranks: independent of collectives, of other pairs, of the other direction.

Torch's users may post isend and irecv in any order and wait later; what runs in one queue would wait for itself. So
each ordered pair of ranks that exchanges messages gets a *channel*: a communicator of two, where the messages of that
one direction follow each other. A thread makes it when the first message is posted, because the other side may post its
own much later.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

from theseus_py import _core
from theseus_py.errors import InvalidUsage, TheseusError, Timeout

Start = Callable[[_core.Communicator], _core.Work]


class NativeWork(Protocol):
    """What a handle needs of the work under it: _core.Work, or one of the classes below."""

    def done(self) -> bool: ...

    def wait(self, seconds: float = -1.0) -> None: ...

    def exception(self) -> TheseusError | None: ...


class DeferredWork:
    """Work that starts once its channel is there."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._work: NativeWork | None = None
        self._error: TheseusError | None = None

    def begin(self, work: NativeWork) -> None:
        """The work under way."""
        self._work = work
        self._started.set()

    def end(self, error: TheseusError | None) -> None:
        """It is over without native work, well or not."""
        self._error = error
        self._started.set()

    def done(self) -> bool:
        """Whether it is over. Never waits."""
        return self._started.is_set() and (self._work is None or self._work.done())

    def wait(self, seconds: float = -1.0) -> None:
        """Wait, at most `seconds` where they are not negative. Raises the failure, or Timeout."""
        begun = time.monotonic()
        if not self._started.wait(None if seconds < 0 else seconds):
            raise Timeout(f"the other rank did not come within {seconds} s; the work is still waiting for it")
        if self._work is not None:
            self._work.wait(seconds if seconds < 0 else max(0.0, seconds - (time.monotonic() - begun)))
        elif self._error is not None:
            raise self._error

    def exception(self) -> TheseusError | None:
        """The failure; None while it runs and after success."""
        if not self._started.is_set():
            return None
        return self._error if self._work is None else self._work.exception()


class Channel:
    """One direction between two ranks: `ends` are (sender, receiver), one of them this rank."""

    def __init__(self, store: Any, rank: int, ends: tuple[int, int], name: str, timeout: float) -> None:
        self._store = store
        self._rank = rank
        self._ends = ends
        self._name = name
        self._timeout = timeout
        self._core: _core.Communicator | None = None
        self._waiting: deque[tuple[Start, DeferredWork]] = deque()
        self._failure: TheseusError | None = None
        self._closed = False
        self._lock = threading.Lock()
        threading.Thread(target=self._connect, name=f"theseus channel {ends}", daemon=True).start()

    def submit(self, start: Start) -> NativeWork:
        """Queue one message after the earlier ones of this channel."""
        with self._lock:
            if self._core is not None and not self._closed:
                return start(self._core)
            work = DeferredWork()
            if self._failure is not None:
                work.end(self._failure)
            else:
                self._waiting.append((start, work))
            return work

    def close(self, *, abort: bool) -> None:
        """Free the channel; messages that wait for it fail."""
        with self._lock:
            self._closed = True
            self._fail(InvalidUsage("the process group was destroyed while a message was under way"))
            core, self._core = self._core, None
        if core is not None:
            with contextlib.suppress(TheseusError):
                core.abort() if abort else core.destroy()

    def _fail(self, error: TheseusError) -> None:
        self._failure = self._failure or error
        while self._waiting:
            self._waiting.popleft()[1].end(self._failure)

    def _connect(self) -> None:
        try:
            core = self._meet()
        except TheseusError as error:
            with self._lock:
                self._fail(error)
            return
        except Exception as error:
            with self._lock:
                self._fail(InvalidUsage(f"the group's store failed while ranks {self._ends} met: {error}"))
            return
        with self._lock:
            if self._closed:
                core.abort()
                return
            if self._timeout > 0:
                core.set_timeout(self._timeout)
            self._core = core
            while self._waiting:
                start, work = self._waiting.popleft()
                try:
                    work.begin(start(core))
                except TheseusError as error:
                    work.end(error)

    def _meet(self) -> _core.Communicator:
        """Make the communicator. The id is made only when both ranks are there, so that it cannot grow old."""
        sender, receiver = self._ends
        prefix = f"theseus/p2p/{sender}/{receiver}"
        lower = min(self._ends)
        if self._rank == lower:
            self._poll(f"{prefix}/here")
            unique_id = _core.create_unique_id()
            self._store.set(f"{prefix}/id", unique_id.hex())
        else:
            self._store.set(f"{prefix}/here", "1")
            self._poll(f"{prefix}/id")
            unique_id = bytes.fromhex(self._store.get(f"{prefix}/id").decode())
        name = f"{self._name}:{sender}>{receiver}"
        return _core.Communicator.init(unique_id, 2, 0 if self._rank == lower else 1, True, name)

    def _poll(self, key: str) -> None:
        # Not store.wait: it would keep the store from every other thread meanwhile.
        deadline = time.monotonic() + self._timeout if self._timeout > 0 else float("inf")
        pause = 0.0005
        while not self._store.check([key]):
            if self._closed:
                raise InvalidUsage("the process group was destroyed while a message was under way")
            if time.monotonic() > deadline:
                other = self._ends[0] if self._ends[1] == self._rank else self._ends[1]
                raise Timeout(
                    f"rank {other} did not take part in the message {self._ends[0]} -> {self._ends[1]} in time"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)


class Mailbox:
    """Messages of a rank to itself: each send meets the next receive."""

    def __init__(self) -> None:
        self._sends: deque[tuple[torch.Tensor, DeferredWork]] = deque()
        self._receives: deque[tuple[torch.Tensor, DeferredWork]] = deque()
        self._lock = threading.Lock()

    def post(self, memory: torch.Tensor, *, sends: bool) -> DeferredWork:
        """Add a message; both halves end when both are there. Sizes must agree."""
        work = DeferredWork()
        with self._lock:
            (self._sends if sends else self._receives).append((memory, work))
            while self._sends and self._receives:
                source, sent = self._sends.popleft()
                target, received = self._receives.popleft()
                error = None
                if source.numel() == target.numel() and source.dtype == target.dtype:
                    target.detach().view(-1).copy_(source.detach().view(-1))
                else:
                    error = InvalidUsage(
                        f"mismatched calls: this rank sends itself {source.numel()} elements of {source.dtype} and "
                        f"receives {target.numel()} of {target.dtype}"
                    )
                sent.end(error)
                received.end(error)
        return work


class PointToPoint:
    """The channels of one group, made as they are needed."""

    def __init__(self, store: Any, rank: int, name: str) -> None:
        self._store = store
        self._rank = rank
        self._name = name
        self._channels: dict[tuple[int, int], Channel] = {}
        self._mailbox = Mailbox()
        self._lock = threading.Lock()
        self.timeout = -1.0

    def send(self, memory: torch.Tensor, count: int, code: int, peer: int) -> NativeWork:
        """Post a message to `peer`: `count` elements of the runtime's type `code`."""
        if peer == self._rank:
            return self._mailbox.post(memory, sends=True)
        address = memory.data_ptr()
        other = 1 if self._rank < peer else 0
        return self._channel((self._rank, peer)).submit(lambda core: core.start_send(address, count, code, other))

    def receive(self, memory: torch.Tensor, count: int, code: int, peer: int) -> NativeWork:
        """Post the receipt of the next message of `peer`."""
        if peer == self._rank:
            return self._mailbox.post(memory, sends=False)
        address = memory.data_ptr()
        other = 1 if self._rank < peer else 0
        return self._channel((peer, self._rank)).submit(lambda core: core.start_recv(address, count, code, other))

    def close(self, *, abort: bool) -> None:
        """Free all channels."""
        with self._lock:
            channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.close(abort=abort)

    def _channel(self, ends: tuple[int, int]) -> Channel:
        with self._lock:
            channel = self._channels.get(ends)
            if channel is None:
                channel = self._channels[ends] = Channel(self._store, self._rank, ends, self._name, self.timeout)
            return channel
