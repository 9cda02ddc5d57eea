"""How fast flowsim simulates a large network, and how far it is from SimGrid, which is trusted.

100,000 flows in coflows that start together run on a fat tree of 1,024 hosts: once as 25 coflows of 4,000, one after
the other, and once as 10 jobs of 25 coflows of 400, so that up to 4,000 are under way. Every flow ends at a time of its
own, and each end is an event. Then random networks run in both simulators.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

if not __package__:
    # Not this folder: in it, this file would be what `import flowsim` finds.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

import flowsim
from benchmarks.harness import Result, describe, finish, in_words, parser
from benchmarks.peers import simgrid_flows

HOSTS, BANDWIDTH, MEAN_BYTES = 1024, 12.5e9, 64e6
MOST_SECONDS, MOST_DIFFERENCE = 60.0, 1.0


def shuffles(jobs: int, coflows: int, width: int) -> flowsim.Network:
    """Jobs side by side, each a row of coflows of `width` flows between random hosts.

    A coflow starts when all of the one before it has ended.
    """
    random = np.random.default_rng(1)
    tree = flowsim.fat_tree(HOSTS, BANDWIDTH)
    before: list[int | None] = [None] * jobs
    for _ in range(coflows):
        for job in range(jobs):
            src = random.integers(0, HOSTS, width)
            dst = (src + random.integers(1, HOSTS, width)) % HOSTS
            after = None if before[job] is None else np.full((width, 1), before[job])
            paths = tree.paths(src, dst, random.integers(0, tree.routes, width))
            flows = tree.network.add_flows(paths, random.exponential(MEAN_BYTES, width), after=after)
            before[job] = tree.network.add(flowsim.Task(0.0, after=flows.tolist()))
    return tree.network


def measure(jobs: int, coflows: int, width: int) -> tuple[float, flowsim.Result]:
    """Processor seconds of a run, which uses one core, and its result."""
    network = shuffles(jobs, coflows, width)
    start = time.process_time()
    result = network.run()
    return time.process_time() - start, result


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if the benchmark could not run."""
    made = parser(__doc__)
    made.add_argument("--scenarios", type=int, help="random networks: 30 if not given, and 5 with --quick")
    given = made.parse_args()
    scenarios = given.scenarios or (5 if given.quick else 30)
    machine = describe()
    print(in_words(machine) + "; processor seconds")
    results, samples = [], {}
    # A fifth of the coflows cost a fifth of the time, as each starts on an empty network.
    parts = 5 if given.quick else 1
    for jobs, coflows, width in ((1, 25, 4000), (10, 25, 400)):
        seconds, outcome = measure(jobs, coflows // parts, width)
        flows = jobs * coflows * width
        name = f"{flows:,} flows in coflows of {width:,}, {jobs} at once"
        name += f" ({parts} x {flows // parts:,})" if parts > 1 else ""
        results.append(Result(name, seconds * parts, MOST_SECONDS, "s"))
        samples[name] = {
            "seconds": seconds,
            "events": outcome.instants,
            "microseconds_an_event": seconds / outcome.instants * 1e6,
            "rates_changed_an_event": outcome.rate_changes / outcome.instants,
        }
        print(
            f"{name}: {seconds / outcome.instants * 1e6:.0f} us an event, at which "
            f"{outcome.rate_changes / outcome.instants:.0f} rates change"
        )
    if simgrid_flows.installed():
        try:
            worst = max(simgrid_flows.worst_difference(seed) for seed in range(scenarios))
        except simgrid_flows.SimGridFailed as error:
            print(error, file=sys.stderr)
            return 2
        name = f"largest difference from SimGrid in {scenarios} random networks"
        results.append(Result(name, worst * 100, MOST_DIFFERENCE, "%"))
    else:
        print("missing: SimGrid (pip install simgrid; it needs Boost's headers and pybind11 < 3)")
    return finish(given, machine, results, samples=samples)


if __name__ == "__main__":
    sys.exit(main())
