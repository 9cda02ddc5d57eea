"""How long hierarchical mesh algorithms (HM) take to compile and to prove, from 8 to 4,096 ranks, 8 a host.

Each plan is made and proven in a process of its own, bound to one processor. Seconds are processor time, so that other
work on the machine does not count; "peak" is the most memory that the process has held, Python included. The paper
needed about 11 minutes for 1,024 GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import Result, describe, finish, in_words, parser, table

COLLECTIVES = ("AllGather", "ReduceScatter", "AllReduce")
RANKS_PER_HOST = 8
TARGET_RANKS = 1024
TARGET_SECONDS = 5.0
TARGET_BYTES = 4 << 30
GIB = 1 << 30
T = TypeVar("T")


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if the benchmark could not run."""
    made = parser(__doc__)
    made.add_argument("--most", type=int, help="ranks; 4096 if not given, and 1024 with --quick")
    made.add_argument("--rails", type=int, default=4, help="of a host")
    made.add_argument("--limit", type=float, default=6.0, help="GiB that a process may hold")
    made.add_argument("--patience", type=float, default=120.0, help="seconds of processor time a process may take")
    made.add_argument("--one", nargs=2, metavar=("COLLECTIVE", "RANKS"), help=argparse.SUPPRESS)
    given = made.parse_args()
    if given.one:
        print(json.dumps(_measure(given.one[0], int(given.one[1]), given.rails, given.limit, given.patience)))
        return 0
    machine = describe()
    print(in_words(machine) + f"; {RANKS_PER_HOST} ranks a host, {given.rails} rails")
    most = given.most or (TARGET_RANKS if given.quick else 4096)
    rows, samples, results, failures = [], [], [], []
    for collective in COLLECTIVES:
        before: dict[str, Any] | None = None
        for ranks in _scales(most, given.quick):
            sample = _in_process(collective, ranks, given)
            samples.append(sample)
            rows.append(_row(sample, before))
            print("  ".join(rows[-1]), flush=True)
            if "error" in sample:
                failures.append(f"{collective}, {ranks} ranks: {sample['error']}")
                break
            before = sample
            if ranks == TARGET_RANKS:
                results += _judge(sample)
        if most >= TARGET_RANKS and (before is None or before["ranks"] < TARGET_RANKS):
            results.append(Result(f"{collective}, {TARGET_RANKS} ranks: done", 0, 1, "", at_least=True))
    print()
    for line in failures:
        print(line)
    print(table(["", "ranks", "transfers", "compile", "verify", "x a doubling", "peak", "plan"], rows))
    print()
    return finish(given, machine, results, samples=samples)


def _scales(most: int, quick: bool) -> list[int]:
    scales = [RANKS_PER_HOST << doubling for doubling in range(12) if RANKS_PER_HOST << doubling <= most]
    return scales[::-1][::3][::-1] if quick else scales


def _in_process(collective: str, ranks: int, given: argparse.Namespace) -> dict[str, Any]:
    numbers = ["--rails", str(given.rails), "--limit", str(given.limit), "--patience", str(given.patience)]
    command = [sys.executable, __file__, "--one", collective, str(ranks), *numbers]
    done = subprocess.run(command, capture_output=True, text=True)
    named = {"collective": collective, "ranks": ranks}
    if done.returncode != 0:
        words = done.stderr.strip().splitlines() or [f"ended with {done.returncode}; --patience {given.patience:g} s"]
        memory = f"; --limit {given.limit:g} GiB" if "MemoryError" in words[-1] else ""
        return {**named, "error": words[-1] + memory}
    measured: dict[str, Any] = json.loads(done.stdout)
    return {**named, **measured}


def _measure(collective: str, ranks: int, rails: int, limit: float, patience: float) -> dict[str, Any]:
    """Compile and prove in this process."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    resource.setrlimit(resource.RLIMIT_AS, (int(limit * GIB), int(limit * GIB)))
    resource.setrlimit(resource.RLIMIT_CPU, (int(patience), int(patience) + 1))
    from resccl import LimitError, Plan, Topology, _core

    where = Topology.uniform(-(-ranks // RANKS_PER_HOST), min(ranks, RANKS_PER_HOST), rails).to_dict()
    algorithm = _core.built_in("hm", collective, where)
    data, compile_seconds = _timed(lambda: _core.compile(algorithm, where))
    plan = Plan(data)
    try:
        _, verify_seconds = _timed(lambda: plan.verify(work_limit=1 << 40))
    except LimitError as error:
        return {"error": str(error)}
    return {
        "transfers": len(algorithm["transfers"]),
        "compile": compile_seconds,
        "verify": verify_seconds,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "bytes": len(plan.to_bytes()),
        "thread_blocks": plan.thread_blocks,
    }


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return what work gives, and its seconds; repeated where it is short, since processor time is counted coarsely."""
    before, times = time.process_time(), 0
    while True:
        result = work()
        times += 1
        seconds = time.process_time() - before
        if seconds > 0.2:
            return result, seconds / times


def _row(sample: dict[str, Any], before: dict[str, Any] | None) -> list[str]:
    if "error" in sample:
        return [sample["collective"], str(sample["ranks"]), "", "not done", "", "", "", ""]
    seconds = sample["compile"] + sample["verify"]
    growth = ""
    if before is not None and before["compile"] + before["verify"] > 0:
        doublings = (sample["ranks"] // before["ranks"]).bit_length() - 1
        growth = f"{(seconds / (before['compile'] + before['verify'])) ** (1 / doublings):.2f}"
    return [
        sample["collective"],
        str(sample["ranks"]),
        str(sample["transfers"]),
        f"{sample['compile']:.3f} s",
        f"{sample['verify']:.3f} s",
        growth,
        f"{sample['peak'] / GIB:.2f} GiB",
        f"{sample['bytes'] / (1 << 20):.1f} MiB",
    ]


def _judge(sample: dict[str, Any]) -> list[Result]:
    name = f"{sample['collective']}, {TARGET_RANKS} ranks"
    return [
        Result(f"{name}: compile and verify", sample["compile"] + sample["verify"], TARGET_SECONDS, "s"),
        Result(f"{name}: peak memory", sample["peak"] / GIB, TARGET_BYTES / GIB, "GiB"),
    ]


if __name__ == "__main__":
    sys.exit(main())
