"""Which parts there are, on which sizes, and how long each may take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.runner import Part

CONTRACT = (
    "devices",
    "memory",
    "pinned memory",
    "ipc",
    "streams",
    "events",
    "graphs",
    "modules",
    "launches",
    "peers",
    "errors",
)
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "alltoall",
    "gather",
    "scatter",
    "sendrecv",
)
BEHAVIOURS = 5  # behaviour.CHECKS; nothing here may load the library
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Plan:
    """What is to be checked. `build` holds the C++ tests, if they were built."""

    emulated: bool
    quick: bool
    gpus: int
    build: Path

    @property
    def sizes(self) -> list[int]:
        if self.emulated:
            return [8, 64 * _KIB] if self.quick else [8, 4 * _KIB, 256 * _KIB]
        if self.quick:
            return [8, _MIB, 256 * _MIB]
        return [8, 4 * _KIB, 64 * _KIB, _MIB, 16 * _MIB, 256 * _MIB, _GIB]

    @property
    def patience(self) -> float:
        """Seconds that one size is timed."""
        if self.emulated:
            return 0.02
        return 0.1 if self.quick else 0.3

    def limit(self, seconds: float) -> float:
        """A part's time; the emulator's kernels take seconds to compile, once."""
        return seconds * (8 if self.emulated else 1)


def parts_of(plan: Plan) -> Iterator[Part]:
    """All parts, the ones that the others stand on first."""
    for group in CONTRACT:
        yield Part(f"contract: {group}", "benchmarks.gpu.contract", "run_group", plan.limit(20), {"group": group})
    kind = "emulator" if plan.emulated else "real"
    tests = {"program": str(plan.build / "tests" / "test_drivers"), "kind": kind}
    yield Part("contract: C++ tests", "benchmarks.gpu.contract", "run_tests", plan.limit(25), tests)
    for number in range(BEHAVIOURS):
        yield Part("behaviour", "benchmarks.gpu.behaviour", "run", plan.limit(15), {"number": number})
    yield from _bandwidth(plan)
    for ranks in (2,) if plan.quick or plan.emulated else (2, 4):
        for collective in COLLECTIVES:
            arguments: dict[str, Any] = {"collective": collective, "sizes": plan.sizes, "ranks": ranks}
            arguments |= {"patience": plan.patience}
            yield Part(f"{ranks} ranks on a GPU", "benchmarks.gpu.collectives", "one_gpu", plan.limit(12), arguments)
    yield from _processes_and_nccl(plan)
    yield from _kernels(plan)


def _bandwidth(plan: Plan) -> Iterator[Part]:
    sizes = [64 * _KIB, _MIB] if plan.emulated else [16 * _MIB, 256 * _MIB, _GIB]
    yield Part(
        "ceiling", "benchmarks.gpu.bandwidth", "ceilings", plan.limit(15), {"sizes": sizes, "patience": plan.patience}
    )
    size = _MIB if plan.emulated else 256 * _MIB
    arguments = {"size": size, "patience": plan.patience}
    yield Part("TBs of a copy", "benchmarks.gpu.bandwidth", "copy_blocks", plan.limit(15), arguments)
    lanes = [1, 2, 4] if plan.emulated else [1, 2, 4, 8, 16, 32]
    yield Part(
        "TBs of a plan", "benchmarks.gpu.bandwidth", "plan_blocks", plan.limit(20), {**arguments, "lanes": lanes}
    )


def _processes_and_nccl(plan: Plan) -> Iterator[Part]:
    collectives = ["all_reduce"] if plan.emulated and plan.quick else ["all_reduce", "all_gather", "alltoall"]
    arguments: dict[str, Any] = {"ranks": 2, "sizes": "1024,65536", "collectives": collectives}
    yield Part("2 processes", "benchmarks.gpu.collectives", "processes", plan.limit(25), arguments)
    if plan.emulated:
        return
    yield Part("NCCL", "benchmarks.gpu.collectives", "nccl_on_one_gpu", plan.limit(20), {"ranks": 2})
    if plan.gpus < 2:
        return
    for collective in COLLECTIVES:
        arguments = {"collective": collective, "sizes": plan.sizes, "patience": plan.patience}
        yield Part(f"{plan.gpus} GPUs", "benchmarks.gpu.collectives", "one_each", plan.limit(20), arguments)


def _kernels(plan: Plan) -> Iterator[Part]:
    sizes = [8, 64 * _KIB] if plan.emulated else [8, 64 * _KIB, _MIB, 64 * _MIB]
    collectives = ["all_reduce"] if plan.emulated or plan.quick else ["all_reduce", "all_gather", "alltoall"]
    seconds = plan.limit(20)
    arguments: dict[str, Any] = {"collectives": collectives, "sizes": sizes, "ranks": 2, "patience": plan.patience}
    yield Part(
        "generated kernels",
        "benchmarks.gpu.kernel_modes",
        "generated_against_interpreted",
        2 * seconds + 2,
        {**arguments, "seconds": seconds},
    )
    if not plan.emulated:
        tools = ["memcheck"] if plan.quick else ["memcheck", "racecheck"]
        arguments = {"tools": tools, "collectives": ["all_reduce"], "ranks": 2, "seconds": 20.0}
        yield Part("sanitizer", "benchmarks.gpu.kernel_modes", "sanitize", 20.0 * len(tools) + 2, arguments)
