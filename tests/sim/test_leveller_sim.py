"""Simulated jobs do what the model says, and no policy breaks the bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flowsim._core", reason="the native library is not built")

from leveller.core.baselines.cassini import Cassini
from leveller.core.baselines.crux import Crux
from leveller.core.baselines.fair import FairShare
from leveller.core.levels import LowestRateFirst
from leveller.core.model import LevelPolicy
from leveller.sim import Job, Phase, Transfer, examples, simulate
from leveller.sim.optimum import best, bound
from leveller.sim.simulate import ideal_time

POLICIES: list[LevelPolicy] = [FairShare(), Crux(4), Cassini(), LowestRateFirst(4)]


@pytest.mark.parametrize(
    ("jobs", "policy", "period", "expected"),
    [
        (examples.two(), FairShare(), 0, [0.75, 0.75]),
        (examples.two(), Crux(4), 0, [1, 0.75]),
        (examples.two(), LowestRateFirst(4), 0, [6 / 7, 6 / 7]),
        (examples.two(), LowestRateFirst(4), 4, [6 / 7, 6 / 7]),
        (examples.three(), FairShare(), 0, [0.5, 0.5, 2 / 3]),
        (examples.three(), LowestRateFirst(4), 0, [0.6, 0.6, 0.6]),
    ],
)
def test_the_papers_examples(jobs: list[Job], policy: LevelPolicy, period: float, expected: list[float]) -> None:
    """Figures 1, 3 and 4."""
    rates = simulate(jobs, examples.LINK, policy, 1200.0, period=period).rates
    assert list(rates.values()) == pytest.approx(expected, rel=0.01)


phases = st.builds(
    Phase,
    st.sampled_from([0.5, 1.0, 2.0]),
    st.lists(st.sampled_from(["a", "b", "ab"]), max_size=2, unique=True).map(
        lambda paths: tuple(Transfer(tuple(path), 1.0 + len(path)) for path in paths)
    ),
    st.sampled_from([0.0, 0.0, 1.5]),
)
clusters = st.lists(st.lists(phases, min_size=1, max_size=2), min_size=1, max_size=4).map(
    lambda all_phases: [Job(f"j{place}", each) for place, each in enumerate(all_phases)]
)


@settings(deadline=None, max_examples=40)
@given(clusters, st.sampled_from(POLICIES), st.sampled_from([0.0, 3.0]), st.booleans())
def test_no_policy_beats_the_bound(jobs: list[Job], policy: LevelPolicy, period: float, slack: bool) -> None:
    """Nor does a job do better than alone."""
    links = {"a": 2.0, "b": 1.0}
    outcome = simulate(jobs, links, policy, 300.0, period=period, slack=slack)
    assert max(outcome.rates.values()) <= 1 + 1e-9
    assert outcome.least <= bound(jobs, links) + 0.03


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.sampled_from([0.5, 1, 2, 3]), st.sampled_from([0.5, 1, 2])), min_size=2, max_size=4))
def test_lowest_first_reaches_half_of_the_best(shapes: list[tuple[float, float]]) -> None:
    """Theorem 1, on one link."""
    jobs = [examples.job(f"j{place}", *shape) for place, shape in enumerate(shapes)]
    least = simulate(jobs, examples.LINK, LowestRateFirst(len(jobs)), 600.0).least
    assert least >= 0.5 * bound(jobs, examples.LINK) - 0.01


def test_alone_a_job_has_its_ideal_time() -> None:
    """Which phases add up to; what runs beside communication is hidden by it, or hides it."""
    sends = Transfer(("a",), 2.0)
    job = Job("j", [Phase(1.0, (sends,)), Phase(0.5, (sends,), beside=3.0), Phase(0.25, beside=0.5)])
    assert ideal_time(job, {"a": 1.0}) == pytest.approx(3 + 3.5 + 0.75)
    assert simulate([job], {"a": 1.0}, FairShare(), 725.0).rates == {"j": pytest.approx(1.0)}


def test_slack_gives_way_for_nothing() -> None:
    """A job whose communication is hidden lets the other one go first, and loses nothing."""
    hidden = Job("hidden", [Phase(0.0, (Transfer(("link",), 1.0),), beside=2.5)])
    jobs = [replace(hidden, gpus=100), examples.job("open", 2.0, 1.0)]
    with_it, without = (simulate(jobs, examples.LINK, Crux(4), 600.0, slack=slack).rates for slack in (True, False))
    assert with_it["hidden"] == without["hidden"] == pytest.approx(1.0)
    assert with_it["open"] == pytest.approx(1.0, abs=0.01)
    assert without["open"] < 0.95


def test_a_job_that_ends_leaves_the_others_alone() -> None:
    """R of each is over its own life."""
    jobs = [replace(examples.job("short", 1, 1), iterations=3), replace(examples.job("long", 1, 1), start=100.0)]
    outcome = simulate(jobs, examples.LINK, FairShare(), 200.0)
    assert len(outcome.ended["short"]) == 3
    assert outcome.rates == {"short": pytest.approx(1.0), "long": pytest.approx(1.0)}


def test_the_timeline_says_who_had_the_link() -> None:
    """Static priority: Job 1 sends when it wants to, Job 2 waits meanwhile."""
    outcome = simulate(examples.two(), examples.LINK, Crux(2), 9.0, timeline=True)
    kinds = [(each.kind, each.start, each.end) for each in outcome.timeline if each.job == "Job 2"]
    assert kinds[:4] == [("compute", 0, 1), ("wait", 1, 2), ("send", 2, 3), ("wait", 3, 4)]


def test_the_best_lies_below_the_bound() -> None:
    """And near it, where a cycle without idle link exists."""
    found = best(examples.two(), examples.LINK)
    assert found.bound == pytest.approx(6 / 7)
    assert 0.99 * found.bound <= found.found <= found.bound


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Transfer((), 1.0), "at least one link"),
        (lambda: Transfer(("a",), 0.0), "more than 0 bytes"),
        (lambda: Phase(-1.0), "at least 0 seconds"),
        (lambda: Phase(1.0, (Transfer(("a",), 1.0), Transfer(("a",), 2.0))), "one path"),
        (lambda: Job("j", [Phase()]), "does nothing"),
        (lambda: Job("j", [Phase(1.0)], weight=0.0), "weight"),
        (lambda: simulate([examples.job("j", 1, 1)] * 2, examples.LINK, FairShare(), 1.0), "two jobs have one name"),
        (lambda: simulate([examples.job("j", 1, 1)], {"other": 1.0}, FairShare(), 1.0), "link, which is not there"),
    ],
)
def test_nonsense_is_named(make: object, why: str) -> None:
    """Before anything runs."""
    with pytest.raises(ValueError, match=why):
        make()  # type: ignore[operator]
