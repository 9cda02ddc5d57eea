"""Two ranks, as threads, whose library hands operations to another NCCL. Run by test_fallback.py, since settings are
read once a process: FOLDER CASE. The other NCCL fills what it receives with MARK. Cases named gpu_ run on fake GPUs.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
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


def case_network() -> None:
    """Ranks on several hosts: all that they call goes there, without any operation named."""

    def body(comm: ctypes.c_void_p, rank: int) -> None:
        code, out = all_reduce(comm)
        nccl.check(code)
        from_the_other(out)
        nccl.check(nccl.ncclSend(pointer(ONES), size(COUNT), UINT8, 1 - rank, comm, ctypes.c_void_p(STREAM)))
        out = np.zeros(COUNT, "uint8")
        nccl.check(nccl.ncclRecv(pointer(out), size(COUNT), UINT8, 1 - rank, comm, ctypes.c_void_p(STREAM)))
        from_the_other(out)

    ranks_run(body)


def case_own_network() -> None:
    """Nothing goes there: ours looks at the buffers, which are no GPU's."""

    def body(comm: ctypes.c_void_p, rank: int) -> None:
        code, out = all_reduce(comm)
        assert code == 4 and not out.any()

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


def case_two_groupings() -> None:
    """One thread calls on two communicators in a group, the other one after the other: nobody waits for ever."""
    ids = [nccl.unique_id() for _ in range(2)]

    def rank_main(rank: int) -> None:
        comms = [join(unique_id, rank) for unique_id in ids]
        outs = [np.zeros(COUNT, "uint8") for _ in comms]
        if rank == 0:
            nccl.check(nccl.ncclGroupStart())
        for comm, out in zip(comms, outs, strict=True):
            nccl.check(nccl.ncclAllReduce(pointer(ONES), pointer(out), size(COUNT), UINT8, SUM, comm, None))
        if rank == 0:
            nccl.check(nccl.ncclGroupEnd())
        for comm, out in zip(comms, outs, strict=True):
            from_the_other(out)
            nccl.check(nccl.ncclCommDestroy(comm))

    run_as_threads(RANKS, rank_main)


def case_settings_differ() -> None:
    """Another process, whose setting is another one: neither rank gets a communicator. Both say who has which."""
    comm = ctypes.c_void_p()
    if len(sys.argv) > 3:
        unique_id, rank = UniqueId.from_buffer_copy(bytes.fromhex(sys.argv[3])), 1
    else:
        unique_id, rank = nccl.unique_id(), 0
        command = [sys.executable, *sys.argv, bytes(unique_id).hex()]
        other = subprocess.Popen(command, env=os.environ | {"THESEUS_FALLBACK": "AllGather"})
    words = ("THESEUS_FALLBACK=AllReduce", "THESEUS_FALLBACK=AllGather", "rank 0", "rank 1")
    nccl.refused(nccl.ncclCommInitRank(ctypes.byref(comm), RANKS, unique_id, rank), 5, *words)
    assert rank == 1 or other.wait(60) == 0


# ---- On fake GPUs


def current_device() -> int:
    """The calling thread's, as the fake driver has it."""
    device = ctypes.c_int(-1)
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetDevice(ctypes.byref(device)) == 0
    return device.value


def choose_device(device: int) -> None:
    """What cudaSetDevice does."""
    assert ctypes.CDLL("libcuda.so.1").cuCtxSetCurrent(ctypes.c_void_p(device + 1)) == 0


def gpu_ranks(body: Callable[[ctypes.c_void_p, int], None]) -> None:
    """Rank 0 on GPU 1, rank 1 on GPU 3; the threads then work with GPU 0."""
    unique_id = nccl.unique_id()

    def rank_main(rank: int) -> None:
        choose_device(1 + 2 * rank)
        comm = join(unique_id, rank)
        choose_device(0)
        body(comm, rank)
        nccl.check(nccl.ncclCommDestroy(comm))
        assert current_device() == 0

    run_as_threads(RANKS, rank_main)


class Memory:
    """Memory of ncclMemAlloc."""

    def __init__(self, bytes: int = 4096) -> None:
        """Allocate."""
        self.at, self.bytes = ctypes.c_void_p(), bytes
        nccl.check(nccl.ncclMemAlloc(ctypes.byref(self.at), size(bytes)))

    def register(self, comm: ctypes.c_void_p) -> ctypes.c_void_p:
        """Make a window of it; in a group it is there at the end."""
        window = ctypes.c_void_p()
        nccl.check(nccl.ncclCommWindowRegister(comm, self.at, size(self.bytes), ctypes.byref(window), 1))
        return window

    def free(self) -> None:
        """Give it back."""
        nccl.check(nccl.ncclMemFree(self.at))


def case_gpu_operations() -> None:
    """An operation of THESEUS_FALLBACK."""

    def body(comm: ctypes.c_void_p, rank: int) -> None:
        code, out = all_reduce(comm)
        nccl.check(code)
        from_the_other(out)

    gpu_ranks(body)


def case_gpu_init_all() -> None:
    """One thread that drives two GPUs."""
    comms, devices = (ctypes.c_void_p * RANKS)(), (ctypes.c_int * RANKS)(2, 1)
    choose_device(3)
    nccl.check(nccl.ncclCommInitAll(comms, RANKS, devices))
    memory = [Memory() for _ in range(RANKS)]
    windows = [ctypes.c_void_p() for _ in range(RANKS)]
    nccl.check(nccl.ncclGroupStart())
    for comm, each, window in zip(comms, memory, windows, strict=True):
        given = (ctypes.c_void_p(comm), each.at, size(4096), ctypes.byref(window), 1)
        nccl.check(nccl.ncclCommWindowRegister(*given))
    assert not any(window.value for window in windows)
    nccl.check(nccl.ncclGroupEnd())
    for comm, window in zip(comms, windows, strict=True):
        assert window.value is not None
        nccl.check(nccl.ncclCommWindowDeregister(ctypes.c_void_p(comm), window))
        nccl.check(nccl.ncclCommDestroy(ctypes.c_void_p(comm)))
    for each in memory:
        each.free()
    assert current_device() == 3


def case_gpu_windows() -> None:
    """Windows, one-sided transfers and the device API: each handle goes back to who made it."""

    def body(comm: ctypes.c_void_p, rank: int) -> None:
        early = nccl.ncclSignal(1 - rank, 0, 0, 0, comm, None)
        nccl.refused(early, 5, "ncclSignal", "ncclCommWindowRegister")
        memory, found, made = Memory(), ctypes.c_void_p(), ctypes.c_int()
        window = memory.register(comm)
        nccl.check(nccl.ncclWinGetUserPtr(comm, window, ctypes.byref(found)))
        assert found.value == memory.at.value
        nccl.check(nccl.ncclGetPeerDevicePointer(window, size(16), 1, ctypes.byref(found)))
        assert found.value is not None and memory.at.value is not None and found.value == memory.at.value + 17
        put = (pointer(ONES), size(8), UINT8, 1 - rank, window, size(64), 0, 0, 0, comm, ctypes.c_void_p(STREAM))
        nccl.check(nccl.ncclPutSignal(*put))
        nccl.check(nccl.ncclSignal(1 - rank, 0, 0, 0, comm, None))
        assert nccl.ncclTeamLsa(comm).ranks == RANKS
        nccl.check(nccl.ncclDevCommCreate(comm, None, ctypes.byref(made)))
        assert made.value == MARK
        nccl.check(nccl.ncclDevCommDestroy(comm, ctypes.byref(made)))
        nccl.refused(nccl.ncclDevCommDestroy(comm, ctypes.byref(made)), 4, "devComm")
        nccl.refused(nccl.ncclWaitSignal(0, None, comm, None), 5, "ncclWaitSignal", "THESEUS_NCCL")
        nccl.check(nccl.ncclCommWindowDeregister(comm, window))
        nccl.refused(nccl.ncclCommWindowDeregister(comm, window), 4, "win")
        nccl.refused(nccl.ncclPutSignal(*put), 4, "window")
        stale = ctypes.c_void_p(1)
        nccl.refused(nccl.ncclGetPeerDevicePointer(stale, size(0), 0, ctypes.byref(found)), 4, "window")
        memory.free()
        nccl.refused(nccl.ncclMemFree(ctypes.c_void_p(STREAM)), 4)

    gpu_ranks(body)


def case_gpu_foreign_windows() -> None:
    """A window of one communicator's is none of another's."""
    ids = [nccl.unique_id() for _ in range(2)]

    def rank_main(rank: int) -> None:
        choose_device(rank)
        first, second = (join(unique_id, rank) for unique_id in ids)
        memory = Memory()
        window = memory.register(first)
        memory.register(second)
        put = (pointer(ONES), size(8), UINT8, 1 - rank, window, size(64), 0, 0, 0, second, None)
        nccl.refused(nccl.ncclPutSignal(*put), 4, "window")
        nccl.refused(nccl.ncclCommWindowDeregister(second, window), 4, "win")
        nccl.check(nccl.ncclCommDestroy(first))
        nccl.refused(nccl.ncclCommWindowDeregister(second, window), 4, "win")
        nccl.check(nccl.ncclCommDestroy(second))
        memory.free()

    run_as_threads(RANKS, rank_main)


def case_gpu_without() -> None:
    """No other NCCL: windows are remembered as on the host, the device API is refused with the way out."""

    def body(comm: ctypes.c_void_p, rank: int) -> None:
        memory, found = Memory(), ctypes.c_void_p()
        window = memory.register(comm)
        nccl.check(nccl.ncclWinGetUserPtr(comm, window, ctypes.byref(found)))
        assert found.value == memory.at.value
        nccl.refused(nccl.ncclDevCommCreate(comm, None, ctypes.byref(found)), 2, "rank 0", "THESEUS_NCCL")
        nccl.refused(nccl.ncclGetPeerDevicePointer(window, size(0), 0, ctypes.byref(found)), 4, "window")
        nccl.check(nccl.ncclCommWindowDeregister(comm, window))
        memory.free()

    gpu_ranks(body)


def case_gpu_errors() -> None:
    """The other NCCL's errors come with its words."""

    def body(comm: ctypes.c_void_p, rank: int) -> None:
        memory, window = Memory(), ctypes.c_void_p()
        code = nccl.ncclCommWindowRegister(comm, memory.at, size(4096), ctypes.byref(window), 1)
        nccl.refused(code, 1, "ncclCommWindowRegister", "fake cuda error", "the fake's last error", "2.30.7")
        memory.free()

    gpu_ranks(body)


if __name__ == "__main__":
    globals()[f"case_{sys.argv[2]}"]()
