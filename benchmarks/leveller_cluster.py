"""Training jobs that share one bottleneck of a virtual cluster: how far each comes under LEVELLER, fair share and Crux.

Two leaves and a spine, strict priority at every port, one trunk of 100 Mbit/s; each job has a rank at either leaf,
takes real steps of a real model and sums real gradients, on Theseus or, unchanged, on gloo. A sleep stands for the rest
of the time that a GPU would compute. LEVELLER's controller and agents run as an operator would start them: they find
the jobs by LEVELLER_JOB, read iterations from their logs, probe the paths of their connections, and mark them by
nftables. Fair share and Crux are policies of the same controller. CASSINI is simulated only.

R is measured over a window after a while for settling; what a job would do alone is measured in the same run. Beside it
stands what the fluid model says of these very jobs, from their measured times, and the best that it allows. Jobs whose
times fit each other exactly gain most, and real ones never quite do: R by the model with all times up to 3 % off is
told, too.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.harness import Result, describe, finish, in_words, parser, table
from benchmarks.harness.leveller_bed import BedJob, Cluster, Shape
from leveller.core.baselines.cassini import Cassini
from leveller.core.baselines.crux import Crux
from leveller.core.baselines.fair import FairShare
from leveller.core.levels import LowestRateFirst
from leveller.core.model import LevelPolicy
from leveller.sim import Job, examples, simulate
from leveller.sim.optimum import best

TRUNK, GOODPUT = "100mbit", 100e6 / 8 * 0.956  # bytes a second, headers left out
UNIT = 0.4  # seconds
# Compute and communication of each job, in units.
SETTINGS = {
    2: [(1, 1), (1, 2)],
    3: [(2, 2), (2, 1), (3, 1)],
    4: [(3, 2), (3, 1), (2, 1), (4, 1)],
}
SCHEMES = {"fair": "fair share", "crux": "Crux", "lowest-rate-first": "LEVELLER"}
OURS = "lowest-rate-first"
PERIOD = 0.2  # tau, seconds
OFF, INEXACT = 0.03, 12
WORTH, ELSEWHERE, NEAR, MEAN = 1.05, 0.98, 0.95, 0.90


@dataclass
class Predicted:
    """What the fluid model says: lowest and average R by scheme, and the best lowest R there can be (found; bound).

    inexact: the lowest R under LEVELLER with every time up to 3 % off, the mean of several
    """

    least: dict[str, float]
    mean: dict[str, float]
    found: float
    bound: float
    inexact: float


@dataclass
class Measured:
    """R of each job by scheme and repeat, and what was predicted."""

    backend: str
    jobs: int
    ideals: dict[str, float]
    rates: dict[str, list[dict[str, float]]]
    predicted: Predicted

    def least(self, scheme: str) -> float:
        """The lowest R: the median over repeats."""
        return median(min(rates.values()) for rates in self.rates[scheme])

    def mean(self, scheme: str) -> float:
        """The average R: the median over repeats."""
        return median(sum(rates.values()) / len(rates) for rates in self.rates[scheme])


def predict(jobs: Sequence[BedJob]) -> Predicted:
    """From the jobs' measured ideal times: what is not computing is communication."""
    fluid = [examples.job(job.name, job.shape.compute, max(1e-3, job.ideal - job.shape.compute)) for job in jobs]
    policies: dict[str, LevelPolicy] = {
        "fair": FairShare(),
        "crux": Crux(6),
        "cassini": Cassini(),
        OURS: LowestRateFirst(6),
    }
    duration = 400 * max(job.ideal for job in jobs)
    outcomes = {name: simulate(fluid, examples.LINK, each, duration, period=0.0) for name, each in policies.items()}
    limit = best(fluid, examples.LINK, 150, 6)
    return Predicted(
        {name: each.least for name, each in outcomes.items()},
        {name: each.mean for name, each in outcomes.items()},
        max(limit.found, outcomes[OURS].least),
        limit.bound,
        mean(
            simulate(_inexact(jobs, seed), examples.LINK, LowestRateFirst(6), duration, period=PERIOD).least
            for seed in range(INEXACT)
        ),
    )


def _inexact(jobs: Sequence[BedJob], seed: int) -> list[Job]:
    """The same jobs with each time up to 3 % off."""
    chance = random.Random(seed)
    off = [[chance.uniform(1 - OFF, 1 + OFF) for _ in range(2)] for _ in jobs]
    return [
        examples.job(job.name, job.shape.compute * one, max(1e-3, job.ideal - job.shape.compute) * other)
        for job, (one, other) in zip(jobs, off, strict=True)
    ]


def measure(backend: str, count: int, given: argparse.Namespace) -> Measured:
    """One setting: all schemes in turns, `repeats` times."""
    folder = Path(tempfile.mkdtemp(prefix="leveller-"))
    shapes = [Shape(compute * UNIT, int(sent * UNIT * GOODPUT) // 4 * 4) for compute, sent in SETTINGS[count]]
    try:
        with Cluster(folder, shapes, backend, TRUNK) as cluster:
            cluster.measure_alone(given.alone)
            rates: dict[str, list[dict[str, float]]] = {scheme: [] for scheme in SCHEMES}
            for repeat in range(given.repeats):
                order = list(SCHEMES)
                for scheme in order[repeat % len(order) :] + order[: repeat % len(order)]:
                    rates[scheme].append(cluster.run(scheme, given.period, given.settle, given.window))
                    words = ", ".join(f"{job} {rate:.3f}" for job, rate in rates[scheme][-1].items())
                    print(f"{backend}, {count} jobs, {SCHEMES[scheme]}: {words}", flush=True)
            ideals = {job.name: job.ideal for job in cluster.jobs}
            return Measured(backend, count, ideals, rates, predict(cluster.jobs))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def verdicts(each: Measured) -> list[Result]:
    """What was asked of one setting."""
    name = f"{each.backend}, {each.jobs} jobs: "
    results = []
    for scheme in ("fair", "crux"):
        gain = each.predicted.found / max(each.predicted.least[scheme], 1e-9)
        target = 1.0 if gain >= WORTH else ELSEWHERE
        ratio = each.least(OURS) / max(each.least(scheme), 1e-9)
        results.append(Result(f"{name}lowest R over {SCHEMES[scheme]}'s", ratio, target, "x", at_least=True))
    over_model = each.least(OURS) / each.predicted.found
    results.append(Result(f"{name}lowest R over the model's best", over_model, NEAR, "x", at_least=True))
    ratio = each.mean(OURS) / each.mean("crux")
    results.append(Result(f"{name}average R over Crux's", ratio, MEAN, "x", at_least=True))
    return results


def rows_of(each: Measured) -> list[list[str]]:
    """Measured and predicted, scheme by scheme."""
    rows = []
    for scheme, title in SCHEMES.items():
        predicted = f"{each.predicted.least[scheme]:.3f}", f"{each.predicted.mean[scheme]:.3f}"
        spread = sorted(min(rates.values()) for rates in each.rates[scheme])
        rows.append(
            [
                f"{each.backend}, {each.jobs} jobs, {title}",
                f"{each.least(scheme):.3f}",
                f"{spread[0]:.3f} to {spread[-1]:.3f}",
                f"{each.mean(scheme):.3f}",
                *predicted,
            ]
        )
    simulated = f"{each.predicted.least['cassini']:.3f}", f"{each.predicted.mean['cassini']:.3f}"
    rows.append([f"{each.backend}, {each.jobs} jobs, CASSINI", "-", "-", "-", *simulated])
    inexact = f"{each.predicted.inexact:.3f}"
    rows.append([f"{each.backend}, {each.jobs} jobs, LEVELLER, times 3 % off", "-", "-", "-", inexact, "-"])
    rows.append([f"{each.backend}, {each.jobs} jobs, the best", "-", "-", "-", f"{each.predicted.found:.3f}", "-"])
    return rows


def draw(file: Path, all_measured: Sequence[Measured]) -> None:
    """As the paper's Figure 10: the lowest R solid, the average pale and dashed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    backends = list(dict.fromkeys(each.backend for each in all_measured))
    figure, axes = pyplot.subplots(1, len(backends), figsize=(5 * len(backends), 3.6), sharey=True, squeeze=False)
    for axis, backend in zip(axes[0], backends, strict=True):
        shown = [each for each in all_measured if each.backend == backend]
        for place, (scheme, title) in enumerate(SCHEMES.items()):
            left = [at + (place - 1) * 0.27 for at in range(len(shown))]
            means = [each.mean(scheme) for each in shown]
            axis.bar(left, means, 0.25, color=f"C{place}", alpha=0.3, edgecolor=f"C{place}", linestyle="--")
            axis.bar(left, [each.least(scheme) for each in shown], 0.25, color=f"C{place}", label=title)
        for at, each in enumerate(shown):
            axis.hlines(each.predicted.found, at - 0.45, at + 0.45, color="black", linewidth=1, linestyle=":")
        axis.set_xticks(range(len(shown)), [f"{each.jobs} jobs" for each in shown])
        axis.set_title(backend)
        axis.set_ylim(0, 1.05)
    axes[0][0].set_ylabel("R: lowest (solid), average (pale)")
    axes[0][-1].legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=130)


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if it cannot run here."""
    made = parser(__doc__)
    made.add_argument("--backends", nargs="+", default=None, help="gloo, theseus; default: both")
    made.add_argument("--jobs", nargs="+", type=int, choices=list(SETTINGS), help="settings; default: all")
    made.add_argument("--repeats", type=int, help="5 if not given, 1 with --quick")
    made.add_argument("--window", type=float, help="seconds that R is measured over: 40, or 9 with --quick")
    made.add_argument("--settle", type=float, help="seconds before that: 8, or 2 with --quick")
    made.add_argument("--period", type=float, default=PERIOD, help="tau: seconds between rankings")
    made.add_argument("--png", type=Path, metavar="FILE", help="also draw the paper's Figure 10")
    given = made.parse_args()
    quick = given.quick
    given.repeats = given.repeats or (1 if quick else 5)
    given.window = given.window or (9.0 if quick else 40.0)
    given.settle = given.settle or (2.0 if quick else 8.0)
    given.alone = 4 if quick else 8
    from theseus_py.testbed import missing

    if reasons := missing():
        print(f"no virtual cluster can be made here: {reasons[0]}")
        return 2
    machine = describe()
    print(in_words(machine))
    print("A sleep stands for the time that GPUs would compute; steps, sums and traffic are real.")
    backends = given.backends or (["gloo"] if quick else ["theseus", "gloo"])
    counts = given.jobs or ([2] if quick else list(SETTINGS))
    measured = [measure(backend, count, given) for backend in backends for count in counts]
    heads = ["", "lowest R", "of repeats", "average R", "model: lowest", "average"]
    print(table(heads, [row for each in measured for row in rows_of(each)]) + "\n")
    if given.png is not None:
        draw(given.png, measured)
    results = [result for each in measured for result in verdicts(each)]
    details = [
        {
            "backend": each.backend,
            "jobs": SETTINGS[each.jobs],
            "ideals": each.ideals,
            "rates": each.rates,
            "model": vars(each.predicted),
        }
        for each in measured
    ]
    return finish(given, machine, results, period=given.period, settings=details)


if __name__ == "__main__":
    sys.exit(main())
