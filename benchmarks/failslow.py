"""How much slower collectives get when one NIC gets slow, or several, while a job runs.

Hosts are network namespaces of this machine (`theseus testbed`), with four NICs of 200 Mbit/s each. Every variant is a
job of its own that stays, on a testbed of its own; they take turns, in an order that changes. A slowdown is the median
time over that of the same variant on healthy NICs. Beside it stands the floor: what no schedule could undercut. Results
are compared with exact integers in every run.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import Result, describe, finish, format_size, format_time, in_words, parse_size, parser
from benchmarks.harness.nic_caps import COLLECTIVES, FRACTIONS, HEALTHY, Scenario, allowed_seconds, scenarios
from benchmarks.harness.nic_job import JobError, NicJob
from benchmarks.harness.nic_report import LABELS, Measured, bytes_table, draw, slowdown_table
from benchmarks.harness.nic_training import STEPS, Plan, TrainingRuns
from benchmarks.harness.nic_variants import ADAPTED, GIVEN, GLOO, Variant, known_variants, plan_for
from theseus_py.testbed import Shape, missing, parse_rate

QUICK_FRACTIONS = (1.0, 0.5, 0.1)
TRAINING_FRACTIONS = (1.0, 0.1, 0.0)
HEALTHY_TARGET = 95.0
TRAINING_TARGET = 1.06
# A run of this many times its healthy time is no longer waited for, and one of half of it is measured once.
STALL = 16
HOPELESS = 5


def arguments() -> argparse.Namespace:
    """The command line, with the defaults of --quick filled in."""
    made = parser(None)
    made.description = (__doc__ or "").split("\n")[0]
    made.add_argument("--ranks-per-host", type=int, default=1, metavar="L", help="ranks on each of the four hosts")
    made.add_argument(
        "--bytes", type=parse_size, help="of a collective; 64M if not given, 32M for several ranks a host"
    )
    made.add_argument("--rate", default="200mbit", help="of each NIC, in each direction")
    made.add_argument("--rounds", type=int, help="5 if not given; with --quick 2, and 1 of training")
    made.add_argument("--fractions", type=float, nargs="+", metavar="P", help="what is left of one NIC")
    made.add_argument("--single", action="store_true", help="leave out the rows with several slow NICs, and recovery")
    made.add_argument("--variants", nargs="+", metavar="NAME", choices=[each.name for each in known_variants()])
    made.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=list(COLLECTIVES))
    made.add_argument("--png", type=Path, metavar="FILE", help="also draw the slowdowns")
    made.add_argument("--training", action="store_true", help="instead, iterations of a DDP training run")
    given = made.parse_args()
    given.rounds = given.rounds or ((1 if given.training else 2) if given.quick else 5)
    usual = (64 << 20) if given.ranks_per_host == 1 else (32 << 20)
    given.bytes = given.bytes or (16 << 20 if given.quick or given.training else usual)
    if not given.fractions:
        given.fractions = TRAINING_FRACTIONS if given.training else QUICK_FRACTIONS if given.quick else FRACTIONS
    given.single = given.single or given.quick
    return given


class Comparison:
    """The jobs of all variants, and what they measured."""

    def __init__(self, given: argparse.Namespace, shape: Shape, jobs: dict[str, tuple[Variant, NicJob]]) -> None:
        self._given = given
        self._jobs = jobs
        self._order = random.Random(1)
        self._loaded: set[tuple[str, str, str]] = set()
        self.measured = Measured(shape)
        self.failed: dict[str, str] = {}

    def warm(self) -> None:
        """One call of each kind that does not count: connections are made when first used."""
        for name, (_, job) in self._jobs.items():
            try:
                for collective in self._given.collectives:
                    job.run(collective, self._given.bytes)
            except JobError as error:
                self.failed[name] = str(error)

    def round(self, chosen: list[Scenario]) -> None:
        """Every scenario once, the healthy first: its times say how long the others are waited for."""
        later = [scenario for scenario in chosen if scenario != HEALTHY]
        self._order.shuffle(later)
        for scenario in [HEALTHY, *later]:
            names = [name for name in self._jobs if name not in self.failed]
            self._order.shuffle(names)
            for name in names:
                try:
                    self._measure(*self._jobs[name], scenario)
                except JobError as error:
                    self.failed[name] = str(error)

    def _measure(self, variant: Variant, job: NicJob, scenario: Scenario) -> None:
        collectives = [each for each in self._given.collectives if self._worthwhile(variant, scenario, each)]
        self._order.shuffle(collectives)
        if scenario.recovering and collectives:
            job.cap(scenario.recovering)
            self._settle(variant, job, collectives)
        job.cap(scenario.caps)
        self._settle(variant, job, collectives)
        for collective in collectives:
            plan = self._plan(variant, job, scenario, collective)
            run = job.run(collective, self._given.bytes, plan, self._limit(variant, collective))
            self.measured.add(variant.name, scenario, collective, run)
        job.cap(())

    def _settle(self, variant: Variant, job: NicJob, collectives: list[str]) -> None:
        """Calls that do not count: what adapts, adapts to what it sees."""
        enough = time.monotonic() + variant.settle_seconds
        rounds = 0
        while rounds < variant.settles or (collectives and time.monotonic() < enough):
            for collective in collectives:
                job.run(collective, self._given.bytes, None, self._limit(variant, collective))
            rounds += 1

    def _plan(self, variant: Variant, job: NicJob, scenario: Scenario, collective: str) -> str | None:
        if not variant.plans or not scenario.caps:
            return None
        name = f"{scenario.name} {collective}"
        if (variant.name, scenario.name, collective) not in self._loaded:
            shape, locals_ = self.measured.shape, self._given.ranks_per_host
            job.load(name, plan_for(collective, self._given.bytes, shape, locals_, scenario.caps))
            self._loaded.add((variant.name, scenario.name, collective))
            job.run(collective, self._given.bytes, name, self._limit(variant, collective))  # opens its connections
        return name

    def _limit(self, variant: Variant, collective: str) -> float:
        healthy = self.measured.seconds(variant.name, HEALTHY, collective)
        return 60.0 if healthy is None else max(2.0, STALL * healthy)

    def _worthwhile(self, variant: Variant, scenario: Scenario, collective: str) -> bool:
        """What takes many times as long needs no second run: its spread is nothing beside its distance. Where something
        is done about the caps, that is no rule but a mishap.
        """
        if variant.settles > 0:
            return True
        if scenario.recovering:
            return False
        if self.measured.stalled(variant.name, scenario, collective):
            return False
        slowdown = self.measured.slowdown(variant.name, scenario, collective)
        return slowdown is None or slowdown < HOPELESS


def results_of(measured: Measured, given: argparse.Namespace, chosen: list[Scenario], names: list[str]) -> list[Result]:
    """What has a target: the healthy NICs' use, and the slowdown of what adapts, over the floor."""
    results = []
    shape = measured.shape
    assert shape.rate is not None
    for collective in given.collectives:
        allowed = allowed_seconds(collective, given.bytes, shape.hosts, shape.nics, shape.rate)
        for name in names:
            seconds = measured.seconds(name, HEALTHY, collective)
            if seconds is not None and name != GLOO:
                title = f"{LABELS[collective]}, healthy, {name}"
                results.append(Result(title, 100 * allowed / seconds, HEALTHY_TARGET, "% of the NICs", at_least=True))
    for name in (GIVEN, ADAPTED):
        for scenario in chosen:
            for collective in given.collectives:
                target = scenario.target(collective)
                slowdown = measured.slowdown(name, scenario, collective)
                if measured.stalled(name, scenario, collective):
                    slowdown = float("inf")
                if target is not None and slowdown is not None:
                    title = f"{LABELS[collective]}, {scenario.name}, {name}"
                    ratio = slowdown / measured.floor(scenario, collective)
                    results.append(Result(title, ratio, target, "x the floor"))
    return results


def available(given: argparse.Namespace) -> list[Variant]:
    """The variants to measure; prints why others are left out."""
    chosen = []
    for variant in known_variants():
        if (given.variants and variant.name not in given.variants) or (given.training and variant.plans):
            continue
        lacking = variant.missing()
        if lacking is not None:
            print(f"left out: {variant.name}: {lacking}")
        else:
            print(f"{variant.name}: {variant.meaning}")
            chosen.append(variant)
    return chosen


def train(given: argparse.Namespace, shape: Shape) -> int:
    """Measures iterations of a training run and shows them; the exit status."""
    machine = describe()
    plan = Plan(shape, given.bytes)
    chosen = scenarios(given.fractions, more=False)
    setup = (
        f"{shape.describe()}; DDP with {format_size(plan.gradient_bytes)}B of gradients; a step computes for "
        f"{format_time(plan.compute)}, most of it a sleep that stands for a GPU's work"
    )
    print(f"{in_words(machine)}; {setup}; medians of {given.rounds} x {STEPS} steps")
    with ExitStack() as stack:
        jobs = [
            (variant, stack.enter_context(variant.train(shape, plan.gradient_bytes, plan.compute)))
            for variant in available(given)
        ]
        runs = TrainingRuns(plan, jobs)
        for number in range(given.rounds):
            runs.round(chosen)
            progress(number, given.rounds)
    print(f"\n{runs.shown(chosen)}\n")
    for name, reason in runs.failed.items():
        print(f"{name} failed: {reason}")
    results = []
    for scenario in chosen:
        ratio = float("inf") if runs.stalled(ADAPTED, scenario) else runs.ratio(ADAPTED, scenario)
        if ratio is not None and scenario != HEALTHY:
            results.append(Result(f"iteration, {scenario.name}, {ADAPTED}", ratio, TRAINING_TARGET, "x healthy"))
    samples = [{"variant": key[0], "scenario": key[1], "seconds": seconds} for key, seconds in runs.seconds.items()]
    status = finish(given, machine, results, setup=setup, samples=samples, losses=runs.losses)
    return 2 if runs.failed else status


def progress(number: int, rounds: int) -> None:
    """Says on standard error how far it is."""
    print(f"\rround {number + 1} of {rounds}", end="\n" * (number + 1 == rounds), file=sys.stderr, flush=True)


def compare(given: argparse.Namespace, shape: Shape) -> int:
    """Measures all variants and shows them; the exit status."""
    machine = describe()
    chosen = scenarios(given.fractions, more=not given.single)
    setup = f"{shape.describe()}, {given.ranks_per_host} rank(s) a host, {format_size(given.bytes)}B of float32"
    print(f"{in_words(machine)}; {setup}; medians of {given.rounds}")
    with ExitStack() as stack:
        jobs: dict[str, tuple[Variant, NicJob]] = {}
        for variant in available(given):
            job = variant.start(shape, given.bytes, given.ranks_per_host)
            jobs[variant.name] = (variant, stack.enter_context(job))
        comparison = Comparison(given, shape, jobs)
        comparison.warm()
        for number in range(given.rounds):
            comparison.round(chosen)
            progress(number, given.rounds)
    names = list(jobs)
    measured = comparison.measured
    for collective in given.collectives:
        print(f"\n{slowdown_table(measured, collective, chosen, names)}")
    if "all_reduce" in given.collectives:
        print(f"\n{bytes_table(measured, chosen, names)}")
    print()
    for name, reason in comparison.failed.items():
        print(f"{name} failed: {reason}")
    if given.png is not None:
        draw(given.png, measured, chosen, {name: variant.meaning for name, (variant, _) in jobs.items()})
    samples = [
        {"variant": key[0], "scenario": key[1], "collective": key[2], **asdict(run)}
        for key, runs in measured.runs.items()
        for run in runs
    ]
    status = finish(given, machine, results_of(measured, given, chosen, names), setup=setup, samples=samples)
    return 2 if comparison.failed else status


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if the benchmark could not run."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    given = arguments()
    lacking = [line for line in missing() if not line.startswith("strict priorities")]
    if lacking:
        print("\n".join(lacking), file=sys.stderr)
        return 2
    try:
        shape = Shape(4, 4, parse_rate(given.rate))
        return train(given, shape) if given.training else compare(given, shape)
    except JobError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
