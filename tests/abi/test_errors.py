"""Bad arguments: a code, a message that names the thing, and never a crash.

What the real library answers to the same calls was recorded once, on a machine without a GPU, and is asserted here.
"""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest
from abi.binding import (
    IN_PROGRESS,
    INVALID_ARGUMENT,
    INVALID_USAGE,
    SUCCESS,
    VERSION,
    Config,
    Nccl,
    Team,
    UniqueId,
    pointer,
    run_as_threads,
    size,
)

TEXTS = {
    0: "no error",
    1: "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    2: "unhandled system error (run with NCCL_DEBUG=INFO for details)",
    3: "internal error - please report this issue to the NCCL developers",
    4: "invalid argument (run with NCCL_DEBUG=WARN for details)",
    5: "invalid usage (run with NCCL_DEBUG=WARN for details)",
    6: "remote process exited or there was a network error",
    7: "NCCL operation in progress",
    8: "timeout",
    9: "unknown result code",
    -1: "unknown result code",
}


@pytest.mark.parametrize(("code", "text"), TEXTS.items())
def test_error_strings(nccl: Nccl, code: int, text: str) -> None:
    """The texts are NCCL's to the letter: logs are searched for them."""
    assert nccl.ncclGetErrorString(code).decode() == text


def test_version(nccl: Nccl) -> None:
    """The library is 2.32.3, and refuses NULL."""
    version = ctypes.c_int()
    nccl.check(nccl.ncclGetVersion(ctypes.byref(version)))
    assert version.value == VERSION
    nccl.refused(nccl.ncclGetVersion(None), INVALID_ARGUMENT, "version")
    nccl.refused(nccl.ncclGetUniqueId(None), INVALID_ARGUMENT, "uniqueId")


def test_null_communicators(nccl: Nccl) -> None:
    """NULL may be ended (as in NCCL); everything else refuses it and says so."""
    for name in ("ncclCommDestroy", "ncclCommAbort", "ncclCommFinalize"):
        assert getattr(nccl, name)(None) == SUCCESS, name
    number, address, none = ctypes.c_int(), ctypes.c_void_p(), size(0)
    out, where = ctypes.byref(number), ctypes.byref(address)
    calls = {
        "ncclCommCount": (None, out),
        "ncclCommUserRank": (None, out),
        "ncclCommCuDevice": (None, out),
        "ncclCommGetAsyncError": (None, out),
        "ncclAllReduce": (None, None, none, 7, 0, None, None),
        "ncclReduce": (None, None, none, 7, 0, 0, None, None),
        "ncclBroadcast": (None, None, none, 7, 0, None, None),
        "ncclAllGather": (None, None, none, 7, None, None),
        "ncclSend": (None, none, 7, 0, None, None),
        "ncclRecv": (None, none, 7, 0, None, None),
        "ncclRedOpCreatePreMulSum": (out, out, 7, 1, None),
        "ncclRedOpDestroy": (99, None),
        "ncclCommSplit": (None, 0, 0, where, None),
        "ncclCommShrink": (None, out, 1, where, None, 0),
        "ncclCommRegister": (None, out, size(4), where),
        "ncclCommDeregister": (None, None),
        "ncclCommWindowRegister": (None, out, size(4), where, 0),
        "ncclCommWindowDeregister": (None, None),
        "ncclWinGetUserPtr": (None, None, where),
        "ncclCommSuspend": (None, 1),
        "ncclCommResume": (None,),
        "ncclCommMemStats": (None, 0, where),
        "ncclCommGetUniqueId": (None, where),
        "ncclCommQueryProperties": (None, where),
    }
    for name, arguments in calls.items():
        nccl.refused(getattr(nccl, name)(*arguments), INVALID_ARGUMENT, name, "NULL")


@pytest.mark.parametrize(("ranks", "rank"), [(0, 0), (-1, 0), (2, 2), (2, -1)])
def test_bad_ranks(nccl: Nccl, ranks: int, rank: int) -> None:
    """A rank outside the communicator is refused at once, and the caller is left with NULL, not with what was there."""
    comm = ctypes.c_void_p(0xDEAD)
    result = nccl.ncclCommInitRank(ctypes.byref(comm), ranks, UniqueId(), rank)
    nccl.refused(result, INVALID_ARGUMENT, str(rank if ranks > 0 else ranks))
    assert comm.value is None
    nccl.refused(nccl.ncclCommInitRank(None, 1, UniqueId(), 0), INVALID_ARGUMENT, "comm")


def test_stale_and_foreign_handles(nccl: Nccl) -> None:
    """A second destroy, use after destroy, and addresses that were never a communicator are refused, not followed."""
    comm = nccl.alone()
    nccl.check(nccl.ncclCommDestroy(comm))
    number = ctypes.c_int()
    unmapped = ctypes.c_void_p(0x10)
    beside = ctypes.c_void_p((comm.value or 0) + 8)
    for handle in (comm, unmapped, beside):
        nccl.refused(nccl.ncclCommDestroy(handle), INVALID_ARGUMENT, "comm")
        nccl.refused(nccl.ncclCommAbort(handle), INVALID_ARGUMENT, "comm")
        nccl.refused(nccl.ncclCommCount(handle, ctypes.byref(number)), INVALID_ARGUMENT, "comm")
        nccl.refused(nccl.ncclAllReduce(None, None, size(0), 7, 0, handle, None), INVALID_ARGUMENT, "comm")
    later = nccl.alone()
    nccl.refused(nccl.ncclCommDestroy(comm), INVALID_ARGUMENT, "destroyed")
    nccl.check(nccl.ncclCommDestroy(later))


def test_groups(nccl: Nccl) -> None:
    """An end without a start is refused; a refused call makes the whole group fail; the next group starts clean."""
    nccl.refused(nccl.ncclGroupEnd(), INVALID_USAGE, "ncclGroupStart")
    for _ in range(2):
        nccl.check(nccl.ncclGroupStart())
    for _ in range(2):
        nccl.check(nccl.ncclGroupEnd())
    comm = nccl.alone()
    buffer = np.zeros(4, "float32")
    nccl.check(nccl.ncclGroupStart())
    call = (pointer(buffer), pointer(buffer), size(4))
    nccl.refused(nccl.ncclAllReduce(*call, 55, 0, comm, None), INVALID_ARGUMENT, "55")
    nccl.refused(nccl.ncclGroupEnd(), INVALID_ARGUMENT, "55")
    nccl.check(nccl.ncclGroupStart())
    nccl.check(nccl.ncclAllReduce(*call, 7, 0, comm, None))
    nccl.check(nccl.ncclGroupEnd())
    nccl.check(nccl.ncclCommDestroy(comm))


def test_group_of_other_thread(nccl: Nccl) -> None:
    """A group belongs to the thread that opened it."""
    nccl.check(nccl.ncclGroupStart())
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(nccl.ncclGroupEnd()))
    thread.start()
    thread.join()
    assert results == [INVALID_USAGE]
    nccl.check(nccl.ncclGroupEnd())


def test_last_error_is_the_threads_own(nccl: Nccl) -> None:
    """Another thread's failure does not replace this thread's message."""
    nccl.refused(nccl.ncclGetVersion(None), INVALID_ARGUMENT, "ncclGetVersion")
    thread = threading.Thread(target=lambda: nccl.ncclGetUniqueId(None))
    thread.start()
    thread.join()
    assert "ncclGetVersion" in nccl.last_error()


def test_built_in_operators_stay(nccl: Nccl) -> None:
    """Built-in and unknown operators cannot be destroyed."""
    comm = nccl.alone()
    for op in (0, 4, 99, -1, 0x7FFFFFFF):
        nccl.refused(nccl.ncclRedOpDestroy(op, comm), INVALID_ARGUMENT)
    nccl.check(nccl.ncclCommDestroy(comm))


def test_finalize_and_revoke_once(nccl: Nccl) -> None:
    """Finalize and revoke happen once, exclude one another, and end collectives."""
    buffer = np.zeros(1, "float32")
    comm = nccl.alone()
    nccl.check(nccl.ncclCommFinalize(comm))
    nccl.refused(nccl.ncclCommFinalize(comm), INVALID_ARGUMENT, "finalized")
    nccl.refused(nccl.ncclCommRevoke(comm, 0), INVALID_ARGUMENT, "finalized")
    result = nccl.ncclAllReduce(pointer(buffer), pointer(buffer), size(1), 7, 0, comm, None)
    nccl.refused(result, INVALID_USAGE)
    nccl.check(nccl.ncclCommDestroy(comm))
    comm = nccl.alone()
    nccl.refused(nccl.ncclCommRevoke(comm, 1), INVALID_ARGUMENT, "revokeFlags")
    nccl.check(nccl.ncclCommRevoke(comm, 0))
    nccl.refused(nccl.ncclCommRevoke(comm, 0), INVALID_ARGUMENT, "revoked")
    nccl.refused(nccl.ncclCommFinalize(comm), INVALID_ARGUMENT, "revoked")
    result = nccl.ncclAllReduce(pointer(buffer), pointer(buffer), size(1), 7, 0, comm, None)
    nccl.refused(result, INVALID_USAGE)
    nccl.check(nccl.ncclCommAbort(comm))


def test_suspended_communicators_refuse_work(nccl: Nccl) -> None:
    """Between suspend and resume collectives are refused, with the way out; after it they run."""
    comm = nccl.alone()
    buffer = np.zeros(1, "float32")
    call = (pointer(buffer), pointer(buffer), size(1), 7, 0, comm, None)
    value = ctypes.c_uint64()
    nccl.refused(nccl.ncclCommResume(comm), INVALID_USAGE)
    nccl.check(nccl.ncclCommSuspend(comm, 1))
    nccl.check(nccl.ncclCommMemStats(comm, 1, ctypes.byref(value)))
    assert value.value == 1
    nccl.refused(nccl.ncclAllReduce(*call), INVALID_USAGE, "ncclCommResume")
    nccl.check(nccl.ncclCommResume(comm))
    nccl.check(nccl.ncclAllReduce(*call))
    nccl.check(nccl.ncclCommDestroy(comm))


def test_split(nccl: Nccl) -> None:
    """Ranks are ordered by key, ties by the parent's rank; NCCL_SPLIT_NOCOLOR gives NULL and success."""
    unique_id = nccl.unique_id()

    def rank_main(rank: int) -> tuple[int, int] | None:
        comm = nccl.join(unique_id, 4, rank)
        part = ctypes.c_void_p(0xDEAD)
        color = -1 if rank == 3 else 0
        key = {0: 5, 1: 1, 2: 1, 3: 0}[rank]
        nccl.check(nccl.ncclCommSplit(comm, color, key, ctypes.byref(part), None))
        shape = None
        if part.value is not None:
            new_rank, count = ctypes.c_int(), ctypes.c_int()
            nccl.check(nccl.ncclCommUserRank(part, ctypes.byref(new_rank)))
            nccl.check(nccl.ncclCommCount(part, ctypes.byref(count)))
            shape = (new_rank.value, count.value)
            nccl.check(nccl.ncclCommDestroy(part))
        nccl.check(nccl.ncclCommDestroy(comm))
        return shape

    assert run_as_threads(4, rank_main) == [(2, 3), (0, 3), (1, 3), None]


def test_shrink_and_grow(nccl: Nccl) -> None:
    """Shrinking leaves the ranks that stay; growing adds the one that left. Both communicators work."""
    unique_id = nccl.unique_id()
    growing: list[UniqueId] = []
    made = threading.Event()

    def total(comm: ctypes.c_void_p) -> float:
        buffer = np.ones(8, "float32")
        nccl.check(nccl.ncclAllReduce(pointer(buffer), pointer(buffer), size(8), 7, 0, comm, None))
        return float(buffer[0])

    def rank_main(rank: int) -> list[float]:
        comm = nccl.join(unique_id, 3, rank)
        small, large = ctypes.c_void_p(), ctypes.c_void_p()
        seen = [total(comm)]
        if rank != 1:
            excluded = (ctypes.c_int * 1)(1)
            nccl.check(nccl.ncclCommShrink(comm, excluded, 1, ctypes.byref(small), None, 0))
            seen.append(total(small))
            own = UniqueId()
            if rank == 0:
                nccl.check(nccl.ncclCommGetUniqueId(small, ctypes.byref(own)))
                nccl.refused(nccl.ncclCommGetUniqueId(small, ctypes.byref(own)), INVALID_USAGE, "ncclCommGrow")
                growing.append(own)
                made.set()
            given = ctypes.byref(own) if rank == 0 else None
            nccl.check(nccl.ncclCommGrow(small, 3, given, -1, ctypes.byref(large), None))
            nccl.check(nccl.ncclCommDestroy(small))
        else:
            assert made.wait(60)
            nccl.check(nccl.ncclCommGrow(None, 3, ctypes.byref(growing[0]), 2, ctypes.byref(large), None))
        seen.append(total(large))
        nccl.check(nccl.ncclCommDestroy(large))
        nccl.check(nccl.ncclCommDestroy(comm))
        return seen

    assert run_as_threads(3, rank_main) == [[3.0, 2.0, 3.0], [3.0, 3.0], [3.0, 2.0, 3.0]]


def test_memory_registrations_and_windows(nccl: Nccl) -> None:
    """Memory of the library's own is page-aligned and usable; handles of others, or used twice, are refused."""
    comm = nccl.alone()
    memory, handle, window, address = (ctypes.c_void_p() for _ in range(4))
    nccl.check(nccl.ncclMemAlloc(ctypes.byref(memory), size(10000)))
    assert memory.value and memory.value % 4096 == 0
    ctypes.memset(memory, 0x5A, 10000)
    nccl.check(nccl.ncclCommRegister(comm, memory, size(10000), ctypes.byref(handle)))
    nccl.check(nccl.ncclCommWindowRegister(comm, memory, size(10000), ctypes.byref(window), 1))
    nccl.check(nccl.ncclWinGetUserPtr(comm, window, ctypes.byref(address)))
    assert address.value == memory.value
    nccl.refused(nccl.ncclCommDeregister(comm, window), INVALID_ARGUMENT, "handle")
    nccl.refused(nccl.ncclCommWindowDeregister(comm, handle), INVALID_ARGUMENT, "win")
    nccl.check(nccl.ncclCommDeregister(comm, handle))
    nccl.refused(nccl.ncclCommDeregister(comm, handle), INVALID_ARGUMENT, "handle")
    nccl.check(nccl.ncclCommWindowDeregister(comm, window))
    nccl.refused(nccl.ncclWinGetUserPtr(comm, window, ctypes.byref(address)), INVALID_ARGUMENT, "win")
    odd = ctypes.c_void_p(memory.value + 4)
    result = nccl.ncclCommWindowRegister(comm, odd, size(64), ctypes.byref(window), 0)
    nccl.refused(result, INVALID_ARGUMENT, "4096")
    nccl.refused(nccl.ncclMemFree(odd), INVALID_ARGUMENT)
    nccl.check(nccl.ncclMemFree(memory))
    nccl.check(nccl.ncclMemFree(None))
    nccl.check(nccl.ncclCommDestroy(comm))


def test_device_api_says_why(nccl: Nccl) -> None:
    """What serves kernels is refused with the reason; teams and properties answer for host memory."""
    comm = nccl.alone()
    nccl.refused(nccl.ncclDevCommCreate(comm, None, None), INVALID_USAGE, "device API", "kernels")
    nccl.refused(nccl.ncclGetLsaDevicePointer(None, size(0), 0, None), INVALID_USAGE, "device API")
    nccl.refused(nccl.ncclSignal(0, 0, 0, 0, comm, None), INVALID_USAGE, "ncclSend")
    nccl.refused(nccl.ncclGroupSimulateEnd(None), INVALID_USAGE, "ncclGroupEnd")
    world: Team = nccl.ncclTeamWorld(comm)
    assert (world.ranks, world.rank, world.stride) == (1, 0, 1)
    assert nccl.ncclTeamWorld(None).ranks == 0
    assert nccl.ncclTeamRankToWorld(comm, world, 0) == 0
    assert [nccl.ncclLLA2ACalcSlots(*sizes) for sizes in ((100, 8), (7, 16), (7, 3))] == [100, 14, 7]
    nccl.check(nccl.ncclCommDestroy(comm))


def test_parameters(nccl: Nccl) -> None:
    """Settings are read by name and by handle, as text or as an integer that fits; unknown names are refused."""
    keys, count = ctypes.POINTER(ctypes.c_char_p)(), ctypes.c_int()
    nccl.check(nccl.ncclParamGetAllParameterKeys(ctypes.byref(keys), ctypes.byref(count)))
    names = {keys[i] for i in range(count.value)}
    assert {b"NCCL_DEBUG", b"THESEUS_SLOTS"} <= names
    handle, number, text, length = ctypes.c_void_p(), ctypes.c_int64(), ctypes.c_char_p(), ctypes.c_int()
    nccl.check(nccl.ncclParamBind(ctypes.byref(handle), b"THESEUS_SLOTS"))
    nccl.check(nccl.ncclParamGetI64(handle, ctypes.byref(number)))
    nccl.check(nccl.ncclParamGetStr(handle, ctypes.byref(text)))
    assert text.value is not None and int(text.value) == number.value >= 2
    nccl.check(nccl.ncclParamGetParameter(b"THESEUS_SLOTS", ctypes.byref(text), ctypes.byref(length)))
    assert text.value is not None and len(text.value) == length.value
    nccl.refused(nccl.ncclParamBind(ctypes.byref(handle), b"NCCL_NO_SUCH"), INVALID_ARGUMENT, "NCCL_NO_SUCH")
    assert handle.value is None
    nccl.refused(nccl.ncclParamGetI64(ctypes.c_void_p(8), ctypes.byref(number)), INVALID_ARGUMENT, "handle")


def test_non_blocking(nccl: Nccl) -> None:
    """With blocking = 0, init may return ncclInProgress; ncclCommGetAsyncError tells when all is ready."""
    unique_id = nccl.unique_id()

    def wait(comm: ctypes.c_void_p) -> None:
        state = ctypes.c_int(IN_PROGRESS)
        while state.value == IN_PROGRESS:
            nccl.check(nccl.ncclCommGetAsyncError(comm, ctypes.byref(state)))
        assert state.value == SUCCESS, nccl.last_error(comm)

    def rank_main(rank: int) -> float:
        config = Config.default()
        config.blocking = 0
        comm = ctypes.c_void_p()
        result = nccl.ncclCommInitRankConfig(ctypes.byref(comm), 2, unique_id, rank, ctypes.byref(config))
        assert result in (SUCCESS, IN_PROGRESS)
        wait(comm)
        buffer = np.ones(100, "float32")
        result = nccl.ncclAllReduce(pointer(buffer), pointer(buffer), size(100), 7, 0, comm, None)
        assert result in (SUCCESS, IN_PROGRESS), nccl.last_error()
        wait(comm)
        assert nccl.ncclCommFinalize(comm) in (SUCCESS, IN_PROGRESS)
        wait(comm)
        nccl.check(nccl.ncclCommDestroy(comm))
        return float(buffer.sum())

    assert run_as_threads(2, rank_main) == [200.0, 200.0]
