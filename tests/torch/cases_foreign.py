"""One test of PyTorch's own distributed suite, run by the ranks of a Pool. Used by run_foreign.py.

The suite chooses its CPU cases by the name "gloo"; so it is told that it drives gloo, and gets our groups instead.
"""

from __future__ import annotations

import datetime
import os
import sys
import types
import unittest
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from theseus_py.torch.backend import ProcessGroupTheseus


class StandIn(ProcessGroupTheseus):
    """Made where torch makes a ProcessGroupGloo."""

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta) -> None:
        super().__init__(store, rank, size, timeout, name="foreign")
        self.options = types.SimpleNamespace(_timeout=timeout)


def suite() -> Any:
    """Import the suite; it reads its settings from the environment while it is imported."""
    os.environ.setdefault("BACKEND", "gloo")
    os.environ.setdefault("TEMP_DIR", "/nowhere")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("WORLD_SIZE", str(dist.get_world_size() if dist.is_initialized() else 3))
    from torch.testing._internal import common_distributed

    # It asks for eight ranks; the cases need three.
    common_distributed.skip_if_small_worldsize = lambda function: function
    from torch.testing._internal.distributed import distributed_test

    if "ForeignTest" not in globals():
        base = distributed_test.DistributedTest._DistTestBase
        globals()["ForeignTest"] = type("ForeignTest", (distributed_test.TestDistBackend, base), {})
    return distributed_test


def names() -> list[str]:
    """The names of all tests of the suite."""
    suite()
    return sorted(name for name in dir(globals()["ForeignTest"]) if name.startswith("test_"))


def case_load() -> None:
    """Import the suite; it takes long, and is no test's fault."""
    suite()


def case_run(name: str, folder: str, rank: int) -> str:
    """Run one test; return "" or the reason why it was skipped. Failures raise."""
    module = suite()
    os.environ["TEMP_DIR"] = folder
    # For the cases that start again over env://: the same on all ranks.
    os.environ["MASTER_PORT"] = str(20000 + zlib.crc32(folder.encode()) % 10000)
    if dist.is_initialized():
        dist.destroy_process_group()
    distributed_c10d.ProcessGroupGloo = StandIn
    # Events in the profiler are torch's own backends' affair: they are made in C++, with a flag that Python cannot set.
    module.PROFILING_SUPPORTED_BACKENDS.clear()
    module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.clear()
    # In the suite every test has fresh processes, and so the same random numbers on all ranks.
    torch.manual_seed(0)
    test = globals()["ForeignTest"](name)
    test.rank = rank
    test.file_name = str(Path(folder) / "store")
    module.Barrier.barrier_id = 0
    dist.init_process_group(
        "gloo",
        init_method=test.init_method,
        world_size=int(os.environ["WORLD_SIZE"]),
        rank=rank,
        timeout=datetime.timedelta(seconds=module.CUSTOM_PG_TIMEOUT.get(name, 30)),
    )
    test._barrier()
    try:
        getattr(test, name)()
    except NameError as missing:
        if "torchvision" not in str(missing):
            raise
        return "skipped: torchvision is not installed"
    except unittest.SkipTest as skip:
        return f"skipped: {skip}"
    except SystemExit as leave:
        return skip_reason(leave.code)
    test._barrier()
    return ""


def skip_reason(code: Any) -> str:
    """The suite's tests skip by leaving the process with a code of their own."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    for skip in TEST_SKIPS.values():
        if skip.exit_code == code and code != 0:
            return f"skipped: {skip.message}"
    raise AssertionError(f"the test left with status {code}")


if __name__ == "__main__":
    sys.stdout.write("\n".join(names()))
