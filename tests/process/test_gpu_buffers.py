"""Buffers on GPUs, emulated: arrays and streams of theseus_py.device, and what communicators take and refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from theseus_py import Communicator, create_unique_id, device, errors

TESTS = Path(__file__).resolve().parents[1]
# Where tests/emu keeps the kernels that it compiled: each takes seconds.
KERNELS = TESTS.parent / "build" / "tests" / "kernels"
BODIES = [
    "arrays",
    "memory_goes_back",
    "streams",
    "collectives",
    "stream_order",
    "refusals",
    "pinned",
]


@pytest.mark.parametrize("body", BODIES)
def test_on_emulated_gpus(body: str) -> None:
    """Each body of gpu_bodies.py in a process of its own."""
    path = os.pathsep.join([str(TESTS), *sys.path])
    environment = {**os.environ, "THESEUS_DEVICE": "cuda-emu", "PYTHONPATH": path, "THESEUS_KERNEL_CACHE": str(KERNELS)}
    done = subprocess.run(
        [sys.executable, "-m", "process.gpu_bodies", body],
        env={**environment, "THESEUS_EMU_MEMORY": "256M"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr


class OnGpu:
    """An array that says that it lies on a GPU."""

    __cuda_array_interface__: Any = {  # noqa: RUF012
        "shape": (4,),
        "typestr": "<f4",
        "data": (4096, False),
        "strides": None,
        "version": 3,
    }


def test_communicators_on_the_host_refuse_gpu_memory() -> None:
    """One sentence that names the argument and the way out; nothing is read."""
    with Communicator.init(create_unique_id(), 1, 0) as communicator:
        assert communicator.device is None
        with pytest.raises(errors.InvalidArgument, match=r"all_reduce: send lies in GPU memory.*THESEUS_DEVICE=cuda"):
            communicator.all_reduce(OnGpu(), np.zeros(4, np.float32))
        data = np.ones(4, np.float32)
        communicator.all_reduce(data, stream=12345)  # streams are not looked at there
        assert (data == 1).all()


def test_the_host_has_no_gpus() -> None:
    """Without THESEUS_DEVICE nothing is loaded, and what needs a GPU says what to set."""
    assert device.count() == 0
    with pytest.raises(errors.InvalidUsage, match="THESEUS_DEVICE=cuda"):
        device.empty(4)
