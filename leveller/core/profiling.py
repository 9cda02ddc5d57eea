"""When which job runs alone at the top, for its ideal iteration time to be measured (paper section 3.4)."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass

__all__ = ["Profiler"]


@dataclass
class _Job:
    due: float
    since: float | None = None  # on trial
    iterations: int = 0


class Profiler:
    """One at a time of the jobs that meet gets the unique highest level, for `iterations` iterations of its own.

    A new job is due at once. After that it is due again at a random time between half and one and a half
    `interval` seconds: semi-stochastic, so that jobs with equal habits do not meet for ever, nor always at the same
    point of their iterations. A job that completes nothing for `limit` seconds gives the place up and stays due.
    """

    def __init__(
        self, iterations: int = 5, interval: float = 600.0, limit: float = 120.0, seed: int | None = 0
    ) -> None:
        if iterations < 2:
            raise ValueError("the first iteration does not count, so a profile takes 2 at least")
        self._iterations = iterations
        self._interval = interval
        self._limit = limit
        self._random = random.Random(seed)
        self._jobs: dict[str, _Job] = {}

    @property
    def profiling(self) -> frozenset[str]:
        """The jobs that run alone at the top now."""
        return frozenset(name for name, job in self._jobs.items() if job.since is not None)

    def update(
        self, now: float, completed: Mapping[str, int], measured: Collection[str], meets: Mapping[str, Collection[str]]
    ) -> frozenset[str]:
        """Returns the jobs that are profiled from now on.

        completed: iterations of each job there is
        measured: jobs whose ideal time is known already, which makes a new one due later, not at once
        meets: jobs that share a link with one
        """
        for name in self._jobs.keys() - completed.keys():
            del self._jobs[name]
        for name in sorted(completed.keys() - self._jobs.keys()):
            self._jobs[name] = _Job(due=self._next(now) if name in measured else now)
        for name, job in self._jobs.items():
            self._end_if_over(name, job, now, completed[name])
        for name, job in sorted(self._jobs.items(), key=lambda item: (item[1].due, item[0])):
            if job.since is None and job.due <= now and not self.profiling & set(meets.get(name, ())):
                job.since, job.iterations = now, completed[name]
        return self.profiling

    def _end_if_over(self, name: str, job: _Job, now: float, completed: int) -> None:
        if job.since is None:
            return
        if completed - job.iterations >= self._iterations:
            job.since, job.due = None, self._next(now)
        elif now - job.since >= self._limit:
            # It goes to the end of the queue: others may be waiting for the same links.
            job.since, job.due = None, now + self._limit * self._random.uniform(0.5, 1.5)

    def _next(self, now: float) -> float:
        return now + self._interval * self._random.uniform(0.5, 1.5)
