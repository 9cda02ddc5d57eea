"""Kernel text under NVIDIA's compilers: it compiles, keeps its registers, spills nothing, and is what we meant.

Needs NVRTC and ptxas, from the system or NVIDIA's wheels (nvidia-cuda-nvrtc-cu12, nvidia-cuda-nvcc-cu12), and no GPU;
the package filecheck for what the PTX must hold. Of the built-in set one kernel a plan is checked, and each
architecture has a third of them; KERNEL_GATES=all checks every kernel, of each rank and protocol, for all three.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from device.kernels import Kernel, interpreting_kernels, plan_kernels
from device.nvrtc import Nvrtc, assemble, filecheck, find_nvrtc, find_ptxas, has_filecheck

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = REPOSITORY / "tests" / "golden" / "kernels"
PATTERNS = Path(__file__).resolve().parent / "patterns"
ARCHITECTURES = (80, 90, 100)
EVERY = os.environ.get("KERNEL_GATES") == "all"

# Vectors that a thread has in flight of one source (Units in device/simple.cuh), by the type's name without its width.
UNITS = {"float16": 1, "bfloat16": 1, "float8_e4m3": 1, "float8_e5m2": 1, "int8": 2, "uint8": 2}
UNITS_OF_WIDE_TYPES = 4
# Registers of a thread, of 128 that each of 512 threads may have: the most of the whole built-in set (KERNEL_GATES=all)
# as measured, rounded up to 8. Raise one only where a measured gain pays for it.
REGISTERS = {4: 72, 2: 64, 1: 56}
REGISTERS_LL = 64
REGISTERS_OF_SCALING = 24  # more


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    """Return NVRTC, or skip."""
    library = find_nvrtc()
    if library is None:
        pytest.skip("no NVRTC: pip install nvidia-cuda-nvrtc-cu12, or name the library in NVRTC_LIBRARY")
    return Nvrtc(library)


@pytest.fixture(scope="module")
def ptxas() -> str:
    """Return the path of ptxas, or skip."""
    path = find_ptxas()
    if path is None:
        pytest.skip("no ptxas on PATH: pip install nvidia-cuda-nvcc-cu12")
    return path


def units_of(kernel: Kernel) -> int:
    """Return how many vectors of a source are in flight."""
    return UNITS.get(kernel.type, UNITS_OF_WIDE_TYPES)


def registers_of(kernel: Kernel) -> int:
    """Return the budget."""
    most = REGISTERS_LL if kernel.low_latency else REGISTERS[units_of(kernel)]
    return most + (REGISTERS_OF_SCALING if kernel.scales else 0)


def directions_of(kernel: Kernel) -> list[str]:
    """Return what the kernel has to do with connections: SENDS, RECEIVES; the interpreting one has both."""
    found = {
        "SENDS": re.search(r"\btb\.\w*send\(|\binterpret<", kernel.text),
        "RECEIVES": re.search(r"\btb\.(recv\w*\(|operand\(\d)|\binterpret<", kernel.text),
    }
    return [direction for direction, where in found.items() if where is not None]


def complaints_about(kernel: Kernel, ptx: str, folder: Path) -> list[str]:
    """Return what the PTX has and must not have, or the other way round."""
    # No order by other means: such would cost time, or hide that a flag lacks its own.
    found = [word for word in (".local", "membar", "fence.", ".volatile") if word in ptx]
    complaints = [f"PTX has {word}" for word in found]
    if not has_filecheck():
        return complaints
    file = folder / "checked.ptx"
    file.write_text(ptx)
    checks = [("ll.check", prefix) for prefix in directions_of(kernel)]
    if not kernel.low_latency:
        checks = [("simple.check", "CHECK"), ("simple.check", {1: "ONE", 2: "TWO", 4: "FOUR"}[units_of(kernel)])]
    if "tb.wait(" in kernel.text:
        checks.append(("blocks.check", "WAITS"))
    if re.search(r"\btb\.(?!wait|operand|begin_loop)\w+\(.*, [1-9]\d*\)(;|\) break)", kernel.text):
        checks.append(("blocks.check", "SIGNALS"))
    return complaints + [said for name, prefix in checks if (said := filecheck(file, PATTERNS / name, prefix))]


def check(nvrtc: Nvrtc, ptxas: str, kernel: Kernel, sm: int) -> list[str]:
    """Return what is wrong with a kernel."""
    with tempfile.TemporaryDirectory() as name:
        ptx = nvrtc.ptx(kernel.text, kernel.headers, sm)
        usage = assemble(ptxas, ptx, sm, Path(name))
        complaints = complaints_about(kernel, ptx, Path(name))
    if usage.spill_bytes or usage.stack_bytes:
        complaints.append(f"{usage.spill_bytes} bytes spilled, {usage.stack_bytes} of stack")
    if usage.registers > registers_of(kernel):
        complaints.append(f"{usage.registers} registers, above {registers_of(kernel)}")
    return [f"{kernel.name}, sm_{sm}: {complaint}" for complaint in complaints]


def check_all(nvrtc: Nvrtc, ptxas: str, kernels: Iterable[Kernel], sm: int) -> None:
    """Fail with all complaints. The compilers run side by side."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        complaints = list(pool.map(lambda kernel: check(nvrtc, ptxas, kernel, sm), kernels))
    assert complaints, "nothing was checked"
    assert not (lines := [line for each in complaints for line in each]), "\n".join(lines)


@cache
def generated() -> list[Kernel]:
    """Return the generated kernels that are checked."""
    return list(plan_kernels(EVERY))


@cache
def interpreting() -> list[Kernel]:
    """Return the interpreting kernels that are checked."""
    return list(interpreting_kernels())


def share_of(kernels: list[Kernel], sm: int) -> list[Kernel]:
    """Return those that are checked for one architecture."""
    return kernels if EVERY else kernels[ARCHITECTURES.index(sm) :: len(ARCHITECTURES)]


def test_the_built_in_set_is_covered() -> None:
    """Each type with each reduction, and each protocol, is among the kernels that are checked."""
    kernels = generated()
    assert len({(kernel.type, kernel.reduction) for kernel in kernels}) == 48
    assert {kernel.low_latency for kernel in kernels} == {False, True}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sm", ARCHITECTURES)
class TestGates:
    """No spill, no stack, no more registers than the budget; flags and vectors as the protocols need them."""

    def test_generated_kernels(self, nvrtc: Nvrtc, ptxas: str, sm: int) -> None:
        """Of the built-in set."""
        check_all(nvrtc, ptxas, share_of(generated(), sm), sm)

    def test_interpreting_kernels(self, nvrtc: Nvrtc, ptxas: str, sm: int) -> None:
        """Every type, reduction and protocol."""
        check_all(nvrtc, ptxas, share_of(interpreting(), sm), sm)

    def test_golden_kernels(self, nvrtc: Nvrtc, ptxas: str, sm: int) -> None:
        """The texts in tests/golden are kernels."""
        headers = interpreting()[0].headers
        ring, fold = ((GOLDEN / name).read_text() for name in ("ring_all_reduce_3.cu", "one_shot_all_reduce_3_ll.cu"))
        texts = [
            Kernel("ring", ring, headers, "float32", "sum", low_latency=False, scales=False),
            Kernel("fold", fold, headers, "bfloat16", "max", low_latency=True, scales=True),
        ]
        check_all(nvrtc, ptxas, texts, sm)


@pytest.mark.skipif(not has_filecheck(), reason="no filecheck: pip install filecheck")
def test_patterns_can_fail(tmp_path: Path) -> None:
    """A kernel with one load too few, or a flag without its order, is refused."""
    vector = "ld.global.v4.u32\nst.global.v4.u32\n"
    ptx = tmp_path / "kernel.ptx"
    ptx.write_text("ld.acquire.sys.global.u64\nst.release.sys.global.u64\n" + vector)
    assert filecheck(ptx, PATTERNS / "simple.check") == ""
    assert filecheck(ptx, PATTERNS / "simple.check", "ONE") == ""
    assert filecheck(ptx, PATTERNS / "simple.check", "TWO") != ""
    ptx.write_text("ld.relaxed.sys.global.u64\nst.release.sys.global.u64\n")
    assert filecheck(ptx, PATTERNS / "simple.check") != ""
