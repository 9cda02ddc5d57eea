"""CASSINI (NSDI 2024): jobs that share a link start at times chosen so that their communication interleaves.

A job is a circle whose perimeter is its iteration time, compute first and communication after it. For each link the
circles of its jobs are unrolled to a common perimeter, and turned against each other until the least of the
communication overlaps. An affinity graph, of jobs and of the links on which they meet, turns the angles of all links
into one time shift a job. Nothing is prioritised, and the shifts hold only as long as iterations keep their length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from leveller.core.contention import links_of
from leveller.core.model import ClusterView, JobView, Levels

__all__ = ["Cassini"]

#: Pieces that the shortest iteration on a link is cut into: angles of 5 degrees, as CASSINI has them.
_PIECES = 72
#: The longest common perimeter, in shortest iterations: times that have no common multiple are cut off there.
_LONGEST = 60


class Cassini:
    """Fair levels, and time shifts (`shifts`)."""

    name = "cassini"

    def levels(self, view: ClusterView) -> Levels:
        """Returns level 0 for every flow: CASSINI shifts in time and prioritises nothing."""
        return Levels(1, {flow.id: 0 for flow in view.flows})

    def shifts(self, view: ClusterView) -> Mapping[str, float]:
        """Returns for each job how many seconds to delay its next iteration; 0 for one of which too little is known.

        Where the affinity graph has loops, links may ask different things of a job; the first path to it decides, from
        the links with the most jobs on.
        """
        known = {name: job for name, job in view.jobs.items() if job.ideal and job.communicate}
        on_link: dict[str, set[str]] = {}
        for flow in view.flows:
            if flow.job in known:
                for link in links_of(flow):
                    on_link.setdefault(link, set()).add(flow.job)
        groups = sorted({tuple(sorted(jobs)) for jobs in on_link.values() if len(jobs) > 1}, key=lambda g: (-len(g), g))
        turns = [dict(zip(group, turn([known[name] for name in group]), strict=True)) for group in groups]
        return {**dict.fromkeys(view.jobs, 0.0), **_spread(turns, known)}


def _spread(turns: list[dict[str, float]], known: Mapping[str, JobView]) -> dict[str, float]:
    """Walks the affinity graph: a job that has its shift gives theirs to those it meets."""
    shift: dict[str, float] = {}
    waiting = list(turns)
    while waiting:
        link = next((each for each in waiting if shift.keys() & each.keys()), waiting[0])
        waiting.remove(link)
        anchor = next((name for name in sorted(link) if name in shift), min(link))
        base = shift.setdefault(anchor, 0.0) - link[anchor]
        for name, angle in link.items():
            ideal = known[name].ideal
            assert ideal is not None
            shift.setdefault(name, (base + angle) % ideal)
    return shift


def turn(jobs: Iterable[JobView]) -> list[float]:
    """Returns for the jobs on one link the delays, in seconds, with the least overlap found.

    One job after the other is turned to where it meets least of those before it, the one that communicates longest
    first; then each once more, as long as that helps.
    """
    circles = list(jobs)
    unit = min(job.ideal or 1.0 for job in circles) / _PIECES
    lengths = [max(1, round((job.ideal or 1.0) / unit)) for job in circles]
    perimeter = min(math.lcm(*lengths), _LONGEST * _PIECES)
    patterns = [_pattern(job, length, perimeter) for job, length in zip(circles, lengths, strict=True)]
    angles = [0] * len(circles)
    order = sorted(range(len(circles)), key=lambda index: -(circles[index].communicate or 0.0))
    placed: set[int] = set()
    for _ in range(3):
        before = list(angles)
        for index in order:
            others = sum((np.roll(patterns[each], angles[each]) for each in placed - {index}), np.zeros(perimeter))
            costs = [_overlap(others + np.roll(patterns[index], angle)) for angle in range(lengths[index])]
            if index not in placed or costs[angles[index]] > min(costs):
                angles[index] = int(np.argmin(costs))
            placed.add(index)
        if angles == before:
            break
    return [angle * unit for angle in angles]


def _pattern(job: JobView, length: int, perimeter: int) -> NDArray[np.float64]:
    """1 in the pieces of the common circle in which the job communicates."""
    quiet = round(length * (1 - min(1.0, (job.communicate or 0.0) / (job.ideal or 1.0))))
    return (np.arange(perimeter) % length >= quiet).astype(np.float64)


def _overlap(load: NDArray[np.float64]) -> float:
    """What is asked beyond what the link carries."""
    return float(np.maximum(load - 1, 0).sum())
