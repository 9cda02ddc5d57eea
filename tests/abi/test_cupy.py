"""CuPy's NCCL binding over our library: it takes raw pointers, so host memory will do."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from abi.binding import VERSION

PROGRAM = """
import sys, threading
import numpy as np
from cupy.cuda import nccl
assert nccl.get_version() == int(sys.argv[1]), nccl.get_version()
name, buffers = nccl.get_unique_id(), [np.full(1000, rank + 1, "float32") for rank in range(2)]
def rank_main(rank):
    comm = nccl.NcclCommunicator(2, name, rank)
    address = buffers[rank].ctypes.data
    comm.allReduce(address, address, 1000, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0)
    comm.destroy()
threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert all((buffer == 3).all() for buffer in buffers)
"""


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed (pip install cupy-cuda12x)")
def test_cupy_communicator(folder: Path) -> None:
    """Preloaded, our library is the one that CuPy calls, and its communicators work on host pointers."""
    environment = {**os.environ, "LD_PRELOAD": str(folder / "libnccl.so.2")}
    command = [sys.executable, "-c", PROGRAM, str(VERSION)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
