"""The simulation: jobs go round their phases, and a policy gives their flows levels, now and then."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import flowsim
from leveller.core.baselines.cassini import Cassini
from leveller.core.model import ClusterView, Flow, JobView, LevelPolicy
from leveller.core.slack import slackened
from leveller.sim.jobs import Job, Phase

__all__ = ["Interval", "Outcome", "ideal_time", "simulate"]


@dataclass(frozen=True)
class Interval:
    """What a job did from `start` to `end`: "compute", "send" (all it could get), "share" (less), "wait" (nothing)."""

    job: str
    kind: str
    start: float
    end: float


@dataclass
class Outcome:
    """What came of it.

    ended: when each iteration of a job was complete, in seconds from 0
    over: jobs that did all their iterations
    """

    duration: float
    ideal: Mapping[str, float]
    started: Mapping[str, float]
    ended: dict[str, list[float]]
    rankings: int = 0
    over: frozenset[str] = frozenset()
    timeline: list[Interval] = field(default_factory=list)

    def rate(self, job: str) -> float:
        """Returns R over the job's whole life: up to the end of the simulation, or to its last iteration."""
        return self.rate_over(job, self.started[job], self._end(job))

    def rate_over(self, job: str, begin: float, end: float) -> float:
        """Returns R over a stretch of time: iterations completed in it, over those there would be alone."""
        if end <= begin:
            return 0.0
        return sum(begin < each <= end for each in self.ended[job]) * self.ideal[job] / (end - begin)

    def _end(self, job: str) -> float:
        return self.ended[job][-1] if job in self.over and self.ended[job] else self.duration

    @property
    def rates(self) -> dict[str, float]:
        """R of every job."""
        return {job: self.rate(job) for job in self.ideal}

    @property
    def least(self) -> float:
        """The lowest R."""
        return min(self.rates.values())

    @property
    def mean(self) -> float:
        """The average R."""
        return sum(self.rates.values()) / len(self.ideal)


class _Event(Enum):
    BEGIN = 0  # a job's first iteration
    COMPUTED = 1
    BESIDE = 2
    SLACK = 3
    RANK = 4


@dataclass
class _Running:
    job: Job
    flows: dict[tuple[str, ...], int]  # number in flowsim of each path
    ideal: float = 0.0
    phase: int = 0
    pending: int = 0  # transfers, and the computing beside them
    slack_until: float = -math.inf
    began: float = 0.0
    over: bool = False
    computing_from: float | None = None


def ideal_time(job: Job, capacities: Mapping[str, float]) -> float:
    """Returns the seconds of an iteration of a job that has the network for itself."""
    once = replace(job, start=0.0, iterations=1)
    ended = _Simulation([once], capacities, None, math.inf, {job.id: 1.0}).run().ended[job.id]
    return ended[0]


def simulate(
    jobs: Sequence[Job],
    capacities: Mapping[str, float],
    policy: LevelPolicy,
    duration: float,
    *,
    period: float = 0.0,
    slack: bool = False,
    timeline: bool = False,
) -> Outcome:
    """Lets `jobs` share links of `capacities` (bytes a second, by name) for `duration` seconds under a policy.

    period: tau, seconds between rankings; 0 ranks whenever an iteration ends
    slack: flows that computing hides go last as long as it does
    timeline: keep what each job did when
    CASSINI's time shifts delay the first iterations. Raises ValueError for links that are not there, and jobs of one
    name.
    """
    if len({job.id for job in jobs}) < len(jobs):
        raise ValueError("two jobs have one name")
    for job in jobs:
        for path in job.paths():
            for link in path:
                if link not in capacities:
                    raise ValueError(f"job {job.id} crosses link {link}, which is not there")
    ideal = {job.id: ideal_time(job, capacities) for job in jobs}
    simulation = _Simulation(jobs, capacities, policy, duration, ideal, period, slack, timeline)
    return simulation.run()


class _Simulation:
    def __init__(
        self,
        jobs: Sequence[Job],
        capacities: Mapping[str, float],
        policy: LevelPolicy | None,
        duration: float,
        ideal: Mapping[str, float],
        period: float = 0.0,
        slack: bool = False,
        timeline: bool = False,
    ) -> None:
        self._capacities, self._policy, self._duration, self._period = capacities, policy, duration, period
        self._slack = slack
        self._keep = timeline
        network = flowsim.Network()
        numbers = {name: network.add_link(capacity) for name, capacity in capacities.items()}
        self._jobs: list[_Running] = []
        self._owner: list[_Running] = []
        self._flows: list[Flow] = []
        for job in jobs:
            running = _Running(job, {}, ideal[job.id])
            for path in job.paths():
                running.flows[path] = network.add(flowsim.Flow([numbers[link] for link in path], 0.0))
                self._owner.append(running)
                self._flows.append(Flow(f"{job.id}/{len(running.flows) - 1}", job.id, path))
            self._jobs.append(running)
        self._level = [0] * len(self._flows)
        self._count = 1
        self._live = network.live()
        self._events: list[tuple[float, int, _Event, int]] = []
        self._number = 0
        self._now = 0.0
        shifts = policy.shifts(self._view()) if isinstance(policy, Cassini) else {}
        started = {job.id: job.start for job in jobs}
        self._outcome = Outcome(duration, ideal, started, {job.id: [] for job in jobs})
        for place, job in enumerate(jobs):
            self._at(job.start + shifts.get(job.id, 0.0), _Event.BEGIN, place)
        self._kinds: dict[str, tuple[str, float]] = {}

    def run(self) -> Outcome:
        """Goes from event to event; what happens at one instant is done before levels are given."""
        self._rank()
        if self._period > 0 and self._policy is not None:
            self._at(self._period, _Event.RANK, -1)
        while not all(running.over for running in self._jobs):
            upcoming = min(self._live.next(), self._events[0][0] if self._events else math.inf)
            if upcoming > self._duration:
                break
            if upcoming == math.inf:
                raise ValueError("nothing goes on: a link has no capacity")
            self._step(max(upcoming, self._now))
        end = min(self._duration, self._now) if math.isinf(self._duration) else self._duration
        self._note(end, last=True)
        self._outcome.over = frozenset(running.job.id for running in self._jobs if running.over)
        return self._outcome

    def _step(self, now: float) -> None:
        self._now = now
        ends = 0
        for flow in self._live.advance(now):
            ends += self._part_done(self._owner[flow])
        rank = False
        while self._events and self._events[0][0] <= now * (1 + 1e-12):
            _, _, event, place = heapq.heappop(self._events)
            if event is _Event.RANK:
                rank = True
                self._at(now + self._period, _Event.RANK, -1)
            elif event is _Event.BEGIN:
                self._begin(self._jobs[place])
                ends += 1
            elif event is _Event.COMPUTED:
                self._communicate(self._jobs[place])
                ends += self._part_done(self._jobs[place])
            elif event is _Event.BESIDE:
                ends += self._part_done(self._jobs[place])
            else:
                self._apply(self._jobs[place])
        if rank or (ends and self._period == 0):
            self._rank()
        self._note(now)

    def _at(self, time: float, event: _Event, place: int) -> None:
        heapq.heappush(self._events, (time, self._number, event, place))
        self._number += 1

    def _begin(self, running: _Running) -> None:
        phase = running.job.phases[running.phase]
        running.pending = 1
        running.computing_from = self._now
        self._at(self._now + phase.compute, _Event.COMPUTED, self._jobs.index(running))

    def _communicate(self, running: _Running) -> None:
        """The phase's computing is done. One of `pending` stands for that itself."""
        phase = running.job.phases[running.phase]
        running.began = self._now
        running.computing_from = None
        running.pending += len(phase.transfers) + (phase.beside > 0)
        place = self._jobs.index(running)
        if phase.beside > 0:
            running.computing_from = self._now
            self._at(self._now + phase.beside, _Event.BESIDE, place)
            self._give_slack(running, phase, place)
        for each in phase.transfers:
            self._live.start(running.flows[each.path], each.size)
        if self._slack:
            self._apply(running)

    def _give_slack(self, running: _Running, phase: Phase, place: int) -> None:
        spare = phase.beside - phase.alone(self._capacities)
        running.slack_until = self._now + spare
        if self._slack and spare > 0:
            self._at(running.slack_until, _Event.SLACK, place)

    def _part_done(self, running: _Running) -> int:
        """Returns 1 if that ended an iteration."""
        running.pending -= 1
        if running.pending > 0:
            return 0
        running.phase += 1
        if running.phase < len(running.job.phases):
            self._begin(running)
            return 0
        running.phase = 0
        ended = self._outcome.ended[running.job.id]
        ended.append(self._now)
        if running.job.iterations is not None and len(ended) >= running.job.iterations:
            running.over = True
        else:
            self._begin(running)
        return 1

    def _view(self) -> ClusterView:
        jobs = {running.job.id: self._job_view(running) for running in self._jobs if not running.over}
        return ClusterView(self._now, jobs, [flow for flow in self._flows if flow.job in jobs])

    def _job_view(self, running: _Running) -> JobView:
        job, elapsed = running.job, self._now - running.job.start
        done = len(self._outcome.ended[job.id]) if self._now > 0 else 0
        return JobView(
            job.id,
            rate=done * running.ideal / elapsed if elapsed > 0 else None,
            weight=job.weight,
            ideal=running.ideal,
            compute=job.computing(),
            communicate=job.communicating(self._capacities),
            gpus=job.gpus,
        )

    def _rank(self) -> None:
        if self._policy is None:
            return
        self._outcome.rankings += 1
        levels = self._policy.levels(self._view())
        self._count = levels.count
        for number, flow in enumerate(self._flows):
            self._level[number] = levels.of.get(flow.id, 0)
        for running in self._jobs:
            self._apply(running)

    def _apply(self, running: _Running) -> None:
        window = running.slack_until - running.began
        for number in running.flows.values():
            level = self._level[number]
            if self._slack and window > 0:
                level = slackened(level, running.began, window, self._now)
            self._live.set_priority(number, self._count - 1 - level)

    def _note(self, now: float, last: bool = False) -> None:
        """Keeps what each job does from now on, where that is another thing than before."""
        if not self._keep:
            return
        for running in self._jobs:
            kind = "" if last or running.over else self._kind(running)
            before, since = self._kinds.get(running.job.id, ("", 0.0))
            if kind != before:
                if before and now > since:
                    self._outcome.timeline.append(Interval(running.job.id, before, since, now))
                self._kinds[running.job.id] = (kind, now)

    def _kind(self, running: _Running) -> str:
        moving = [number for number in running.flows.values() if self._live.left(number) > 0]
        if not moving:
            return "compute" if running.computing_from is not None else "idle"
        rates = [self._live.rate(number) for number in moving]
        if max(rates) <= 0:
            return "wait"
        path = self._flows[moving[rates.index(max(rates))]].path
        return "send" if sum(rates) >= 0.999 * min(self._capacities[link] for link in path) else "share"
