"""The controller gives levels by what agents say, and keeps nothing that agents could not tell again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveller.agent.jobs import AgentJobs, JobFacts
from leveller.controller.state import ControllerState
from leveller.core.levels import LowestRateFirst
from leveller.core.marking import Marking
from leveller.core.model import FiveTuple
from leveller.core.profiling import Profiler
from leveller.wire import (
    BadMessage,
    FlowReport,
    Hello,
    JobReport,
    Levels,
    Marked,
    Query,
    Refusal,
    Report,
    decode,
    encode,
)

ONE, OTHER = FiveTuple("tcp", "10.0.0.1", 1000, "10.0.0.2", 2000), FiveTuple("tcp", "10.0.0.3", 1, "10.0.0.2", 2)


def report_of(number: int, **jobs: tuple[int, float, FiveTuple]) -> Report:
    """Jobs with iterations completed in 10 s of ideally 1 s, and one flow each over one link."""
    reports = [
        JobReport(name, done, elapsed, ideal=1.0, measured=3, flows=[FlowReport(*flow, ("link",))])
        for name, (done, elapsed, flow) in jobs.items()
    ]
    return Report(number, 1, reports)


class TestState:
    """Reports in, levels out."""

    def test_who_is_behind_goes_first(self) -> None:
        """Over hosts: a at 0.3 on one, b at 0.6 on another."""
        state = ControllerState(LowestRateFirst(3))
        for host, report in (("h1", report_of(5, a=(3, 10, ONE))), ("h2", report_of(9, b=(6, 10, OTHER)))):
            state.join(host, 0)
            assert state.report(host, report, 0)
        assert state.rank(1) == {"h1": Levels(5, 3, [2]), "h2": Levels(9, 3, [1])}
        assert state.rank(2) == {}
        assert not state.report("h1", report_of(6, a=(8, 10, ONE)), 3)
        assert state.rank(3) == {"h1": Levels(6, 3, [1]), "h2": Levels(9, 3, [2])}

    def test_a_job_is_what_its_hosts_say_together(self) -> None:
        """The host that counted most has its rate; an ideal time may come from another."""
        state = ControllerState(LowestRateFirst(2))
        state.join("h1", 0)
        state.join("h2", 0)
        state.report("h1", Report(1, 1, [JobReport("a", 0, 0.0, ideal=2.0, measured=4)]), 0)
        state.report("h2", Report(1, 1, [JobReport("a", 4, 10.0)]), 0)
        state.rank(0)
        (job,) = state.status(0)["jobs"]  # type: ignore[misc]
        assert (job["rate"], job["ideal"], job["hosts"]) == (0.8, 2.0, ["h1", "h2"])

    def test_a_host_that_is_gone_counts_no_more(self) -> None:
        """What it reported is forgotten, and the others' levels follow."""
        state = ControllerState(LowestRateFirst(3))
        for host, report in (("h1", report_of(1, a=(3, 10, ONE))), ("h2", report_of(1, b=(6, 10, OTHER)))):
            state.join(host, 0)
            state.report(host, report, 0)
        state.rank(0)
        state.gone("h1")
        assert state.rank(1) == {"h2": Levels(1, 3, [2])}
        assert [job["job"] for job in state.status(1)["jobs"]] == ["b"]  # type: ignore[attr-defined]

    def test_a_new_job_runs_alone_at_the_top(self) -> None:
        """Once it counts, until it has counted enough; another one it meets waits for its turn."""
        state = ControllerState(LowestRateFirst(3), Profiler(iterations=2, interval=1000.0))
        state.join("h", 0)
        said = []
        for now, (first, second) in enumerate([(0, 0), (1, 1), (3, 1), (4, 3)]):
            jobs = [
                JobReport("a", first, 1.0 + now, flows=[FlowReport(*ONE, ("link",))]),
                JobReport("b", second, 1.0 + now, flows=[FlowReport(*OTHER, ("link",))]),
            ]
            state.report("h", Report(now, 1, jobs), now)
            said.append(state.rank(now)["h"].profiling)
        assert said == [[], ["a"], ["b"], []]

    def test_explains(self) -> None:
        """Rate, whom it meets, and what was refused."""
        state = ControllerState(LowestRateFirst(3))
        state.join("h", 0)
        state.report("h", report_of(1, a=(3, 10, ONE), b=(6, 10, OTHER)), 0)
        state.rank(0)
        state.marked("h", Marked(1, 1, [Refusal(FlowReport(*OTHER), 8, None, "no nftables")]))
        told = state.explain("b")
        assert told["why"] == "its rate is 0.600; of the 1 jobs that it meets 1 are further behind and go before it"
        assert told["flows"] == [
            {"flow": "tcp 10.0.0.3:1 > 10.0.0.2:2", "path": ["link"], "level": 1, "meets": {"a": 2}}
        ]
        assert [each["reason"] for each in told["refused"]] == ["no nftables"]  # type: ignore[attr-defined]
        with pytest.raises(KeyError):
            state.explain("nobody")


class TestAgentJobs:
    """What an agent knows."""

    def jobs(self, **more: float) -> AgentJobs:
        return AgentJobs({"a": JobFacts(ideal=1.0)}, Marking(), more.get("fallback", 10.0))

    def test_counts_from_the_first_iteration_seen(self) -> None:
        """Nobody knows what was before."""
        jobs = self.jobs()
        jobs.flows({"a": {ONE: ("x",)}})
        for step, now in ((70, 100.0), (72, 104.0)):
            jobs.iteration("a", step, now)
        (job,) = jobs.report(3, 104.0).jobs
        assert (job.completed, job.elapsed, job.ideal) == (2, 4.0, 1.0)
        assert job.flows == [FlowReport(*ONE, ("x",))]

    def test_levels_belong_to_a_report(self) -> None:
        """Their order is that of its flows; levels of another report are left alone."""
        jobs = self.jobs()
        jobs.flows({"a": {ONE: ()}, "b": {OTHER: ()}})
        number = jobs.report(1, 0.0).number
        assert jobs.levels(Levels(number, 3, [2, 0]))
        assert jobs.marks == {ONE: 40, OTHER: 0}
        assert not jobs.levels(Levels(number + 1, 3, [0, 0]))
        assert not jobs.levels(Levels(number, 3, [0]))
        assert jobs.marks == {ONE: 40, OTHER: 0}

    def test_a_flow_that_is_gone_loses_its_mark(self) -> None:
        """Its five-tuple may be another job's next."""
        jobs = self.jobs()
        jobs.flows({"a": {ONE: (), OTHER: ()}})
        number = jobs.report(1, 0.0).number
        jobs.flows({"a": {ONE: ()}})
        jobs.levels(Levels(number, 2, [1, 1]))
        assert jobs.marks == {ONE: 40}

    def test_without_a_controller_marks_stay_for_a_while(self) -> None:
        """Then they are taken away, once; a controller that comes back starts the while anew."""
        jobs = self.jobs(fallback=10.0)
        jobs.flows({"a": {ONE: ()}})
        jobs.levels(Levels(jobs.report(1, 0.0).number, 2, [1]))
        assert not jobs.alone(100.0)
        assert not jobs.alone(109.0)
        jobs.levels(Levels(jobs.report(2, 0.0).number, 2, [1]))
        assert not jobs.alone(112.0)
        assert jobs.marks == {ONE: 40}
        assert jobs.alone(122.0)
        assert jobs.marks == {}
        assert not jobs.alone(123.0)

    def test_the_ideal_time_is_measured_while_alone_at_the_top(self) -> None:
        """And kept: what comes before and after does not count."""
        jobs = self.jobs()
        jobs.flows({"b": {ONE: ()}})
        now, step = 0.0, 0

        def go_on(count: int, duration: float) -> None:
            nonlocal now, step
            for _ in range(count):
                now, step = now + duration, step + 1
                jobs.iteration("b", step, now)

        go_on(3, 4.0)
        jobs.levels(Levels(jobs.report(1, now).number, 2, [1], ["b"]))
        go_on(5, 2.0)
        jobs.levels(Levels(jobs.report(2, now).number, 2, [1], []))
        go_on(3, 4.0)
        assert jobs.report(3, now).jobs[0].ideal == 2.0

    def test_more_levels_than_marks(self) -> None:
        """The lowest levels share a mark; the highest keep theirs apart."""
        jobs = self.jobs()
        flows = [FiveTuple("tcp", "10.0.0.1", port, "10.0.0.2", 9) for port in range(1, 9)]
        jobs.flows({"a": dict.fromkeys(flows, ())})
        jobs.levels(Levels(jobs.report(1, 0.0).number, 8, list(range(8))))
        assert [jobs.marks[flow] for flow in flows] == [0, 0, 0, 8, 16, 24, 32, 40]


class TestWire:
    """Messages are checked as they come."""

    @given(st.binary(max_size=200))
    def test_anything_else_is_refused(self, data: bytes) -> None:
        """Never believed, never another error."""
        try:
            decode(data)
        except BadMessage:
            return

    @pytest.mark.parametrize(
        "message",
        [
            JobReport("", 1),
            JobReport("a b", 1),
            JobReport("a", -1),
            JobReport("a", ideal=0.0),
            JobReport("a", flows=[FlowReport("tcp", "10.0.0.1; drop", 1, "10.0.0.2", 2)]),
            JobReport("a", flows=[FlowReport("tcp", "10.0.0.1", 70000, "10.0.0.2", 2)]),
            JobReport("a", flows=[FlowReport("icmp", "10.0.0.1", 1, "10.0.0.2", 2)]),
        ],
    )
    def test_out_of_bounds_is_refused(self, message: JobReport) -> None:
        """Names, addresses and numbers have their shapes."""
        with pytest.raises(BadMessage):
            decode(encode(Report(1, 1, [message])))

    def test_what_is_right_comes_back(self) -> None:
        """As it was."""
        for message in (
            Hello(1, "h"),
            report_of(3, a=(1, 2.0, ONE)),
            Levels(1, 2, [0, 1], ["a"]),
            Query("explain", "a"),
        ):
            assert decode(encode(message)) == message
