"""Kernel text under NVIDIA's compilers: it compiles, keeps its registers, spills nothing, and is what we meant.

Needs NVRTC and ptxas, from the system or NVIDIA's wheels (nvidia-cuda-nvrtc-cu12, nvidia-cuda-nvcc-cu12), and no GPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from device.nvrtc import Nvrtc, assemble, find_nvrtc, find_ptxas

REPOSITORY = Path(__file__).resolve().parents[2]
DEVICE = REPOSITORY / "csrc" / "device"
GOLDEN = REPOSITORY / "tests" / "golden" / "kernels"
HEADERS = {f"device/{path.name}": path.read_text() for path in [DEVICE / "kernel_abi.h", *sorted(DEVICE.glob("*.cuh"))]}
# Of 128 that each of 512 threads may have. Raise it only where a measured gain pays for it. fp8 converts in software.
REGISTER_BUDGET = 64
FP8_REGISTER_BUDGET = 96

INTERPRETER = """#include "device/interpret.cuh"
using namespace theseus::device;
THESEUS_KERNEL(theseus_interpret, Request, request) {{
  THESEUS_SHARED(Frame, frame);
  interpret<Numbers<Type::{type}, Reduction::{reduction}>, Protocol::{protocol}, true>(request, frame);
}}
"""
# Each width and kind of element, under each protocol.
INTERPRETED = [
    ("Float32", "Sum", "Simple"),
    ("Float32", "Sum", "LL"),
    ("Bfloat16", "Sum", "Simple"),
    ("Float16", "Min", "LL"),
    ("Float64", "Prod", "Simple"),
    ("Int64", "Max", "Simple"),
    ("Uint8", "Sum", "LL"),
    ("Float8e4m3", "Sum", "Simple"),
]
KERNELS = {path.name: path.read_text() for path in sorted(GOLDEN.glob("*.cu"))} | {
    f"interpret {kind} {reduction} {protocol}": INTERPRETER.format(type=kind, reduction=reduction, protocol=protocol)
    for kind, reduction, protocol in INTERPRETED
}


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


@pytest.mark.parametrize("sm", [80, 90, 100])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_keep_to_registers(nvrtc: Nvrtc, ptxas: str, tmp_path: Path, name: str, sm: int) -> None:
    """No spill, no stack, no more registers than the budget; flags and vectors as the protocols need them."""
    ptx = nvrtc.ptx(KERNELS[name], HEADERS, sm)
    usage = assemble(ptxas, ptx, sm, tmp_path)
    assert usage.spill_bytes == 0
    assert usage.stack_bytes == 0
    assert usage.registers <= (FP8_REGISTER_BUDGET if "Float8" in KERNELS[name] else REGISTER_BUDGET)
    assert ".local" not in ptx
    assert "ld.acquire.sys" in ptx
    assert "st.release.sys" in ptx
    if "Protocol::LL" in KERNELS[name]:
        assert "ld.relaxed.sys.global.v2.u64" in ptx
        assert "st.relaxed.sys.global.v2.u64" in ptx
    else:
        assert "ld.global.v4.u32" in ptx
        assert "st.global.v4.u32" in ptx
    # No order by other means : such would cost time, or hide that a flag lacks its own.
    assert "membar" not in ptx
    assert "fence." not in ptx
    assert ".volatile" not in ptx
