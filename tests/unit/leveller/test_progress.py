"""Progress rates, ideal times, profiles and marks are what their words say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveller.core.ideal import IdealTime
from leveller.core.marking import Marking
from leveller.core.profiling import Profiler
from leveller.core.rate import Progress
from leveller.core.slack import slackened


class TestProgress:
    """R."""

    def test_is_iterations_over_those_alone(self) -> None:
        """Equation 1: 6 iterations of ideally 2 s in 16 s."""
        progress = Progress(100.0, ideal=2.0)
        for step in range(1, 7):
            progress.record(step, 100.0 + step * 16 / 6)
        assert progress.rate(116.0) == pytest.approx(0.75)

    def test_cannot_be_told_at_first(self) -> None:
        """No iteration, no ideal time, no R."""
        progress = Progress(0.0)
        assert progress.rate(5.0) is None
        progress.record(1, 5.0)
        assert progress.rate(5.0) is None
        progress.ideal = 2.5
        assert progress.rate(5.0) == pytest.approx(0.5)

    def test_what_was_done_before_we_came_does_not_count(self) -> None:
        """A job seen first at iteration 1,000 begins there."""
        progress = Progress(0.0, ideal=1.0)
        progress.begin_at(1000, 50.0)
        progress.record(1005, 60.0)
        assert progress.rate(60.0) == pytest.approx(0.5)

    def test_a_restart_from_a_checkpoint_loses_nothing(self) -> None:
        """Steps that go back are done again, and counted again."""
        progress = Progress(0.0, ideal=1.0)
        for step, now in ((1, 1.0), (2, 2.0), (3, 3.0), (1, 6.0), (2, 7.0)):
            progress.record(step, now)
        assert progress.completed == 4

    def test_a_window_forgets(self) -> None:
        """Of 100 starved seconds nothing is left 10 s later, where R over the whole life still shows them."""
        whole, windowed = Progress(0.0, 1.0), Progress(0.0, 1.0, window=10.0)
        for step in range(1, 21):
            for each in (whole, windowed):
                each.record(step, 100.0 + step)
        assert windowed.rate(120.0) == pytest.approx(1.0)
        assert whole.rate(120.0) == pytest.approx(20 / 120)

    @given(st.lists(st.floats(0.01, 10), min_size=1, max_size=50), st.floats(0.1, 100))
    def test_a_window_longer_than_life_changes_nothing(self, durations: list[float], ideal: float) -> None:
        """Both are then the same number."""
        whole, windowed = Progress(0.0, ideal), Progress(0.0, ideal, window=1e6)
        now = 0.0
        for step, duration in enumerate(durations, 1):
            now += duration
            whole.record(step, now)
            windowed.record(step, now)
        assert windowed.rate(now) == pytest.approx(whole.rate(now))


class TestIdealTime:
    """The time of an iteration alone."""

    def test_leaves_out_the_first_and_the_unusual(self) -> None:
        """Warming up, evaluations and checkpoints are no iterations as others."""
        ideal = IdealTime()
        now = 0.0
        for step, duration in enumerate([30.0, 1.0, 1.0, 1.1, 12.0, 1.0, 1.05], 1):
            now += duration
            ideal.record(step, now)
        assert ideal.value == pytest.approx(1.0)

    def test_counts_by_the_difference_of_steps(self) -> None:
        """A log that speaks every tenth iteration says as much."""
        ideal = IdealTime()
        for step in (10, 20, 30):
            ideal.record(step, step * 0.5)
        assert ideal.value == pytest.approx(0.5)
        assert ideal.iterations == 20

    def test_a_step_said_twice_is_one(self) -> None:
        """Eight ranks may each print it."""
        ideal = IdealTime()
        for step, now in ((1, 1.0), (1, 1.001), (2, 2.0), (2, 2.002), (3, 3.0)):
            ideal.record(step, now)
        assert ideal.value == pytest.approx(1.0)
        assert ideal.iterations == 2

    def test_is_nothing_at_first(self) -> None:
        """One step has no duration."""
        ideal = IdealTime()
        assert ideal.value is None
        ideal.record(5, 1.0)
        assert ideal.value is None


class TestProfiler:
    """Who runs alone at the top."""

    def test_new_jobs_take_turns_where_they_meet(self) -> None:
        """A and b share a link, c shares none."""
        profiler = Profiler(iterations=2, interval=1000.0)
        meets = {"a": ["b"], "b": ["a"], "c": []}
        assert profiler.update(0.0, {"a": 0, "b": 0, "c": 0}, [], meets) == {"a", "c"}
        assert profiler.update(1.0, {"a": 1, "b": 1, "c": 2}, [], meets) == {"a"}
        assert profiler.update(2.0, {"a": 2, "b": 1, "c": 3}, [], meets) == {"b"}
        assert profiler.update(3.0, {"a": 3, "b": 3, "c": 4}, [], meets) == frozenset()

    def test_comes_again_after_a_random_while(self) -> None:
        """Between half and one and a half intervals, not always the same."""
        again = []
        for seed in range(20):
            profiler = Profiler(iterations=2, interval=100.0, seed=seed)
            profiler.update(0.0, {"a": 0}, [], {})
            profiler.update(1.0, {"a": 2}, [], {})
            again.append(next(now for now in range(1, 400) if profiler.update(float(now), {"a": 2}, [], {})))
        assert 51 <= min(again) < 75 and 125 < max(again) <= 152

    def test_who_completes_nothing_gives_up_the_place(self) -> None:
        """A job that hangs does not hold up those it meets."""
        profiler = Profiler(iterations=2, limit=10.0)
        meets = {"a": ["b"], "b": ["a"]}
        assert profiler.update(0.0, {"a": 0, "b": 0}, [], meets) == {"a"}
        assert profiler.update(10.0, {"a": 0, "b": 5}, [], meets) == {"b"}

    def test_a_job_that_is_gone_is_forgotten(self) -> None:
        """And its place is free."""
        profiler = Profiler(iterations=2)
        meets = {"a": ["b"], "b": ["a"]}
        profiler.update(0.0, {"a": 0, "b": 0}, [], meets)
        assert profiler.update(1.0, {"b": 0}, [], meets) == {"b"}

    def test_a_job_that_is_measured_is_not_due_at_once(self) -> None:
        """As after a restart of the controller."""
        profiler = Profiler(iterations=2, interval=100.0)
        assert profiler.update(0.0, {"a": 7}, ["a"], {}) == frozenset()


class TestMarking:
    """Levels as DSCP."""

    @given(st.integers(2, 6))
    def test_keeps_the_order_in_the_upper_three_bits(self, count: int) -> None:
        """Which are all that some switches look at; control traffic is above, and the ends are always used."""
        marking = Marking()
        upper = [marking.dscp(level, count) >> 3 for level in range(count)]
        assert upper == sorted(set(upper))
        assert upper[-1] < marking.control >> 3
        assert (upper[0], upper[-1]) == (0, 5)

    @pytest.mark.parametrize("codes", [(), (8, 8), (8, 0), (0, 64), (-1, 3)])
    def test_refuses_codes_that_do_not_rise(self, codes: tuple[int, ...]) -> None:
        """Or that are no DSCP."""
        with pytest.raises(ValueError, match=r"codes of levels rise|a DSCP is"):
            Marking(codes)

    def test_refuses_levels_that_there_are_no_codes_for(self) -> None:
        """Instead of giving two levels one mark."""
        with pytest.raises(ValueError, match="1 to 6 levels"):
            Marking().dscp(0, 7)


@given(st.integers(0, 5), st.floats(0, 10), st.floats(0, 10), st.floats(0, 30))
def test_slack_puts_off_until_it_is_used_up(level: int, started: float, slack: float, now: float) -> None:
    """Lowest inside the window, the controller's level before and after."""
    assert slackened(level, started, slack, now) == (0 if started <= now < started + slack else level)
