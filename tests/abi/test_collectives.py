"""Every collective through the C interface, on host memory, with ranks as threads and as processes."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from abi.binding import AVG, INVALID_ARGUMENT, SUM, Nccl, pointer, run_as_threads, size
from abi.exercise import Exercise


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_threads(nccl: Nccl, ranks: int) -> None:
    """Ranks that are threads of one process get what NumPy says, from every collective, type and operator."""
    unique_id = nccl.unique_id()

    def rank_main(rank: int) -> None:
        comm = nccl.join(unique_id, ranks, rank)
        Exercise(nccl, comm, rank, ranks).run()
        nccl.check(nccl.ncclCommDestroy(comm))

    run_as_threads(ranks, rank_main)


def test_processes(nccl: Nccl, folder: Path) -> None:
    """The same with a process a rank, which is how jobs run."""
    unique_id = bytes(nccl.unique_id()).hex()
    script = Path(__file__).with_name("exercise.py")
    workers = [
        subprocess.Popen(
            [sys.executable, script, folder, str(rank), "2", unique_id],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(outputs)


def test_init_all_and_groups(nccl: Nccl) -> None:
    """One thread drives all ranks of ncclCommInitAll, with a group around the calls; devices are those of the list."""
    ranks, count = 3, 10
    comms = (ctypes.c_void_p * ranks)()
    nccl.check(nccl.ncclCommInitAll(comms, ranks, (ctypes.c_int * ranks)(4, 0, 2)))
    device = ctypes.c_int()
    nccl.check(nccl.ncclCommCuDevice(ctypes.c_void_p(comms[0]), ctypes.byref(device)))
    assert device.value == 4
    buffers = [np.full(count, rank + 1, "float64") for rank in range(ranks)]
    nccl.check(nccl.ncclGroupStart())
    for comm, buffer in zip(comms, buffers, strict=True):
        address = pointer(buffer)
        nccl.check(nccl.ncclAllReduce(address, address, size(count), 8, SUM, ctypes.c_void_p(comm), None))
    nccl.check(nccl.ncclGroupEnd())
    for buffer in buffers:
        np.testing.assert_array_equal(buffer, np.full(count, 6.0))
    for comm in comms:
        nccl.check(nccl.ncclCommDestroy(ctypes.c_void_p(comm)))


def test_integer_average(nccl: Nccl) -> None:
    """Avg of integers sums in the type, wrapping round, then divides toward zero: int8 100 + 100 gives -28."""
    unique_id = nccl.unique_id()

    def rank_main(rank: int) -> list[int]:
        comm = nccl.join(unique_id, 2, rank)
        buffer = np.array([100, -1, -1 - rank], "int8")
        nccl.check(nccl.ncclAllReduce(pointer(buffer), pointer(buffer), size(3), 0, AVG, comm, None))
        nccl.check(nccl.ncclCommDestroy(comm))
        return [int(value) for value in buffer]

    assert run_as_threads(2, rank_main) == [[-28, -1, -1]] * 2  # (-1 - 2) / 2 is -1


@pytest.mark.parametrize("residence", [0, 1])
def test_premultiplied_sum(nccl: Nccl, residence: int) -> None:
    """PreMulSum scales each rank's input; residence 0 reads the scalar at the call, 1 when the operator is made."""
    unique_id = nccl.unique_id()

    def rank_main(rank: int) -> list[float]:
        comm = nccl.join(unique_id, 2, rank)
        scalar = ctypes.c_float(rank + 2)
        op = ctypes.c_int()
        nccl.check(nccl.ncclRedOpCreatePreMulSum(ctypes.byref(op), ctypes.byref(scalar), 7, residence, comm))
        assert op.value >= 5
        scalar.value = 10.0
        buffer = np.array([1, 2], "float32")
        doubles = np.zeros(2)
        nccl.refused(
            nccl.ncclAllReduce(pointer(doubles), pointer(doubles), size(2), 8, op, comm, None), INVALID_ARGUMENT
        )
        nccl.check(nccl.ncclGroupStart())
        nccl.check(nccl.ncclAllReduce(pointer(buffer), pointer(buffer), size(2), 7, op, comm, None))
        # The call has captured the operator, so this may come before the group's end.
        nccl.check(nccl.ncclRedOpDestroy(op, comm))
        nccl.check(nccl.ncclGroupEnd())
        nccl.refused(nccl.ncclRedOpDestroy(op, comm), INVALID_ARGUMENT)
        nccl.check(nccl.ncclCommDestroy(comm))
        return [float(value) for value in buffer]

    assert run_as_threads(2, rank_main) == [[20.0, 40.0] if residence == 0 else [5.0, 10.0]] * 2
