"""Iterations of a training run while one NIC is slow, for the variants of failslow.py."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.harness.nic_caps import HEALTHY, Scenario, allowed_seconds, floor
from benchmarks.harness.nic_job import JobError, NicJob
from benchmarks.harness.nic_variants import Variant
from benchmarks.harness.report import format_time, table
from theseus_py.testbed import Shape

# Of an iteration; the rest is the network's.
COMPUTE_SHARE = 2 / 3
STEPS = 3
# Iterations of this many healthy ones are no longer waited for; at a tenth of a NIC it is four.
STALL = 5


@dataclass(frozen=True)
class Plan:
    """What is trained: gradients of so many bytes, and a step's seconds without the network."""

    shape: Shape
    gradient_bytes: int

    @property
    def network(self) -> float:
        """Seconds that healthy NICs need for the gradients."""
        assert self.shape.rate is not None
        return allowed_seconds("all_reduce", self.gradient_bytes, self.shape.hosts, self.shape.nics, self.shape.rate)

    @property
    def compute(self) -> float:
        """Seconds of a step that stand for a GPU's work."""
        return self.network * COMPUTE_SHARE / (1 - COMPUTE_SHARE)

    def floor(self, scenario: Scenario) -> float:
        """Returns the least iteration over that of the healthy cluster."""
        slow = floor("all_reduce", self.shape.hosts, self.shape.nics, scenario.caps)
        return COMPUTE_SHARE + (1 - COMPUTE_SHARE) * slow


class TrainingRuns:
    """Seconds of iterations, by variant and scenario; None where one did not end."""

    def __init__(self, plan: Plan, jobs: Sequence[tuple[Variant, NicJob]]) -> None:
        self._plan = plan
        self._jobs = list(jobs)
        self._order = random.Random(1)
        self.seconds: dict[tuple[str, str], list[float | None]] = {}
        self.losses: dict[str, list[float]] = {}
        self.failed: dict[str, str] = {}

    def round(self, scenarios: Sequence[Scenario]) -> None:
        """Every scenario once on every job."""
        for scenario in [HEALTHY, *(each for each in scenarios if each != HEALTHY)]:
            self._order.shuffle(self._jobs)
            for variant, job in self._jobs:
                if variant.name in self.failed or None in self.seconds.get((variant.name, scenario.name), []):
                    continue
                try:
                    self._measure(variant, job, scenario)
                except JobError as error:
                    self.failed[variant.name] = str(error)

    def iteration(self, variant: str, scenario: Scenario) -> float | None:
        """Returns the median iteration; None without one."""
        ended = [each for each in self.seconds.get((variant, scenario.name), []) if each is not None]
        return median(ended) if ended else None

    def ratio(self, variant: str, scenario: Scenario) -> float | None:
        """Returns the median iteration over the healthy one; None without either."""
        slow, healthy = self.iteration(variant, scenario), self.iteration(variant, HEALTHY)
        return None if slow is None or healthy is None else slow / healthy

    def stalled(self, variant: str, scenario: Scenario) -> bool:
        """Whether an iteration did not end under the caps."""
        return None in self.seconds.get((variant, scenario.name), [])

    def shown(self, scenarios: Sequence[Scenario]) -> str:
        """One row a scenario."""
        names = sorted({name for name, _ in self.seconds})
        rows = []
        for scenario in scenarios:
            cells = [self._cell(name, scenario) for name in names]
            rows.append([scenario.name, f"{self._plan.floor(scenario):.3f}", *cells])
        return table(["iteration", "floor", *names], rows)

    def _cell(self, name: str, scenario: Scenario) -> str:
        seconds, ratio = self.iteration(name, scenario), self.ratio(name, scenario)
        if self.stalled(name, scenario):
            return "does not end"
        return "-" if seconds is None else f"{format_time(seconds)} ({ratio or 0:.3f})"

    def _measure(self, variant: Variant, job: NicJob, scenario: Scenario) -> None:
        job.cap(scenario.caps)
        answers, stalled = self._steps(variant, job, 1 + variant.settles)
        if not stalled:
            answers, stalled = self._steps(variant, job, STEPS)
        job.cap(())
        self._steps(variant, job, 1 + variant.settles)
        if len({answer["weights"] for answer in answers}) != 1:
            raise JobError(f"{variant.name}: the ranks' models differ under '{scenario.name}'")
        kept = self.seconds.setdefault((variant.name, scenario.name), [])
        # A step ends on all ranks with its slowest one.
        slowest = [max(times) for times in zip(*(answer["seconds"] for answer in answers), strict=True)]
        kept.extend([None] if stalled else slowest)
        self.losses.setdefault(variant.name, []).append(answers[0]["loss"])

    def _steps(self, variant: Variant, job: NicJob, count: int) -> tuple[list[dict[str, Any]], bool]:
        healthy = self.iteration(variant.name, HEALTHY) or 5.0
        return job.ask_or_heal({"do": "steps", "count": count}, STALL * healthy * count)
