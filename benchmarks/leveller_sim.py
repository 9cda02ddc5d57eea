"""LEVELLER on 200 clusters made by chance: how far the lowest R stays above half of the optimum (Theorem 1).

Clusters of 1,024 GPUs in two tiers, in the shape of the trace that Crux released: more than 30 jobs at once, about 36 %
of them contended. The optimum itself is hard to find, so the lowest R is compared with a bound that no schedule beats:
the ratio to the optimum is at least as good. Beside it the baselines, and fewer levels.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from benchmarks.harness import Result, describe, finish, in_words, parser, table
from leveller.core.baselines.cassini import Cassini
from leveller.core.baselines.crux import Crux
from leveller.core.baselines.fair import FairShare
from leveller.core.levels import LowestRateFirst
from leveller.core.model import LevelPolicy
from leveller.sim import simulate
from leveller.sim.clusters import generate
from leveller.sim.optimum import bound

PERIOD, ITERATIONS = 10.0, 150
OURS = "LEVELLER, 8 levels"
SCHEMES = ("fair share", "Crux, 8 levels", "CASSINI", "LEVELLER, 2 levels", "LEVELLER, 4 levels", OURS)


def policy_of(scheme: str) -> LevelPolicy:
    """A fresh policy by its name in the table."""
    policies: dict[str, LevelPolicy] = {
        "fair share": FairShare(),
        "Crux, 8 levels": Crux(8),
        "CASSINI": Cassini(),
        "LEVELLER, 2 levels": LowestRateFirst(2),
        "LEVELLER, 4 levels": LowestRateFirst(4),
        OURS: LowestRateFirst(8),
    }
    return policies[scheme]


@dataclass(frozen=True)
class Found:
    """One cluster: jobs, the share contended, the bound, and by scheme the lowest and the average R."""

    seed: int
    jobs: int
    contended: float
    bound: float
    least: dict[str, float]
    mean: dict[str, float]


def study(task: tuple[int, int, int]) -> Found:
    """Simulates one cluster under every scheme; 150 of the longest iterations."""
    seed, gpus, iterations = task
    cluster = generate(seed, gpus)
    outcomes = {
        scheme: simulate(cluster.jobs, cluster.capacities, policy_of(scheme), 4.0 * iterations, period=PERIOD)
        for scheme in SCHEMES
    }
    return Found(
        seed,
        len(cluster.jobs),
        cluster.contended(),
        bound(cluster.jobs, cluster.capacities),
        {scheme: outcome.least for scheme, outcome in outcomes.items()},
        {scheme: outcome.mean for scheme, outcome in outcomes.items()},
    )


def rows_of(found: Sequence[Found]) -> list[list[str]]:
    """By scheme: the ratio to the bound at its worst and in the middle, and R."""
    rows = []
    for scheme in SCHEMES:
        ratios = np.array([each.least[scheme] / each.bound for each in found])
        rows.append(
            [
                scheme,
                f"{ratios.min():.3f}",
                f"{np.quantile(ratios, 0.05):.3f}",
                f"{np.median(ratios):.3f}",
                f"{np.mean([each.least[scheme] for each in found]):.3f}",
                f"{np.mean([each.mean[scheme] for each in found]):.3f}",
            ]
        )
    return rows


def draw(file: Path, found: Sequence[Found]) -> None:
    """The lowest R over the bound, cluster by cluster, as a distribution."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 3.6))
    for scheme in SCHEMES:
        ratios = sorted(each.least[scheme] / each.bound for each in found)
        axis.plot(ratios, np.linspace(0, 1, len(ratios)), label=scheme)
    axis.axvline(0.5, color="black", linestyle=":", linewidth=1)
    axis.set_xlabel("lowest R over the bound of the optimum (dotted: Theorem 1)")
    axis.set_ylabel("share of clusters")
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file, dpi=130)


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed."""
    made = parser(__doc__)
    made.add_argument("--clusters", type=int, help="200 if not given, 20 with --quick")
    made.add_argument("--gpus", type=int, default=1024, help="of each cluster")
    made.add_argument("--png", type=Path, metavar="FILE", help="also draw the distributions")
    given: argparse.Namespace = made.parse_args()
    count = given.clusters or (20 if given.quick else 200)
    machine = describe()
    print(in_words(machine))
    tasks = [(seed, given.gpus, 40 if given.quick else ITERATIONS) for seed in range(count)]
    with ProcessPoolExecutor(2) as pool:
        found = []
        for each in pool.map(study, tasks):
            found.append(each)
            if len(found) % 50 == 0:
                print(f"{len(found)} of {count} clusters", flush=True)
    jobs, contended = np.mean([each.jobs for each in found]), np.mean([each.contended for each in found])
    print(f"{count} clusters of {given.gpus} GPUs: {jobs:.0f} jobs at once, {100 * contended:.0f} % contended")
    heads = ["", "lowest R over bound: worst", "5 %", "median", "lowest R", "average R"]
    print(table(heads, rows_of(found)) + "\n")
    if given.png is not None:
        draw(given.png, found)
    worst = min(each.least[OURS] / each.bound for each in found)
    gain = np.mean([each.least[OURS] for each in found])
    results = [Result("lowest R over the optimum's bound, the worst cluster", worst, 0.5, "x", at_least=True)]
    for scheme in ("fair share", "Crux, 8 levels", "CASSINI"):
        ratio = float(gain / np.mean([each.least[scheme] for each in found]))
        results.append(Result(f"mean lowest R over {scheme}'s", ratio, 1.0, "x", at_least=True))
    return finish(given, machine, results, clusters=[vars(each) for each in found])


if __name__ == "__main__":
    sys.exit(main())
