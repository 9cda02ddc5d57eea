"""What an agent knows of the jobs on its host. Pure: iterations, flows, levels, time in; reports and marks out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from leveller.core.ideal import IdealTime
from leveller.core.marking import Marking
from leveller.core.model import FiveTuple
from leveller.core.rate import Progress
from leveller.wire import FlowReport, JobReport, Levels, Report

__all__ = ["AgentJobs", "JobFacts"]

#: Durations that make an ideal time.
_ENOUGH = 2


@dataclass(frozen=True)
class JobFacts:
    """What the jobs file says of a job."""

    weight: float = 1.0
    gpus: int = 1
    compute: float | None = None
    communicate: float | None = None
    ideal: float | None = None


@dataclass
class _Job:
    facts: JobFacts
    progress: Progress
    measuring: IdealTime = field(default_factory=IdealTime)
    profiled: bool = False
    measured: int = 0
    started: bool = False


class AgentJobs:
    """The jobs of one host.

    R counts from the first iteration seen. The ideal time is measured while the controller lets the job run alone at
    the top, and kept afterwards; one from the jobs file holds until then.
    """

    def __init__(
        self, facts: Mapping[str, JobFacts], marking: Marking, fallback: float, window: float | None = None
    ) -> None:
        self._facts = facts
        self._marking = marking
        self._fallback = fallback
        self._window = window
        self._jobs: dict[str, _Job] = {}
        self._flows: dict[str, dict[FiveTuple, tuple[str, ...]]] = {}
        self._number = 0
        self._reported: list[FiveTuple] = []
        self._earlier: dict[int, list[FiveTuple]] = {}
        self.marks: dict[FiveTuple, int] = {}
        self._alone_since: float | None = None

    def iteration(self, job: str, step: int, time: float) -> None:
        """Iteration `step` of a job is complete."""
        known = self._job(job)
        if not known.started:
            known.started = True
            known.progress.begin_at(step, time)
        else:
            known.progress.record(step, time)
        if known.profiled:
            known.measuring.record(step, time)

    def flows(self, now: Mapping[str, Mapping[FiveTuple, tuple[str, ...]]]) -> bool:
        """These are the jobs with their flows and paths from now on. Returns whether any came or went."""
        before, self._flows = self._flows, {job: dict(flows) for job, flows in now.items()}
        for job in self._jobs.keys() - now.keys():
            del self._jobs[job]
        for job in now:
            self._job(job)
        alive = {flow for flows in self._flows.values() for flow in flows}
        self.marks = {flow: dscp for flow, dscp in self.marks.items() if flow in alive}
        return before != self._flows

    def report(self, round: int, now: float) -> Report:
        """Returns what to tell the controller."""
        self._number += 1
        jobs = [self._report_of(job, now) for job in sorted(self._flows)]
        self._earlier[self._number] = [flow for job in sorted(self._flows) for flow in self._flows[job]]
        for old in [number for number in self._earlier if number <= self._number - 64]:
            del self._earlier[old]
        return Report(self._number, round, jobs)

    def levels(self, levels: Levels) -> bool:
        """Takes the controller's levels. Returns whether they belong to a report of ours, whose order they have."""
        self._alone_since = None
        flows = self._earlier.get(levels.number)
        if flows is None or len(flows) != len(levels.levels):
            return False
        alive = {flow for each in self._flows.values() for flow in each}
        # The controller may have more levels than we have marks: the lowest ones then share one.
        count = min(levels.count, self._marking.levels)
        self.marks = {
            flow: self._marking.dscp(max(0, level - (levels.count - count)), count)
            for flow, level in zip(flows, levels.levels, strict=True)
            if flow in alive
        }
        self._profile(levels.profiling)
        return True

    def alone(self, now: float) -> bool:
        """The controller is away at `now`. Returns whether it has been so for so long that marks fall back to none."""
        if self._alone_since is None:
            self._alone_since = now
        if now - self._alone_since < self._fallback or not self.marks:
            return False
        self.marks = {}
        return True

    def _job(self, name: str) -> _Job:
        if name not in self._jobs:
            facts = self._facts.get(name, JobFacts())
            self._jobs[name] = _Job(facts, Progress(0.0, facts.ideal, self._window))
        return self._jobs[name]

    def _profile(self, profiling: Iterable[str]) -> None:
        now = set(profiling)
        for name, job in self._jobs.items():
            if name in now and not job.profiled:
                job.profiled = True
                job.measuring.restart()
            elif name not in now and job.profiled:
                job.profiled = False
                if job.measuring.iterations >= _ENOUGH:
                    job.progress.ideal = job.measuring.value
                    job.measured = job.measuring.iterations

    def _report_of(self, name: str, now: float) -> JobReport:
        job, facts = self._jobs[name], self._jobs[name].facts
        flows = [
            FlowReport(flow.protocol, flow.source, flow.source_port, flow.destination, flow.destination_port, path)
            for flow, path in self._flows[name].items()
        ]
        return JobReport(
            name,
            completed=job.progress.completed,
            elapsed=max(0.0, now - job.progress.started) if job.started else 0.0,
            ideal=job.progress.ideal,
            measured=job.measured,
            rate=job.progress.rate(now) if self._window is not None and job.started else None,
            weight=facts.weight,
            gpus=facts.gpus,
            compute=facts.compute,
            communicate=facts.communicate,
            flows=flows,
        )
