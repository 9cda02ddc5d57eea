"""CuPy's NCCL binding over our library: it takes raw pointers, so host memory will do.

Where the project's environment has no CuPy, THESEUS_TEST_CUPY_PYTHON names a Python that has (pip install
cupy-cuda12x).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from abi.binding import VERSION

# Each rank a process: VERSION RANK RANKS ID (hexadecimal; rank 0 makes and prints it).
PROGRAM = """
import sys
import numpy as np
from cupy.cuda import nccl
version, rank, ranks = (int(each) for each in sys.argv[1:4])
assert nccl.get_version() == version, nccl.get_version()
if rank == 0:
    name = nccl.get_unique_id()
    print(name.hex(), flush=True)
else:
    name = bytes.fromhex(sys.stdin.readline())
comm = nccl.NcclCommunicator(ranks, name, rank)
assert (comm.rank_id(), comm.size()) == (rank, ranks)
FLOAT, SUM, COUNT = nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 1000
rows = (np.arange(ranks * COUNT * ranks, dtype="float32") % 7).reshape(ranks, ranks * COUNT)
def at(array):
    return array.ctypes.data
mine, out, large = rows[rank, :COUNT].copy(), np.zeros(COUNT, "float32"), np.zeros(ranks * COUNT, "float32")
total = rows.sum(axis=0)
comm.allReduce(at(mine), at(out), COUNT, FLOAT, SUM, 0)
assert (out == total[:COUNT]).all()
comm.allReduce(at(mine), at(out), COUNT, FLOAT, nccl.NCCL_MAX, 0)
assert (out == rows[:, :COUNT].max(axis=0)).all()
comm.reduce(at(mine), at(out), COUNT, FLOAT, SUM, 1, 0)
assert rank != 1 or (out == total[:COUNT]).all()
comm.broadcast(at(mine), at(out), COUNT, FLOAT, 1, 0)
assert (out == rows[1, :COUNT]).all()
copy = mine.copy()
comm.bcast(at(copy), COUNT, FLOAT, 1, 0)
assert (copy == rows[1, :COUNT]).all()
comm.allGather(at(mine), at(large), COUNT, FLOAT, 0)
assert (large == rows[:, :COUNT].ravel()).all()
comm.reduceScatter(at(rows[rank]), at(out), COUNT, FLOAT, SUM, 0)
assert (out == total[rank * COUNT : (rank + 1) * COUNT]).all()
nccl.groupStart()
comm.send(at(mine), COUNT, FLOAT, (rank + 1) % ranks, 0)
comm.recv(at(out), COUNT, FLOAT, (rank - 1) % ranks, 0)
nccl.groupEnd()
assert (out == rows[rank - 1, :COUNT]).all()
assert comm.check_async_error() is None
try:
    comm.allReduce(at(mine), at(out), COUNT, 77, SUM, 0)
except nccl.NcclError as error:
    assert "invalid argument" in str(error).lower(), error
else:
    raise AssertionError("a type that does not exist was taken")
comm.destroy()
"""


@pytest.fixture(scope="session")
def python() -> str:
    """A Python that has CuPy, or skip."""
    if named := os.environ.get("THESEUS_TEST_CUPY_PYTHON"):
        return named
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed (pip install cupy-cuda12x), and THESEUS_TEST_CUPY_PYTHON names no Python")
    return sys.executable


@pytest.mark.parametrize("ranks", [2, 4])
def test_cupy_communicator(folder: Path, python: str, ranks: int) -> None:
    """Preloaded, our library is the one that CuPy calls; each of its calls works on host pointers."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {**inherited, "LD_PRELOAD": str(folder / "libnccl.so.2"), "THESEUS_DEVICE": "host"}
    processes = [
        subprocess.Popen(
            [python, "-W", "ignore", "-c", PROGRAM, str(VERSION), str(rank), str(ranks)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        assert processes[0].stdout is not None
        unique_id = processes[0].stdout.readline()
        for each in processes[1:]:
            assert each.stdin is not None
            each.stdin.write(unique_id)
            each.stdin.flush()
        outputs = [each.communicate(timeout=200)[1] for each in processes]
    finally:
        for each in processes:
            each.kill()
    assert [each.returncode for each in processes] == [0] * ranks, "\n".join(outputs)
