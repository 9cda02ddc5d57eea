"""Two ranks, as threads, whose library hands operations to another NCCL (THESEUS_FALLBACK). Run by test_fallback.py,
since settings are read once a process: FOLDER CASE. The other NCCL fills what it receives with MARK.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from abi.binding import AVG, SUM, Array, Config, Nccl, UniqueId, pointer, run_as_threads, size

MARK, RANKS, COUNT, UINT8, STREAM = 77, 2, 40, 1, 4096
# What every rank sends; long enough for a block a rank.
ONES = np.ones(COUNT * RANKS, "uint8")
nccl = Nccl(Path(sys.argv[1]))


def join(unique_id: UniqueId, rank: int, config: Config | None = None) -> ctypes.c_void_p:
    return nccl.join(unique_id, RANKS, rank, config)


def ranks_run(body: Callable[[ctypes.c_void_p, int], None]) -> None:
    unique_id = nccl.unique_id()

    def rank_main(rank: int) -> None:
        comm = join(unique_id, rank)
        body(comm, rank)
        nccl.check(nccl.ncclCommDestroy(comm))

    run_as_threads(RANKS, rank_main)


def all_reduce(comm: ctypes.c_void_p, op: int = SUM) -> tuple[int, Array]:
    out = np.zeros(COUNT, "uint8")
    code = nccl.ncclAllReduce(pointer(ONES), pointer(out), size(COUNT), UINT8, op, comm, ctypes.c_void_p(STREAM))
    return code, out


def from_the_other(out: Array) -> None:
    assert (out == MARK).all(), out


def case_one_operation() -> None:
    """AllReduce alone goes there; what else there is stays here, on the same communicator."""

    def body(comm: ctypes.c_void_p, rank: int) -> None:
        for _ in range(2):
            code, out = all_reduce(comm)
            nccl.check(code)
            from_the_other(out)
        data = np.full(COUNT, 3 + rank, "uint8")
        nccl.check(nccl.ncclBcast(pointer(data), size(COUNT), UINT8, 1, comm, None))
        assert (data == 4).all()
        error = ctypes.c_int(-1)
        nccl.check(nccl.ncclCommGetAsyncError(comm, ctypes.byref(error)))
        assert error.value == 0

    ranks_run(body)


def case_everything() -> None:
    """Each function with its own arguments."""

    def body(comm: ctypes.c_void_p, rank: int) -> None:
        calls: list[tuple[str, tuple[Any, ...], int]] = [
            ("ncclAllReduce", (AVG,), 1),
            ("ncclReduceScatter", (SUM,), 1),
            ("ncclReduce", (SUM, 1), 1),
            ("ncclBroadcast", (1,), 1),
            ("ncclAllGather", (), RANKS),
            ("ncclAlltoAll", (), RANKS),
            ("ncclGather", (1,), RANKS),
            ("ncclScatter", (1,), 1),
        ]
        for name, more, blocks in calls:
            out = np.zeros(COUNT * blocks, "uint8")
            arguments = (pointer(ONES), pointer(out), size(COUNT), UINT8, *more, comm, ctypes.c_void_p(STREAM))
            nccl.check(getattr(nccl, name)(*arguments))
            from_the_other(out[:COUNT])
        out = np.zeros(COUNT, "uint8")
        nccl.check(nccl.ncclSend(pointer(ONES), size(COUNT), UINT8, 1 - rank, comm, ctypes.c_void_p(STREAM)))
        nccl.check(nccl.ncclRecv(pointer(out), size(COUNT), UINT8, 1 - rank, comm, ctypes.c_void_p(STREAM)))
        from_the_other(out)

    ranks_run(body)


def case_own_operators() -> None:
    """A reduction with an operator of ours stays here: its number means nothing there."""

    def body(comm: ctypes.c_void_p, rank: int) -> None:
        op, scalar = ctypes.c_int(), np.full(1, 3, "uint8")
        nccl.check(nccl.ncclRedOpCreatePreMulSum(ctypes.byref(op), pointer(scalar), UINT8, 1, comm))
        code, out = all_reduce(comm, op.value)
        nccl.check(code)
        assert (out == 6).all()

    ranks_run(body)


def case_group() -> None:
    """What is called in a group runs at its end: nothing is there before."""

    def body(comm: ctypes.c_void_p, rank: int) -> None:
        nccl.check(nccl.ncclGroupStart())
        code, first = all_reduce(comm)
        nccl.check(code)
        code, second = all_reduce(comm)
        nccl.check(code)
        own = np.full(COUNT, 3 + rank, "uint8")
        nccl.check(nccl.ncclBcast(pointer(own), size(COUNT), UINT8, 0, comm, None))
        assert not first.any() and not second.any()
        nccl.check(nccl.ncclGroupEnd())
        from_the_other(first)
        from_the_other(second)
        assert (own == 3).all()

    ranks_run(body)


def case_init_all() -> None:
    """One thread that drives all ranks, with SendRecv, whose twins are made with the communicators."""
    comms = (ctypes.c_void_p * RANKS)()
    nccl.check(nccl.ncclCommInitAll(comms, RANKS, None))
    outs = [np.zeros(COUNT, "uint8") for _ in range(RANKS)]
    nccl.check(nccl.ncclGroupStart())
    for rank in range(RANKS):
        comm = ctypes.c_void_p(comms[rank])
        nccl.check(nccl.ncclAllReduce(pointer(ONES), pointer(outs[rank]), size(COUNT), UINT8, SUM, comm, None))
    nccl.check(nccl.ncclGroupEnd())
    for rank in range(RANKS):
        from_the_other(outs[rank])
        nccl.check(nccl.ncclCommAbort(ctypes.c_void_p(comms[rank])))


def case_init_in_a_group() -> None:
    """Communicators made in a group have their twins at its end."""
    unique_id = nccl.unique_id()
    comms = [ctypes.c_void_p() for _ in range(RANKS)]
    nccl.check(nccl.ncclGroupStart())
    for rank in range(RANKS):
        nccl.check(nccl.ncclCommInitRank(ctypes.byref(comms[rank]), RANKS, unique_id, rank))
    nccl.check(nccl.ncclGroupEnd())
    for rank in range(RANKS):
        nccl.check(nccl.ncclSend(pointer(ONES), size(COUNT), UINT8, 1 - rank, comms[rank], None))
    nccl.check(nccl.ncclGroupStart())
    for comm in comms:
        nccl.check(nccl.ncclCommDestroy(comm))
    nccl.check(nccl.ncclGroupEnd())


def case_split() -> None:
    """A communicator made from another one has a twin of its own."""

    def body(comm: ctypes.c_void_p, rank: int) -> None:
        child = ctypes.c_void_p()
        nccl.check(nccl.ncclCommSplit(comm, 0, -rank, ctypes.byref(child), None))
        code, out = all_reduce(child)
        nccl.check(code)
        from_the_other(out)
        nccl.check(nccl.ncclCommDestroy(child))

    ranks_run(body)


def case_refused() -> None:
    """The first such call says why it cannot be done, on every rank, and what is ours goes on: CODE WORDS..."""
    code, words = int(sys.argv[3]), sys.argv[4:]

    def body(comm: ctypes.c_void_p, rank: int) -> None:
        for _ in range(2):
            nccl.refused(all_reduce(comm)[0], code, *words)
        data = np.full(COUNT, 3 + rank, "uint8")
        nccl.check(nccl.ncclBcast(pointer(data), size(COUNT), UINT8, 1, comm, None))
        assert (data == 4).all()

    ranks_run(body)


def case_gather_refused() -> None:
    """An NCCL that is too old for one function."""

    def body(comm: ctypes.c_void_p, rank: int) -> None:
        out = np.zeros(COUNT * RANKS, "uint8")
        code = nccl.ncclGather(pointer(ONES), pointer(out), size(COUNT), UINT8, 0, comm, None)
        nccl.refused(code, 5, "ncclGather", "22707")
        code, out = all_reduce(comm)
        nccl.check(code)
        from_the_other(out)

    ranks_run(body)


def case_async_error() -> None:
    """An error of the twin's is the communicator's."""

    def body(comm: ctypes.c_void_p, rank: int) -> None:
        code, _ = all_reduce(comm)
        nccl.check(code)
        error = ctypes.c_int(-1)
        nccl.check(nccl.ncclCommGetAsyncError(comm, ctypes.byref(error)))
        assert error.value == 1
        assert "fake cuda error" in nccl.last_error(), nccl.last_error()

    ranks_run(body)


def case_non_blocking() -> None:
    """SendRecv cannot go there on a communicator that was not ready when it was made."""
    unique_id = nccl.unique_id()

    def rank_main(rank: int) -> None:
        config, comm, state = Config.default(), ctypes.c_void_p(), ctypes.c_int(7)
        config.blocking = 0
        nccl.ncclCommInitRankConfig(ctypes.byref(comm), RANKS, unique_id, rank, ctypes.byref(config))
        while state.value == 7:
            nccl.check(nccl.ncclCommGetAsyncError(comm, ctypes.byref(state)))
        nccl.check(state.value)
        nccl.refused(nccl.ncclSend(pointer(ONES), size(COUNT), UINT8, 1 - rank, comm, None), 5, "blocking")
        nccl.check(nccl.ncclCommAbort(comm))

    run_as_threads(RANKS, rank_main)


if __name__ == "__main__":
    globals()[f"case_{sys.argv[2]}"]()
