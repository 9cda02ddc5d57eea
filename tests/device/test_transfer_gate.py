"""The kernel of transfers under NVIDIA's compilers, as test_kernel_gates.py has the kernels of plans."""

from __future__ import annotations

from pathlib import Path

import pytest
from device.nvrtc import Nvrtc, assemble, find_nvrtc, find_ptxas

DEVICE = Path(__file__).resolve().parents[2] / "csrc" / "device"
HEADERS = {f"device/{path.name}": path.read_text() for path in [DEVICE / "kernel_abi.h", *sorted(DEVICE.glob("*.cuh"))]}
KERNEL = """#include "device/transfer.cuh"
using namespace theseus::device;
THESEUS_KERNEL(theseus_transfer, TransferRequest, request) {
  THESEUS_SHARED(TransferJob, job);
  transfer(request, job);
}
"""
# As measured, rounded up to 8. Raise it only where a measured gain pays for it.
REGISTERS = 56


@pytest.mark.parametrize("sm", [80, 90, 100])
def test_transfers_keep_to_registers(tmp_path: Path, sm: int) -> None:
    """No spill, no stack, no copied parameters, 16-byte accesses, and no order but that of the flags themselves."""
    library, ptxas = find_nvrtc(), find_ptxas()
    if library is None or ptxas is None:
        pytest.skip("no NVRTC or no ptxas: pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-nvcc-cu12")
    ptx = Nvrtc(library).ptx(KERNEL, HEADERS, sm)
    usage = assemble(ptxas, ptx, sm, tmp_path)
    assert usage.spill_bytes == 0
    assert usage.stack_bytes == 0
    assert usage.registers <= REGISTERS
    for wanted in (
        "ld.global.v4.u32",
        "st.global.v4.u32",
        "ld.acquire.sys",
        "st.release.sys",
        "ld.relaxed.sys.global.v2",
    ):
        assert wanted in ptx
    for unwanted in (".local", "membar", "fence.", ".volatile"):
        assert unwanted not in ptx
