"""PyTorch's own ProcessGroupNCCL, unchanged, over our libnccl.so.2, on a machine without a GPU.

Needs a PyTorch that was built with CUDA, in an environment of its own: the project's may be the CPU build. Without
NVIDIA's libraries it is 1 GB:

    python3 -m venv cudatorch
    cudatorch/bin/pip install --no-deps torch==2.14.1  # the CUDA build of PyPI
    cudatorch/bin/pip install filelock typing-extensions sympy networkx jinja2 fsspec numpy
    THESEUS_TEST_TORCH_CUDA_PYTHON=cudatorch/bin/python .venv/bin/python -m pytest tests/abi/test_process_group_nccl.py

CUDA itself is a fake on host memory (fake_cuda/), so our library runs there as THESEUS_DEVICE=host.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).with_name("process_group_nccl.py")
SETTING = "THESEUS_TEST_TORCH_CUDA_PYTHON"
# Not for that Python: settings, and PYTHONPATH or what would keep it from compiling PyTorch's modules once for all.
DROPPED = ("THESEUS_", "NCCL_", "TORCH_", "PYTHON")
# Importing PyTorch takes seconds, on a busy machine many.
PATIENCE = 200.0

pytestmark = pytest.mark.timeout(280)


def _load_builder() -> ModuleType:
    path = Path(__file__).with_name("fake_cuda") / "build.py"
    spec = importlib.util.spec_from_file_location("theseus_fake_cuda_build", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def python() -> str:
    """The Python that has a PyTorch with CUDA, or skip."""
    found = os.environ.get(SETTING)
    if not found:
        pytest.skip(f"{SETTING} names no Python with a CUDA build of PyTorch")
    if shutil.which(found) is None:
        pytest.fail(f"{SETTING}={found} is no program")
    return found


@pytest.fixture(scope="session")
def environment(python: str, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Put the fake CUDA and our library in front of PyTorch."""
    if any(shutil.which(tool) is None for tool in ("cc", "nm", "readelf")):
        pytest.skip("a C compiler (cc) and binutils (nm, readelf) build the fake CUDA, and are not installed")
    find = "import importlib.util; print(importlib.util.find_spec('torch').submodule_search_locations[0])"
    torch = Path(subprocess.run([python, "-c", find], capture_output=True, text=True, check=True).stdout.strip())
    if not (torch / "lib" / "libtorch_cuda.so").exists():
        pytest.skip(f"the PyTorch in {torch} is built without CUDA")
    fake = _load_builder().build(torch, tmp_path_factory.mktemp("fake_cuda"))
    fake["LD_PRELOAD"] += f":{(folder / 'libnccl.so.2').resolve()}"
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(DROPPED)},
        **fake,
        "THESEUS_DEVICE": "host",
        "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "false",
    }


class Job:
    """The ranks of one case. A rank that reads its standard input stays until the others have ended."""

    def __init__(self, python: str, environment: dict[str, str], store: Path, case: Sequence[str], ranks: int) -> None:
        """Start them."""
        self.logs = [store.with_name(f"rank{rank}.txt") for rank in range(ranks)]
        self.ranks = [
            subprocess.Popen(
                [python, str(SCRIPT), case[0], str(rank), str(ranks), str(store), *case[1:]],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log.open("w"),
                stderr=subprocess.STDOUT,
            )
            for rank, log in enumerate(self.logs)
        ]

    def results(self, stays: int | None) -> list[int]:
        """Return how each ended; kills what is left after a while, or after another one's failure."""
        deadline = time.monotonic() + PATIENCE
        try:
            waiting = [rank for rank in range(len(self.ranks)) if rank != stays]
            while waiting and time.monotonic() < deadline:
                time.sleep(0.05)
                waiting = [rank for rank in waiting if self.ranks[rank].poll() is None]
                if any(self.ranks[rank].poll() == 1 for rank in range(len(self.ranks))):
                    deadline = min(deadline, time.monotonic() + 10)
            for process in self.ranks:
                assert process.stdin is not None
                process.stdin.close()
            while stays is not None and self.ranks[stays].poll() is None and time.monotonic() < deadline + 10:
                time.sleep(0.05)
        finally:
            for process in self.ranks:
                process.kill()
        return [process.wait() for process in self.ranks]

    def said(self) -> str:
        """What all ranks wrote."""
        return "\n".join(f"== rank {rank}\n{log.read_text()[-3000:]}" for rank, log in enumerate(self.logs))


class Runner:
    """Runs cases of process_group_nccl.py."""

    def __init__(self, python: str, environment: dict[str, str], folder: Path) -> None:
        """Remember with what."""
        self.python, self.environment, self.folder = python, environment, folder

    def __call__(
        self, ranks: int, *case: str, stays: int | None = None, killed: int | None = None, **more: str
    ) -> None:
        """Run a case; fail the test where a rank does not end well. `killed`: the rank that kills itself."""
        job = Job(self.python, {**self.environment, **more}, self.folder / "store", case, ranks)
        expected = [-9 if rank == killed else 0 for rank in range(ranks)]
        assert job.results(stays) == expected, job.said()


@pytest.fixture
def run(python: str, environment: dict[str, str], tmp_path: Path) -> Runner:
    return Runner(python, environment, tmp_path)


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_collective(run: Runner, ranks: int, mode: str) -> None:
    """All that c10d has, with every type and operator of its own, gives what the CPU says, without a CUDA kernel."""
    run(ranks, "collectives", mode)


def test_non_blocking_communicators(run: Runner) -> None:
    """The same where PyTorch asks for communicators whose calls return at once, and polls."""
    run(2, "collectives", "polled", TORCH_NCCL_USE_COMM_NONBLOCKING="1")


@pytest.mark.parametrize("ranks", [2, 4])
def test_training(run: Runner, ranks: int) -> None:
    """DistributedDataParallel trains as one process with all the data does."""
    run(ranks, "training")


@pytest.mark.parametrize("ranks", [2, 3])
def test_batches_between_collectives(run: Runner, ranks: int) -> None:
    """batch_isend_irecv in an eager group (device_id) and in a part of it."""
    run(ranks, "ring")


@pytest.mark.parametrize("what", ["collective", "batch"])
def test_a_rank_never_comes(run: Runner, what: str) -> None:
    """With THESEUS_TIMEOUT a call gives up, and PyTorch raises what we say."""
    run(2, "never_comes", what, stays=1, THESEUS_TIMEOUT="2")


@pytest.mark.parametrize("what", ["collective", "batch"])
def test_abort_frees_a_waiting_call(run: Runner, what: str) -> None:
    """PyTorch's abort, from another thread."""
    run(2, "abort", what, stays=1)


def test_the_watchdog_ends_a_wait(run: Runner) -> None:
    """PyTorch's watchdog takes a kernel that does not end for a timeout, and aborts our communicator."""
    run(2, "watchdog_wait", stays=1, TORCH_NCCL_BLOCKING_WAIT="1")


def test_the_watchdog_frees_a_waiting_call(run: Runner) -> None:
    """The same, while the caller's thread waits inside a call of ours. 2: PyTorch aborts, and lets the process live."""
    run(2, "watchdog_frees_a_waiting_call", stays=1, TORCH_NCCL_ASYNC_ERROR_HANDLING="2")


def test_a_rank_is_killed(run: Runner) -> None:
    """The survivors are told which."""
    run(3, "killed", killed=2)


def test_different_calls(run: Runner) -> None:
    """An error that names both counts, not a hang."""
    run(2, "mismatch")


def test_shrink(run: Runner) -> None:
    """PyTorch's shrink_group makes a working group of the others."""
    run(3, "shrink", stays=2)
