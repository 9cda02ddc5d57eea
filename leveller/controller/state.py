"""What the controller knows and decides. Pure: reports, losses and the time in; levels out.

Nothing here has to survive: a controller that starts anew learns all from the next reports, since agents count
iterations and keep ideal times themselves, and until then agents keep the levels they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leveller.core.model import ClusterView, FiveTuple, Flow, JobView, LevelPolicy, Levels
from leveller.core.profiling import Profiler
from leveller.wire import FlowReport, JobReport, Marked, Report
from leveller.wire import Levels as LevelsMessage

__all__ = ["ControllerState", "Host", "flow_of"]


def flow_of(report: FlowReport) -> FiveTuple:
    """Returns a flow's name."""
    return FiveTuple(report.protocol, report.source, report.source_port, report.destination, report.destination_port)


@dataclass
class Host:
    """An agent and what it said last."""

    report: Report | None = None
    heard: float = 0.0
    marked: Marked = field(default_factory=lambda: Marked(0, 0))
    pushed: LevelsMessage | None = None


class ControllerState:
    """Merges what agents report, and gives levels by a policy.

    A job has processes on several hosts: the one that counted most iterations tells how it does, all tell its flows.
    """

    def __init__(self, policy: LevelPolicy, profiler: Profiler | None = None) -> None:
        self._policy = policy
        self._profiler = profiler
        self.hosts: dict[str, Host] = {}
        self.rounds = 0
        self._view = ClusterView(0.0, {}, [])
        self._levels = Levels(1, {})

    @property
    def policy(self) -> str:
        """Its name."""
        return self._policy.name

    def join(self, host: str, now: float) -> None:
        """An agent connected; it replaces an earlier connection of its host."""
        self.hosts[host] = Host(heard=now)

    def gone(self, host: str) -> None:
        """It is gone: what it reported does not count any more."""
        self.hosts.pop(host, None)

    def report(self, host: str, report: Report, now: float) -> bool:
        """Takes a report, and returns whether flows or jobs came or went since the last one."""
        before = self.hosts[host].report
        self.hosts[host].report, self.hosts[host].heard = report, now
        return before is None or _shape(before) != _shape(report)

    def marked(self, host: str, marked: Marked) -> None:
        """Takes note of what could be enforced."""
        self.hosts[host].marked = marked

    def rank(self, now: float) -> dict[str, LevelsMessage]:
        """Gives levels, and returns what is new for each host."""
        self.rounds += 1
        merged = self._merge()
        flows = [
            Flow(flow_of(flow), job.id, flow.path)
            for host in self.hosts.values()
            if host.report is not None
            for job in host.report.jobs
            for flow in job.flows
        ]
        profiling = self._profile(merged, flows, now)
        jobs = {name: _view_of(report, name in profiling) for name, report in merged.items()}
        self._view = ClusterView(now, jobs, flows)
        self._levels = self._policy.levels(self._view)
        return self._news(sorted(profiling))

    def _news(self, profiling: list[str]) -> dict[str, LevelsMessage]:
        news = {}
        for name, host in self.hosts.items():
            if host.report is None:
                continue
            levels = [self._levels.of.get(flow_of(flow), 0) for job in host.report.jobs for flow in job.flows]
            message = LevelsMessage(host.report.number, self._levels.count, levels, profiling)
            if message != host.pushed:
                host.pushed = news[name] = message
        return news

    def _merge(self) -> dict[str, JobReport]:
        """One report a job: of the host that counted most, with the best founded ideal time of any."""
        merged: dict[str, JobReport] = {}
        ideals: dict[str, JobReport] = {}
        for host in self.hosts.values():
            for job in host.report.jobs if host.report is not None else ():
                if job.id not in merged or job.completed > merged[job.id].completed:
                    merged[job.id] = job
                if job.ideal is not None and (job.id not in ideals or job.measured > ideals[job.id].measured):
                    ideals[job.id] = job
        return {
            name: _with_ideal(job, ideals[name]) if job.ideal is None and name in ideals else job
            for name, job in merged.items()
        }

    def _profile(self, jobs: Mapping[str, JobReport], flows: list[Flow], now: float) -> frozenset[str]:
        if self._profiler is None:
            return frozenset()
        # Only who says something, and sends something, has an ideal time to measure.
        counted = {name: job.completed for name, job in jobs.items() if job.completed > 0}
        measured = {name for name, job in jobs.items() if job.ideal is not None}
        on_link: dict[str, set[str]] = {}
        for flow in flows:
            for link in flow.path or ("?",):
                on_link.setdefault(link, set()).add(flow.job)
        meets: dict[str, set[str]] = {}
        for sharing in on_link.values():
            for job in sharing:
                meets.setdefault(job, set()).update(sharing)
        return self._profiler.update(now, counted, measured, {job: meets[job] - {job} for job in meets})

    # --- for people

    def status(self, now: float) -> dict[str, object]:
        """Returns what `leveller status` shows."""
        levels: dict[str, list[int]] = {name: [] for name in self._view.jobs}
        for flow in self._view.flows:
            levels[flow.job].append(self._levels.of.get(flow.id, 0))
        on_hosts: dict[str, list[str]] = {name: [] for name in self._view.jobs}
        for host, at in sorted(self.hosts.items()):
            for report in at.report.jobs if at.report is not None else ():
                on_hosts.setdefault(report.id, []).append(host)
        jobs = []
        for name, job in sorted(self._view.jobs.items()):
            jobs.append(
                {
                    "job": name,
                    "rate": job.rate,
                    "ideal": job.ideal,
                    "weight": job.weight,
                    "profiling": job.profiling,
                    "flows": len(levels[name]),
                    "levels": sorted(set(levels[name])),
                    "hosts": on_hosts[name],
                }
            )
        hosts = [
            {"host": name, "heard": now - host.heard, "marked": host.marked.marked, "refused": host.marked.refused}
            for name, host in sorted(self.hosts.items())
        ]
        return {
            "policy": self.policy,
            "levels": self._levels.count,
            "rounds": self.rounds,
            "jobs": jobs,
            "hosts": hosts,
        }

    def explain(self, job: str) -> dict[str, object]:
        """Returns why a job has its levels. KeyError: there is no such job."""
        view = self._view.jobs[job]
        mine = [flow for flow in self._view.flows if flow.job == job]
        flows = []
        for flow in mine:
            met = {
                other.job: max(self._levels.of.get(other.id, 0), 0)
                for other in self._view.flows
                if other.job != job and set(flow.path or ("?",)) & set(other.path or ("?",))
            }
            flows.append(
                {
                    "flow": _text(flow.id),
                    "path": list(flow.path),
                    "level": self._levels.of.get(flow.id, 0),
                    "meets": dict(sorted(met.items())),
                }
            )
        refused = [
            {"host": host, "flow": _text(flow_of(each.flow)), "requested": each.requested, "reason": each.reason}
            for host, at in sorted(self.hosts.items())
            for each in at.marked.some
            if flow_of(each.flow) in {flow.id for flow in mine}
        ]
        return {
            "job": job,
            "rate": view.rate,
            "ideal": view.ideal,
            "profiling": view.profiling,
            "why": self._why(view, {name for flow in flows for name in flow["meets"]}),  # type: ignore[attr-defined]
            "flows": flows,
            "refused": refused,
        }

    def _why(self, job: JobView, met: set[str]) -> str:
        if job.profiling:
            return "it runs alone at the top for its ideal iteration time to be measured"
        if not met:
            return "it meets no other job, so every level is as good"
        others = [self._view.jobs[name] for name in met]
        ahead = sum((each.rate or 0.0) / each.weight < (job.rate or 0.0) / job.weight for each in others)
        own = "its rate is not known yet, which counts as 0" if job.rate is None else f"its rate is {job.rate:.3f}"
        if self.policy != "lowest-rate-first":
            return f"{own}; the policy is {self.policy}"
        return f"{own}; of the {len(met)} jobs that it meets {ahead} are further behind and go before it"


def _shape(report: Report) -> list[tuple[str, list[FlowReport]]]:
    return [(job.id, job.flows) for job in report.jobs]


def _with_ideal(job: JobReport, measured: JobReport) -> JobReport:
    return JobReport(
        job.id, job.completed, job.elapsed, measured.ideal, measured.measured, None, job.weight, job.gpus,
        job.compute, job.communicate, job.flows,
    )  # fmt: skip


def _view_of(job: JobReport, profiling: bool) -> JobView:
    rate = job.rate
    if rate is None and job.ideal is not None and job.elapsed > 0 and job.completed > 0:
        rate = job.completed * job.ideal / job.elapsed
    return JobView(job.id, rate, job.weight, job.ideal, job.compute, job.communicate, job.gpus, profiling)


def _text(flow: object) -> str:
    if isinstance(flow, FiveTuple):
        return f"{flow.protocol} {flow.source}:{flow.source_port} > {flow.destination}:{flow.destination_port}"
    return str(flow)
