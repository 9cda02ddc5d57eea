"""How long a generated kernel takes from its text to a cubin, by NVRTC, and back from the folder of compiled kernels.

Seconds of processor time, medians, since other work on the machine stretches the time that passes, which stands beside
them. The last column is what an empty kernel with the same headers takes: a floor that no text of ours can get below,
and a measure of how fast the machine just was. Needs NVRTC, and no GPU.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import Result, describe, finish, in_words, parser, table

TARGET_COMPILE = 150.0  # ms
TARGET_LOAD = 5.0
# An algorithm, the ranks of one host, and what its kernels are made for here.
PLANS = [("AllReduce", "ring", 2), ("AllReduce", "ring", 8), ("AllReduce", "direct", 8), ("AllReduce", "one_shot", 4)]
PLANS += [("AllReduce", "tree", 8), ("AllGather", "ring", 8), ("AllToAll", "pairwise", 8)]
PAIRS = [("float32", "sum"), ("bfloat16", "sum"), ("float16", "sum"), ("float8_e4m3", "sum"), ("float8_e5m2", "max")]
PAIRS += [("float64", "prod"), ("int64", "max"), ("uint8", "min"), ("bfloat16", "max")]


@dataclass
class Sample:
    """One compilation, in ms."""

    processor: float
    passed: float
    floor: float  # processor time of the empty kernel just before


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if the benchmark could not run."""
    made = parser(__doc__)
    made.add_argument("--repetitions", type=int, help="9 if not given, and 3 with --quick")
    made.add_argument("--sm", type=int, default=90, help="architecture: 80, 90, 100")
    given = made.parse_args()
    repetitions = given.repetitions or (3 if given.quick else 9)
    try:
        from theseus_py import _core, errors
    except ImportError as error:
        print(f"{error}: build the package first (make)", file=sys.stderr)
        return 2
    try:
        compiler = _core.KernelCompiler()
    except errors.TheseusError as error:
        print(error, file=sys.stderr)
        return 2
    machine = describe()
    print(in_words(machine) + f"; NVRTC {compiler.version / 1000:.2f}, sm_{given.sm}; medians of {repetitions}")
    rows, results, samples = [], [], []
    for name, text in _texts(_core, given.quick):
        taken = _compile(compiler, text, given.sm, repetitions)
        load = _load(_core, compiler, text, given.sm, repetitions)
        processor, floor = median(each.processor for each in taken), median(each.floor for each in taken)
        ratio = median(each.processor / each.floor for each in taken)
        passed = median(each.passed for each in taken)
        samples.append({"kernel": name, "load_ms": load, "samples": [vars(each) for each in taken]})
        rows.append([name, f"{processor:.0f}", f"{passed:.0f}", f"{load:.2f}", f"{floor:.0f}", f"{ratio:.1f}"])
        results += [Result(f"{name}: compiled", processor, TARGET_COMPILE, "ms")]
        results += [Result(f"{name}: loaded", load, TARGET_LOAD, "ms")]
    print()
    print(table(["ms", "compiled", "passed", "from disk", "empty", "times empty"], rows))
    print()
    return finish(given, machine, results, samples=samples)


def _texts(core: Any, quick: bool) -> Iterator[tuple[str, Any]]:
    """The first plan for every pair, the others for the first; the kernel of rank 0."""
    for index, (collective, algorithm, ranks) in enumerate(PLANS[:3] if quick else PLANS):
        plan = _plan(collective, algorithm, ranks)
        for type_, reduction in PAIRS if index == 0 else PAIRS[:1]:
            for low_latency in (False, True):
                text = core.plan_kernel(plan, 0, type_, reduction, low_latency)
                if text is not None:
                    protocol = "LL" if low_latency else "Simple"
                    yield f"{collective} {algorithm} {ranks}, {type_} {reduction} {protocol}", text


def _plan(collective: str, algorithm: str, ranks: int) -> bytes:
    from resccl import _core as resccl

    topology = {"host_of_rank": [0] * ranks, "rails": 1}
    built = resccl.built_in(algorithm, collective, topology)
    return resccl.compile(built, topology, allocation="state_based_apart", fuse=built["chunks"] == 1, rank=0)


def _clocked(work: Callable[[], object]) -> tuple[float, float]:
    """Return the milliseconds of this process, and those that passed."""
    passed, processor = time.perf_counter(), time.process_time()
    work()
    return (time.process_time() - processor) * 1e3, (time.perf_counter() - passed) * 1e3


def _compile(compiler: Any, text: Any, sm: int, repetitions: int) -> list[Sample]:
    gc.collect()
    taken = []
    empty = text.emptied()
    for _ in range(repetitions + 1):
        floor, _passed = _clocked(lambda: compiler.compile(empty, sm))
        processor, passed = _clocked(lambda: compiler.compile(text, sm))
        taken.append(Sample(processor, passed, floor))
    return taken[1:]  # the first one loads the compiler


def _load(core: Any, compiler: Any, text: Any, sm: int, repetitions: int) -> float:
    """Return the milliseconds from a text to its image, found on disk."""
    with tempfile.TemporaryDirectory() as folder:
        files = core.KernelFiles(folder)
        image = compiler.compile(text, sm)
        files.store(compiler.key(text, sm), image)
        times = []
        for _ in range(repetitions):
            processor, _passed = _clocked(lambda: files.load(compiler.key(text, sm)))
            times.append(processor)
        if files.load(compiler.key(text, sm)) != image:
            raise RuntimeError("the folder of compiled kernels gives another image than it was given")
    return median(times)


if __name__ == "__main__":
    sys.exit(main())
