"""LEVELLER's paper in numbers: its worked examples, simulated, against the rates it gives.

R is measured over 1,500 times the longest ideal iteration time from a common start, the transient included.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.harness import Result, describe, finish, in_words, parser, table
from leveller.core.baselines.crux import Crux
from leveller.core.baselines.fair import FairShare
from leveller.core.levels import LowestRateFirst
from leveller.core.model import LevelPolicy
from leveller.sim import Job, examples, simulate
from leveller.sim.optimum import bound

MOST_ERROR = 0.5  # per cent
LENGTH, LENGTH_QUICK = 1500, 400
FAIR, STATIC, LOWEST = FairShare(), Crux(4), LowestRateFirst(4)


def cases() -> list[tuple[str, list[Job], LevelPolicy, float, list[float]]]:
    """Name, jobs, policy, tau, and R of each job as the paper says."""
    two, three = examples.two(), examples.three()
    return [
        ("two jobs, fair share", two, FAIR, 0, [0.75, 0.75]),
        ("two jobs, static priority", two, STATIC, 0, [1, 0.75]),
        ("two jobs, lowest R first", two, LOWEST, 0, [6 / 7, 6 / 7]),
        ("two jobs, lowest R first, tau = 4", two, LOWEST, 4, [6 / 7, 6 / 7]),
        ("three jobs, fair share", three, FAIR, 0, [0.5, 0.5, 2 / 3]),
        ("three jobs, lowest R first", three, LOWEST, 0, [0.6, 0.6, 0.6]),
    ]


def figure_6() -> tuple[Mapping[object, int], int]:
    """The levels of Figure 6's flows, and how many of them differ from the paper's."""
    levels = LowestRateFirst(2).levels(examples.figure_6()).of
    right = {"f1": 1, "f22": 1, "f21": 0, "f3": 0, "f4": 0}
    return levels, sum(levels[flow] != level for flow, level in right.items())


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed."""
    given = parser(__doc__).parse_args()
    length = LENGTH_QUICK if given.quick else LENGTH
    machine = describe()
    print(in_words(machine))
    rows, results, details = [], [], []
    for name, jobs, policy, tau, expected in cases():
        duration = length * max(job.phases[0].compute + job.phases[0].transfers[0].size for job in jobs)
        rates = simulate(jobs, examples.LINK, policy, duration, period=tau).rates
        error = max(abs(rate / right - 1) for rate, right in zip(rates.values(), expected, strict=True)) * 100
        rows.append(
            [
                name,
                ", ".join(f"{rate:.4f}" for rate in rates.values()),
                ", ".join(f"{rate:.4f}" for rate in expected),
                f"{bound(jobs, examples.LINK):.4f}",
            ]
        )
        results.append(Result(name, error, MOST_ERROR, "% off"))
        details.append({"case": name, "rates": rates, "expected": expected})
    levels, wrong = figure_6()
    results.append(Result("Figure 6, two levels", wrong, 0, "flows on another level"))
    print(table(["", "R", "paper", "bound of the lowest R"], rows))
    print(f"Figure 6: {', '.join(f'{flow} on level {level}' for flow, level in levels.items())}\n")
    return finish(given, machine, results, cases=details, figure_6={str(flow): level for flow, level in levels.items()})


if __name__ == "__main__":
    sys.exit(main())
