"""How good it can get: bounds on the lowest rate, and the best schedule found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from leveller.core.levels import LowestRateFirst
from leveller.sim.jobs import Job
from leveller.sim.simulate import ideal_time, simulate

__all__ = ["Best", "best", "bound"]


def bound(jobs: Sequence[Job], capacities: Mapping[str, float]) -> float:
    """Returns a rate that the lowest R cannot exceed in the long run, whatever the schedule.

    On each link, jobs of rate R ask for R times the seconds that their iteration needs of it, over their ideal time;
    all together no more than there is. So the lowest R is at most one over the sum of those shares, on every link, and
    at most 1. With one link and jobs of one phase that is LCM / max(total communication, LCM): the paper's lower bound
    of the makespan (Lemma 1, Theorem 1). Weighted jobs: of R over weight.
    """
    asked: dict[str, float] = {}
    highest = min(1.0 / job.weight for job in jobs)
    for job in jobs:
        ideal = ideal_time(job, capacities)
        for phase in job.phases:
            for each in phase.transfers:
                for link in each.path:
                    share = job.weight * each.size / capacities[link] / ideal
                    asked[link] = asked.get(link, 0.0) + share
    return min([highest, *(1.0 / share for share in asked.values())])


@dataclass(frozen=True)
class Best:
    """`bound`: the lowest R is at most that. `found`: that of the best schedule tried. The best lies between."""

    bound: float
    found: float


def best(jobs: Sequence[Job], capacities: Mapping[str, float], iterations: int = 300, tries: int = 12) -> Best:
    """Returns what is possible for the lowest R, measured over `iterations` of the longest ideal time.

    Tried is lowest-rate-first with as many levels as jobs, ranked at once, from different starts: jobs delayed against
    each other by parts of their iterations, since it is the phase between jobs that the rule alone does not choose.
    """
    ideal = [ideal_time(job, capacities) for job in jobs]
    duration = iterations * max(ideal)
    limit = bound(jobs, capacities)
    found = 0.0
    for attempt in range(tries):
        shifted = [
            replace(job, start=job.start + time * ((attempt * (place + 1) * 0.38) % 1.0))
            for place, (job, time) in enumerate(zip(jobs, ideal, strict=True))
        ]
        found = max(found, simulate(shifted, capacities, LowestRateFirst(len(jobs)), duration).least)
        if found >= limit * 0.999:
            break
    return Best(limit, found)
