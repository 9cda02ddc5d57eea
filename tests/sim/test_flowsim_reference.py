"""Against a simulator too simple to be wrong: progressive filling from scratch at every event."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("flowsim._core", reason="the native library is not built")

from sim.reference import Reference, Scenario, fair_rates

from flowsim import Flow, Network, Result, Task

# Few distinct values, so that things happen at one instant and links tie.
SIZES = st.sampled_from([0.0, 1.0, 2.0, 3.0, 10.0, 0.7])
TIMES = st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0, 1 / 3])
CAPACITIES = st.sampled_from([1.0, 2.0, 5.0, 0.3])
WEIGHTS = st.sampled_from([1.0, 2.0, 0.5, 3.7])


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Networks of up to 6 links and 14 activities, with classes, weights, latencies, dependencies and changes."""
    capacities = draw(st.lists(CAPACITIES, min_size=1, max_size=6))
    executors = draw(st.integers(0, 2))
    links = st.integers(0, len(capacities) - 1)
    activities: list[Flow | Task] = []
    for i in range(draw(st.integers(1, 14))):
        after = draw(st.lists(st.integers(0, i - 1), max_size=2, unique=True)) if i else []
        start, priority = draw(TIMES), draw(st.integers(0, 2))
        if draw(st.integers(0, 3)):
            path = draw(st.lists(links, max_size=4, unique=True))
            activities.append(Flow(path, draw(SIZES), priority, draw(WEIGHTS), start, draw(TIMES), after))
        else:
            executor = draw(st.sampled_from([None, *range(executors)]))
            activities.append(Task(draw(SIZES), executor, priority, start, after))
    # A capacity of zero comes back later, so that nobody starves.
    changes = draw(st.lists(st.tuples(links, st.sampled_from([0.0, 0.25, 1.0, 4.0]), CAPACITIES), max_size=3))
    for link in {change[0] for change in changes if draw(st.booleans())}:
        changes += [(link, 0.75, 0.0), (link, 1.5, draw(CAPACITIES))]
    return Scenario(capacities, activities, executors, changes, draw(st.sampled_from([0.0, 0.0, 0.25])))


def build(scenario: Scenario) -> Network:
    """The scenario as a network."""
    network = Network()
    for capacity in scenario.capacities:
        network.add_link(capacity, scenario.contention)
    for _ in range(scenario.executors):
        network.add_executor()
    for activity in scenario.activities:
        network.add(activity)
    for change in scenario.changes:
        network.change_capacity(*change)
    return network


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios())
def test_times_equal_the_reference(scenario: Scenario) -> None:
    """Starts and ends are those of the reference, with weights, classes, changes, contention, latencies and DAGs."""
    found, expected = build(scenario).run(), Reference(scenario)
    np.testing.assert_allclose(found.finish, expected.finish, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.start, expected.start, rtol=1e-6, atol=1e-9)


def snapshot(result: Result, time: float, count: int) -> np.ndarray:
    """The rates that the timeline has just after a time, shape (activities,)."""
    rates = np.zeros(count)
    assert result.timeline is not None
    for at, flow, rate in zip(result.timeline.time, result.timeline.flow, result.timeline.rate, strict=True):
        if at <= time:
            rates[flow] = rate
    return rates


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[float], list[Flow]]:
    """Many flows on few links: chains of bottlenecks."""
    capacities = draw(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=12))
    links = st.integers(0, len(capacities) - 1)
    flows = st.builds(
        Flow,
        st.lists(links, min_size=1, max_size=4, unique=True),
        st.floats(0.1, 5.0),
        st.integers(0, 1),
        st.floats(0.1, 8.0),
    )
    return capacities, draw(st.lists(flows, min_size=5, max_size=40))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(crowds())
def test_rates_are_fair_at_every_instant(crowd: tuple[list[float], list[Flow]]) -> None:
    """After each event the rates of whoever is left are what filling from scratch gives."""
    capacities, flows = crowd
    result = build(Scenario(capacities, list(flows))).run(timeline=True)
    assert result.timeline is not None
    for time in np.unique(result.timeline.time):
        moving = [i for i in range(len(flows)) if result.finish[i] > time]
        expected = fair_rates([(flows[i].path, flows[i].priority, flows[i].weight) for i in moving], capacities)
        np.testing.assert_allclose(snapshot(result, time, len(flows))[moving], expected, rtol=1e-6, atol=1e-8)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(crowds(), st.floats(0.0, 3.0))
def test_a_run_that_stops_is_the_beginning_of_the_whole(crowd: tuple[list[float], list[Flow]], until: float) -> None:
    """With `until`, what was finished by then is finished at the same time, and the rest has moved a part."""
    capacities, flows = crowd
    network = build(Scenario(capacities, list(flows)))
    whole, part = network.run(), network.run(until=until)
    sizes = np.array([flow.size for flow in flows])
    done = whole.finish <= until
    np.testing.assert_array_equal(part.finish[done], whole.finish[done])
    assert np.all(part.finish[~done] == math.inf)
    assert np.all(part.moved <= sizes)
    np.testing.assert_allclose(part.moved[done], sizes[done])
    carried = [
        math.fsum(part.moved[i] for i, flow in enumerate(flows) if link in flow.path) for link in range(len(capacities))
    ]
    np.testing.assert_allclose(part.link_bytes, carried)
    assert np.all(part.link_bytes <= part.link_offered * (1 + 1e-9) + 1e-9)
