"""The life of a process group, and how its calls reach the communicator."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from theseus_py import _core
from theseus_py.errors import TheseusError
from theseus_py.torch.monitor import monitored_barrier
from theseus_py.torch.p2p import NativeWork, PointToPoint
from theseus_py.torch.tensors import wire_for_moving
from theseus_py.torch.work import CombinedWork, DoneWork, PendingWork, Waiter, backend_error, seconds_of

Tensor = torch.Tensor
Call = tuple[int, int, int, int, int, int, int]  # collective, send, recv, count, type, op, root


def connect(store: Any, rank: int, size: int, name: str) -> _core.Communicator:
    """Make the communicator; rank 0's unique id, or why there is none, reaches the others through the store."""
    if size == 1:
        return _core.Communicator.init(_core.create_unique_id(), 1, 0, True, name)
    key = "theseus/unique_id"
    if rank == 0:
        try:
            unique_id = _core.create_unique_id()
        except TheseusError as error:
            store.set(key, f"error:{error}")
            raise
        store.set(key, "id:" + unique_id.hex())
    else:
        answer = store.get(key).decode()
        if not answer.startswith("id:"):
            raise dist.DistBackendError(f"rank 0 could not start the group: {answer.removeprefix('error:')}")
        unique_id = bytes.fromhex(answer.removeprefix("id:"))
    return _core.Communicator.init(unique_id, size, rank, True, name)


# torch's stubs describe the class as C++ has it, with overloads that a Python override cannot repeat.
_ProcessGroup: Any = dist.ProcessGroup


class GroupBase(_ProcessGroup):  # type: ignore[misc]
    """Everything about a group but its collectives."""

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta | None = None,
        *,
        name: str = "",
        core: _core.Communicator | None = None,
    ) -> None:
        """Join the group; returns when all its ranks have."""
        super().__init__(rank, size)
        self._store = store
        self._group_name = name
        self._group_desc = "undefined"
        self._barriers = 0
        self._sequence = 0
        self._done = DoneWork()
        self._waiter = Waiter(name or "group")
        # Asynchronous calls under way: they own their tensors even when the caller drops the handle.
        self._pending: deque[PendingWork] = deque()
        self._coalescing: list[dist.Work] | None = None
        self._lock = threading.Lock()
        try:
            self.core = connect(store, rank, size, name) if core is None else core
        except TheseusError as error:
            raise backend_error(error) from error
        self._run = self.core.run
        self._messages = PointToPoint(store, rank, name)
        self._set_default_timeout(timeout)

    # --- Identity, as torch asks for it.

    def getBackendName(self) -> str:
        return "theseus"

    def name(self) -> str:
        return "theseus"

    def getSize(self) -> int:
        return int(self.size())

    def getRank(self) -> int:
        return int(self.rank())

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupDesc(self, description: str) -> None:
        self._group_desc = description

    def getGroupDesc(self) -> str:
        return self._group_desc

    def get_group_store(self) -> Any:
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"the theseus backend serves CPU tensors; it has nothing for device {device}")
        return self

    def _get_backend_name(self) -> str:
        return "theseus"

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    # --- Timeouts.

    def set_timeout(self, timeout: timedelta) -> None:
        self._set_default_timeout(timeout)

    def _set_default_timeout(self, timeout: timedelta | None) -> None:
        self._timeout = timeout
        self._messages.timeout = seconds_of(timeout)
        self.core.set_timeout(max(0.0, seconds_of(timeout)))

    # --- End.

    def shutdown(self) -> None:
        """Finish what is under way and free everything."""
        self._waiter.stop()
        self._messages.close(abort=False)
        with contextlib.suppress(TheseusError):
            self.core.destroy()

    def abort(self) -> None:
        """Free everything without waiting; calls under way fail."""
        self._waiter.stop()
        self._messages.close(abort=True)
        with contextlib.suppress(TheseusError):
            self.core.abort()

    # --- Parts of the group.

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> Any:
        """Make a group of `new_ranks`, in that order. A collective of this group; ranks outside get None."""
        ranks = list(new_ranks)
        if not ranks or len(set(ranks)) != len(ranks) or min(ranks) < 0 or max(ranks) >= self.size():
            raise ValueError(f"split_group: {ranks} is not a selection of the {self.size()} ranks of this group")
        inside = self.rank() in ranks
        name = group_name or f"{self._group_name}:split:{','.join(map(str, ranks))}"
        try:
            # Groups made at the same time have no rank in common, so their smallest ranks tell them apart.
            core = self.core.split(min(ranks) if inside else -1, ranks.index(self.rank()) if inside else 0, name)
        except TheseusError as error:
            raise backend_error(error) from error
        if core is None:
            return None
        store = PrefixStore(f"{name}/", self._store)
        part = type(self)(store, core.rank, core.ranks, timeout or self._timeout, name=name, core=core)
        part.setGroupDesc(group_desc or self._group_desc)
        return part

    # --- Barriers.

    def barrier(self, opts: Any = None, timeout: Any = None) -> dist.Work:
        """Wait for all ranks."""
        opts = self.options_of(opts, timeout)
        if self._waits_here(opts):
            try:
                self.core.barrier(False)
            except TheseusError as error:
                raise backend_error(error) from error
            return self._done
        return self._settle([self._started(self.core.start_barrier)], [], None, None, opts)

    def monitored_barrier(self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; fail when some do not come in time, and say which."""
        self._barriers += 1
        limit = seconds_of(self._timeout if timeout is None else timeout)
        if timeout is not None and limit < 0:
            # Here, unlike in wait(), no time means none, not for ever.
            raise RuntimeError(f"Rank {self.rank()} timed out in monitoredBarrier after 0 ms")
        monitored_barrier(self._store, self.rank(), self.size(), self._barriers, limit, wait_all_ranks)

    # --- Calls.

    def options_of(self, opts: Any, timeout: Any = None) -> Any:
        """Return an options object: the one given, or one made from a bare reduction and a timeout."""
        if opts is not None and hasattr(opts, "asyncOp"):
            return opts
        made = dist.AllreduceOptions()
        if isinstance(opts, timedelta):
            timeout = opts
        elif opts is not None:
            made.reduceOp = opts
        if timeout is not None:
            made.timeout = timeout
        return made

    def rooted_options(self, opts: Any, kind: Any, op: Any, timeout: Any) -> Any:
        """The same for calls with a root, which may come as a bare rank; refuses a rank outside the group."""
        if opts is None or isinstance(opts, int):
            made = kind()
            made.rootRank = opts or 0
            if op is not None:
                made.reduceOp = op
            if timeout is not None:
                made.timeout = timeout
            opts = made
        if not 0 <= opts.rootRank < self.size():
            raise ValueError(f"root {opts.rootRank} is not one of the {self.size()} ranks of this group")
        return opts

    def _waits_here(self, opts: Any) -> bool:
        """Whether a call may run on this thread: it is synchronous, and has no time limit of its own."""
        return not opts.asyncOp and self._coalescing is None and seconds_of(opts.timeout) < 0

    def issue(
        self, calls: Sequence[Call], tensors: list[Tensor], finish: Callable[[], None] | None, keep: Any, opts: Any
    ) -> dist.Work:
        """Make native calls, in order; `finish` puts the result in place. Synchronous where the options say so."""
        if self._waits_here(opts):
            try:
                for call in calls:
                    self._run(*call)
            except TheseusError as error:
                raise backend_error(error) from error
            if finish is not None:
                finish()
            return self._done
        start = self.core.start
        works = [self._started(start, *call) for call in calls]
        return self._settle(works, tensors, finish, keep, opts)

    def issue_uneven(
        self,
        source: Tensor,
        sent: list[int],
        offsets: list[int],
        target: Tensor,
        received: list[int],
        tensors: list[Tensor],
        finish: Callable[[], None] | None,
        opts: Any,
    ) -> dist.Work:
        """An all-to-all with parts of any size; `offsets` says where in `source` each begins. All in elements."""
        wire = wire_for_moving(source.dtype)

        def scaled(values: list[int]) -> list[int]:
            return [value * wire.parts for value in values]

        into = [sum(received[:i]) for i in range(len(received))]
        arguments = (
            source.data_ptr(),
            scaled(sent),
            scaled(offsets),
            target.data_ptr(),
            scaled(received),
            scaled(into),
            wire.code,
        )
        if self._waits_here(opts):
            try:
                self.core.run_all_to_all_v(*arguments)
            except TheseusError as error:
                raise backend_error(error) from error
            if finish is not None:
                finish()
            return self._done
        work = self._started(self.core.start_all_to_all_v, *arguments)
        return self._settle([work], tensors, finish, (source, target), opts)

    def start_send(self, memory: Tensor, tensor: Tensor, peer: int) -> dist.Work:
        """Send asynchronously; torch waits on the handle for the blocking form."""
        self._check_peer(peer)
        wire = wire_for_moving(memory.dtype)
        count = memory.numel() * wire.parts
        work = self._started(self._messages.send, memory, count, wire.code, peer)
        return self._pend([work], [tensor], None, memory, -1.0, peer)

    def start_recv(self, memory: Tensor, tensor: Tensor, finish: Callable[[], None] | None, peer: int) -> dist.Work:
        """Receive asynchronously."""
        self._check_peer(peer)
        wire = wire_for_moving(memory.dtype)
        count = memory.numel() * wire.parts
        work = self._started(self._messages.receive, memory, count, wire.code, peer)
        return self._pend([work], [tensor], finish, memory, -1.0, peer)

    def _check_peer(self, peer: int) -> None:
        if not 0 <= peer < self.size():
            raise ValueError(f"rank {peer} is not one of the {self.size()} ranks of this group")

    def _started(self, start: Callable[..., NativeWork], *arguments: Any) -> NativeWork:
        try:
            return start(*arguments)
        except TheseusError as error:
            raise backend_error(error) from error

    def _settle(
        self,
        works: Sequence[NativeWork],
        tensors: list[Tensor],
        finish: Callable[[], None] | None,
        keep: Any,
        opts: Any,
    ) -> dist.Work:
        """Return the handle of native work; wait for it here where the options say so."""
        work = self._pend(works, tensors, finish, keep, seconds_of(opts.timeout), -1)
        if not opts.asyncOp and self._coalescing is None:
            work.wait()
        return work

    def _pend(
        self,
        works: Sequence[NativeWork],
        tensors: list[Tensor],
        finish: Callable[[], None] | None,
        keep: Any,
        timeout: float,
        peer: int,
    ) -> PendingWork:
        work = PendingWork(works, tensors, finish, (keep, tensors), self._waiter, timeout=timeout, source=peer)
        with self._lock:
            self._sequence += 1
            while self._pending and self._pending[0].is_completed():
                self._pending.popleft()
            self._pending.append(work)
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    # --- Coalescing: torch brackets several calls and waits for them together.

    def _start_coalescing(self, device: Any = None) -> None:
        self._coalescing = []

    def _end_coalescing(self, device: Any = None) -> dist.Work:
        works, self._coalescing = self._coalescing or [], None
        return CombinedWork(works, self._waiter) if works else self._done

    startCoalescing = _start_coalescing
    endCoalescing = _end_coalescing

    # --- Checks that several calls share.

    def check_length(self, tensors: Sequence[Any], what: str, role: str) -> None:
        """One entry per rank."""
        if len(tensors) != self.size():
            raise ValueError(f"{what}: {len(tensors)} {role}s for {self.size()} ranks")

    def check_parts(self, parts: list[Tensor], own: Tensor, what: str, role: str) -> None:
        """One tensor per rank, each of the size and type of this rank's own."""
        self.check_length(parts, what, role)
        for rank, part in enumerate(parts):
            if part.numel() != own.numel() or part.dtype != own.dtype:
                raise ValueError(
                    f"{what}: {role} {rank} holds {part.numel()} elements of {part.dtype}, but this rank's tensor "
                    f"{own.numel()} of {own.dtype}; all must be alike"
                )

    def splits_of(self, tensor: Tensor, splits: Sequence[int] | None, role: str) -> list[int]:
        """Return, in elements, the parts of a tensor cut along its first dimension; equal ones without `splits`."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % self.size() != 0:
                raise ValueError(
                    f"all_to_all_single: the {role}'s first dimension, {rows}, does not divide among {self.size()} "
                    f"ranks; pass {role}_split_sizes"
                )
            return [tensor.numel() // self.size()] * self.size()
        if len(splits) != self.size():
            raise ValueError(f"all_to_all_single: {len(splits)} {role}_split_sizes for {self.size()} ranks")
        if min(splits) < 0 or sum(splits) != rows:
            raise ValueError(
                f"all_to_all_single: {role}_split_sizes {list(splits)} do not add up to the {role}'s first dimension, "
                f"{rows}"
            )
        row = tensor.numel() // rows if rows else 0
        return [split * row for split in splits]
