"""The communicator: collectives over NumPy arrays, torch tensors and everything else that shows its memory.

Buffers are used where they lie, never copied: NumPy arrays, torch CPU tensors, objects with DLPack or
__array_interface__, and the buffer protocol; on GPUs (THESEUS_DEVICE) what has __cuda_array_interface__, such as the
arrays of theseus_py.device, CuPy and numba, torch CUDA tensors, and pinned host memory. They must be C-contiguous, and
writable where a result goes. Sizes and types are checked; an error begins with the call and the argument. bool is
reduced as 0 and 1 (sum is or, prod is and); complex numbers can be moved, summed and averaged.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from theseus_py import _core, launch
from theseus_py.dtypes import Collective, DataType, data_type, encode_scalar
from theseus_py.errors import InvalidArgument, TheseusError

__all__ = [
    "Candidate",
    "Communicator",
    "Explanation",
    "LoadedPlan",
    "PreMulSum",
    "ReduceOp",
    "Work",
    "create_unique_id",
    "group",
    "init_all",
]


@dataclass(frozen=True)
class Candidate:
    """One algorithm that was considered for a request. `score` is predicted seconds; meaningless where not usable."""

    algorithm: str
    usable: bool
    score: float
    reason: str


@dataclass(frozen=True)
class Explanation:
    """How a request would run, and why."""

    chosen: str
    reason: str
    candidates: tuple[Candidate, ...]


class SupportsPlanBytes(Protocol):
    """A plan that can say its plan file, as resccl.Plan does."""

    def to_bytes(self) -> bytes: ...


@dataclass(frozen=True)
class LoadedPlan:
    """A plan that `Communicator.load_plan` took in; `plan=` of a call on that communicator names it.

    `thread_blocks` and `connections` are this rank's. `in_place` and `out_of_place` say what the plan is right for.
    Where `any_count` is false, calls whose count does not divide into `chunks_per_block` run on copies of the buffers;
    where `scales` is false, it cannot average floats, nor take premulsum().
    """

    communicator: Communicator = field(repr=False)
    id: int = field(repr=False)
    name: str
    collective: Collective
    root: int
    chunks_per_block: int
    in_place: bool
    out_of_place: bool
    any_count: bool
    scales: bool
    thread_blocks: int
    connections: int


class Work:
    """A call in progress. The buffers it was given belong to it until it is done. Safe to use from any thread."""

    __slots__ = ("_work",)

    def __init__(self, work: _core.Work) -> None:
        self._work = work

    def wait(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds (None: for ever).

        Raises what the call failed with, or Timeout; the call then goes on.
        """
        self._work.wait(-1.0 if timeout is None else max(0.0, timeout))

    def done(self) -> bool:
        """Whether the call has ended, well or not. Never waits."""
        return self._work.done()

    def exception(self) -> TheseusError | None:
        """What the call failed with; None while it runs and after success. Never waits."""
        return self._work.exception()


class PreMulSum:
    """A reduction that multiplies each input by this rank's factor and sums; made by Communicator.premulsum."""

    def __init__(self, core: _core.Communicator, dtype: DataType, scalar: float) -> None:
        self._core = core
        self.dtype = dtype
        self.scalar = scalar
        self.handle = core.create_premulsum(int(dtype), encode_scalar(scalar, dtype))

    def destroy(self) -> None:
        """Give the handle back; later calls that name it fail. Destroying twice is allowed."""
        handle, self.handle = self.handle, -1
        if handle >= 0 and self._core.is_open:
            self._core.destroy_op(handle)

    def __del__(self) -> None:
        # An interpreter that is going down may have taken what this needs; the communicator's end frees the handle too.
        with contextlib.suppress(Exception):
            self.destroy()


ReduceOp = str | int | PreMulSum


def _wrap(work: _core.Work | None) -> Work | None:
    return None if work is None else Work(work)


def create_unique_id() -> bytes:
    """Return the 128 bytes that name one communicator to be. One rank makes them and hands them to the others."""
    return _core.create_unique_id()


class Communicator:
    """One rank's endpoint. Made by init, from_env or init_all; ended by destroy or abort, or by leaving a `with` block.

    Every collective must be called by all ranks, in the same order. A call returns when its result is there; with
    `async_op=True` it returns a Work at once. Inside `group()` calls are queued and run when the group ends.
    `op` is "sum", "prod", "max", "min", "avg", or what premulsum() returned. `plan` is what load_plan() returned;
    without it, the policy picks one.

    On GPUs a call returns when it is queued on `stream`: an int, a stream of theseus_py.device, torch or CuPy, or what
    has `__cuda_stream__`. None is the stream that the array names (CuPy's current one), else the default stream. The
    result is there when the stream has got so far; `async_op=True` gives a Work that says when. The buffers are the
    stream's until then.
    """

    def __init__(self, core: _core.Communicator) -> None:
        """Wrap a native communicator; users call init, from_env or init_all instead."""
        self._core = core
        self.rank: int = core.rank
        self.ranks: int = core.ranks
        self.name: str = core.name
        # The GPU that buffers are on; None: host memory.
        self.device: int | None = core.device if core.device >= 0 else None

    # --- Beginning and end.

    @classmethod
    def init(
        cls,
        unique_id: bytes,
        ranks: int,
        rank: int,
        *,
        blocking: bool = True,
        name: str = "",
        device: int | None = None,
    ) -> Communicator:
        """Join the communicator that `unique_id` names, as `rank` of `ranks`.

        Waits for the other ranks. With `blocking=False` it returns at once, and calls on it too: it is ready when
        `in_progress` is false and `async_error` is None. `device`: the GPU of this rank, under THESEUS_DEVICE=cuda;
        None: the calling thread's current one. Raises InvalidArgument, RemoteError or Timeout.
        """
        ordinal = -1 if device is None else device
        return cls(_core.Communicator.init(bytes(unique_id), ranks, rank, blocking, name, ordinal))

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        blocking: bool = True,
        name: str = "",
        device: int | None = None,
    ) -> Communicator:
        """Join the communicator of all ranks that torchrun, mpirun or srun started.

        Call it equally often on every rank; each call makes a new communicator. Raises InvalidUsage where no launcher
        is seen.
        """
        place = launch.discover(os.environ if environ is None else environ)
        unique_id = launch.exchange_unique_id(place, create_unique_id)
        return cls.init(unique_id, place.ranks, place.rank, blocking=blocking, name=name, device=device)

    def split(self, color: int | None, key: int = 0, *, name: str | None = None) -> Communicator | None:
        """Make a communicator of the ranks with the same color, ordered by key, then by rank here.

        A collective: all ranks call it. `color=None` takes part and gets None.
        """
        if color is not None and color < 0:
            raise InvalidArgument(f"split: color {color} is negative; pass None to be in no part")
        core = self._core.split(-1 if color is None else color, key, name)
        return None if core is None else Communicator(core)

    def shrink(self, excluded: Sequence[int], *, abort: bool = False) -> Communicator:
        """Make a communicator of all ranks but `excluded`, which do not call this.

        `abort=True` first gives up what this communicator has outstanding, and so works after a rank has died.
        """
        return Communicator(self._core.shrink(list(excluded), abort))

    def finalize(self) -> None:
        """Finish outstanding work; later calls are refused."""
        self._core.finalize()

    def destroy(self) -> None:
        """Finalize if need be, and free everything. Doing it twice is allowed."""
        self._core.destroy()

    def abort(self) -> None:
        """Free everything at once, without waiting for peers; from any thread. Doing it twice is allowed."""
        self._core.abort()

    def revoke(self) -> None:
        """Make outstanding and later calls fail with InvalidUsage, here; `shrink` still works."""
        self._core.revoke()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.destroy()
        else:
            self.abort()

    def __repr__(self) -> str:
        state = "" if self._core.is_open else ", closed"
        name = f" {self.name!r}" if self.name else ""
        return f"<Communicator{name}: rank {self.rank} of {self.ranks}{state}>"

    # --- State.

    @property
    def in_progress(self) -> bool:
        """Whether init or calls are outstanding; only for blocking=False."""
        return self._core.in_progress()

    @property
    def async_error(self) -> TheseusError | None:
        """Why this communicator is dead, or None."""
        return self._core.async_error()

    def set_timeout(self, seconds: float | None) -> None:
        """Let every later call give up with Timeout after so many seconds; None: never."""
        self._core.set_timeout(0.0 if seconds is None else seconds)

    def explain(self, collective: Collective | str, count: int, dtype: Any = "float32", root: int = 0) -> Explanation:
        """Say which algorithm a request would run on, what else was considered, and why."""
        if isinstance(collective, str):
            try:
                collective = Collective[collective.upper()]
            except KeyError:
                known = ", ".join(member.name.lower() for member in Collective)
                raise InvalidArgument(f"explain: collective {collective!r} is not one of {known}") from None
        found = self._core.explain(int(collective), count, int(data_type(dtype)), root)
        return Explanation(found["chosen"], found["reason"], tuple(Candidate(*each) for each in found["candidates"]))

    def context_state(self) -> dict[str, int] | None:
        """How far this rank is with the job's context: ``installed`` (position agreed on), ``epoch``, and so on.

        None where schedules do not change on this communicator (THESEUS_ADAPT=off, no agent, or one rank).
        """
        return self._core.context_state()

    def describe_peers(self) -> list[str]:
        """Return one line per rank: its host, rails, process and the transport to it."""
        return self._core.describe_peers()

    def load_plan(self, plan: bytes | SupportsPlanBytes) -> LoadedPlan:
        """Take in a plan (the bytes of a plan file, or a resccl.Plan) that calls can name with `plan=`.

        A collective: every rank gives the same plan. The lowest rank of each host proves it whole before anything runs
        it. Raises InvalidArgument, on all ranks and for the same reason, where the ranks' plans differ, or the plan is
        malformed, made for another number of ranks, or wrong.
        """
        file = bytes(plan) if isinstance(plan, (bytes, bytearray, memoryview)) else plan.to_bytes()
        number, name, collective, root, chunks, *facts, thread_blocks, connections = self._core.load_plan(file)
        in_place, out_of_place, any_count, scales = (bool(fact) for fact in facts)
        return LoadedPlan(
            self,
            number,
            name,
            Collective(collective),
            root,
            chunks,
            in_place=in_place,
            out_of_place=out_of_place,
            any_count=any_count,
            scales=scales,
            thread_blocks=thread_blocks,
            connections=connections,
        )

    def _number_of(self, plan: LoadedPlan) -> int:
        if plan.communicator is not self:
            raise InvalidArgument(f"plan {plan.name!r} was loaded by another communicator: load it on this one")
        return plan.id

    def premulsum(self, scalar: float, dtype: Any) -> PreMulSum:
        """Return a reduction that multiplies this rank's input by `scalar` and sums, for arrays of `dtype`."""
        return PreMulSum(self._core, data_type(dtype), scalar)

    # --- Collectives.

    def all_reduce(
        self,
        send: Any,
        recv: Any = None,
        op: ReduceOp = "sum",
        *,
        async_op: bool = False,
        plan: LoadedPlan | None = None,
        stream: Any = None,
    ) -> Work | None:
        """Reduce `send` of all ranks into `recv` of all ranks; without `recv`, in place."""
        return _wrap(
            self._core.all_reduce(send, recv, op, async_op, 0 if plan is None else self._number_of(plan), stream)
        )

    def reduce(
        self,
        send: Any,
        recv: Any = None,
        op: ReduceOp = "sum",
        root: int = 0,
        *,
        async_op: bool = False,
        plan: LoadedPlan | None = None,
        stream: Any = None,
    ) -> Work | None:
        """Reduce `send` of all ranks into `recv` of the root; without `recv`, in place there. No other is written."""
        return _wrap(
            self._core.reduce(send, recv, op, root, async_op, 0 if plan is None else self._number_of(plan), stream)
        )

    def broadcast(
        self, data: Any, root: int = 0, *, async_op: bool = False, plan: LoadedPlan | None = None, stream: Any = None
    ) -> Work | None:
        """Copy the root's `data` to all ranks' `data`."""
        return _wrap(self._core.broadcast(data, root, async_op, 0 if plan is None else self._number_of(plan), stream))

    def all_gather(
        self, send: Any, recv: Any, *, async_op: bool = False, plan: LoadedPlan | None = None, stream: Any = None
    ) -> Work | None:
        """Concatenate `send` of all ranks in `recv` of all; in place where `send` is this rank's part of `recv`."""
        return _wrap(self._core.all_gather(send, recv, async_op, 0 if plan is None else self._number_of(plan), stream))

    def reduce_scatter(
        self,
        send: Any,
        recv: Any,
        op: ReduceOp = "sum",
        *,
        async_op: bool = False,
        plan: LoadedPlan | None = None,
        stream: Any = None,
    ) -> Work | None:
        """Reduce `send` of all ranks and give each rank its part of the result in `recv`."""
        return _wrap(
            self._core.reduce_scatter(send, recv, op, async_op, 0 if plan is None else self._number_of(plan), stream)
        )

    def all_to_all(
        self, send: Any, recv: Any, *, async_op: bool = False, plan: LoadedPlan | None = None, stream: Any = None
    ) -> Work | None:
        """Send the i-th part of `send` to rank i, and receive rank i's part for this rank as the i-th of `recv`."""
        return _wrap(self._core.all_to_all(send, recv, async_op, 0 if plan is None else self._number_of(plan), stream))

    def all_to_all_v(
        self,
        send: Any,
        send_counts: Sequence[int],
        recv: Any,
        recv_counts: Sequence[int],
        *,
        async_op: bool = False,
        stream: Any = None,
    ) -> Work | None:
        """all_to_all with parts of any size: one count of elements per rank; parts lie in rank order, without gaps."""
        return _wrap(self._core.all_to_all_v(send, list(send_counts), recv, list(recv_counts), async_op, stream))

    def gather(
        self,
        send: Any,
        recv: Any = None,
        root: int = 0,
        *,
        async_op: bool = False,
        plan: LoadedPlan | None = None,
        stream: Any = None,
    ) -> Work | None:
        """Concatenate `send` of all ranks, by rank, in `recv` of the root; others may pass None."""
        return _wrap(
            self._core.gather(send, recv, root, async_op, 0 if plan is None else self._number_of(plan), stream)
        )

    def scatter(
        self,
        send: Any,
        recv: Any,
        root: int = 0,
        *,
        async_op: bool = False,
        plan: LoadedPlan | None = None,
        stream: Any = None,
    ) -> Work | None:
        """Give each rank, in `recv`, its part of the root's `send`; others may pass None for `send`."""
        return _wrap(
            self._core.scatter(send, recv, root, async_op, 0 if plan is None else self._number_of(plan), stream)
        )

    def send(self, data: Any, peer: int, *, async_op: bool = False, stream: Any = None) -> Work | None:
        """Send `data` to rank `peer`, which must call recv with the same size and type."""
        return _wrap(self._core.send(data, peer, async_op, stream))

    def recv(self, data: Any, peer: int, *, async_op: bool = False, stream: Any = None) -> Work | None:
        """Receive into `data` what rank `peer` sends to this rank."""
        return _wrap(self._core.recv(data, peer, async_op, stream))

    def barrier(self, *, async_op: bool = False) -> Work | None:
        """Wait until every rank has called it."""
        return _wrap(self._core.barrier(async_op))


def init_all(ranks: int, devices: Sequence[int] | None = None) -> list[Communicator]:
    """Return `ranks` communicators of this process that talk to each other: one thread drives them inside `group()`.

    `devices`: the GPU of each, under THESEUS_DEVICE=cuda, several ranks on one allowed; None: 0, 1, 2, ...
    """
    return [Communicator(core) for core in _core.init_all(ranks, [] if devices is None else list(devices))]


@contextlib.contextmanager
def group() -> Iterator[None]:
    """Queue this thread's calls, and run them together at the end of the outermost block.

    Sends and receives in one group never wait for each other, whatever their order. Raises the first error of the
    queued calls. When the block itself raises, what was queued so far still runs (peers count on it), and the block's
    error is what is raised.
    """
    _core.group_start()
    try:
        yield
    except BaseException:
        with contextlib.suppress(TheseusError):
            _core.group_end()
        raise
    _core.group_end()


def counters() -> dict[str, Any]:
    """What this process has done so far.

    ``collectives`` maps a collective's name to its ``requests``, ``bytes`` (of the larger of both buffers) and
    ``failures``; ``flows`` lists, for each peer host and rail that TCP data went to, ``bytes``, ``messages`` and
    ``backlogged_seconds``, the time in which data was waiting to go.
    """
    return _core.counters()
