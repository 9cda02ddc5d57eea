"""Flows that are steered have at every moment the rates of progressive filling from scratch, and move what they say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flowsim._core", reason="the native library is not built")

from sim.reference import fair_rates

from flowsim import Flow, Network, Task

CAPACITIES = st.sampled_from([1.0, 2.0, 5.0, 0.3])
SIZES = st.sampled_from([1.0, 2.0, 0.7, 10.0])


@given(st.data())
def test_rates_are_those_of_progressive_filling(data: st.DataObject) -> None:
    """Whatever is started, prioritised anew or narrowed in whatever order, and however far time goes between."""
    capacities = data.draw(st.lists(CAPACITIES, min_size=1, max_size=5))
    links = st.lists(st.integers(0, len(capacities) - 1), min_size=1, max_size=3, unique=True)
    paths = data.draw(st.lists(links, min_size=1, max_size=8))
    weights = data.draw(st.lists(st.sampled_from([1.0, 2.0, 0.5]), min_size=len(paths), max_size=len(paths)))
    network = Network()
    network.add_links(len(capacities), 1.0)
    for path, weight in zip(paths, weights, strict=True):
        network.add(Flow(path, 0.0, weight=weight))
    live = network.live()
    for link, capacity in enumerate(capacities):
        live.set_capacity(link, capacity)
    left: dict[int, float] = {}
    priority = dict.fromkeys(range(len(paths)), 0)
    flows = st.integers(0, len(paths) - 1)
    for _ in range(data.draw(st.integers(1, 25))):
        for _ in range(data.draw(st.integers(0, 4))):
            flow = data.draw(flows)
            match data.draw(st.integers(0, 2)):
                case 0 if flow not in left:
                    left[flow] = data.draw(SIZES)
                    live.start(flow, left[flow])
                case 1:
                    priority[flow] = data.draw(st.integers(0, 2))
                    live.set_priority(flow, priority[flow])
                case _:
                    link = data.draw(st.integers(0, len(capacities) - 1))
                    capacities[link] = data.draw(CAPACITIES)
                    live.set_capacity(link, capacities[link])
        moving = sorted(left)
        rates = fair_rates([(paths[flow], priority[flow], weights[flow]) for flow in moving], capacities)
        assert [live.rate(flow) for flow in moving] == pytest.approx(rates, rel=1e-6, abs=1e-9)
        upcoming = live.next()
        assert upcoming == pytest.approx(
            min(
                (live.now + left[f] / rate for f, rate in zip(moving, rates, strict=True) if rate > 0), default=math.inf
            )
        )
        if upcoming == math.inf:
            continue
        before = live.now
        finished = live.advance(data.draw(st.sampled_from([upcoming, (upcoming + before) / 2])))
        for flow, rate in zip(moving, rates, strict=True):
            left[flow] -= rate * (live.now - before)
        assert all(left[flow] == pytest.approx(0, abs=1e-6) for flow in finished)
        for flow in finished:
            del left[flow]
        assert [live.left(flow) for flow in sorted(left)] == pytest.approx([left[f] for f in sorted(left)], abs=1e-6)


def test_what_cannot_be_is_named() -> None:
    """And changes nothing."""
    network = Network()
    link = network.add_link(1.0)
    flow, task, nowhere = network.add(Flow([link], 1.0)), network.add(Task(1.0)), network.add(Flow([], 1.0))
    live = network.live()
    for call, why in (
        (lambda: live.start(task, 1.0), "no flow 1"),
        (lambda: live.start(7, 1.0), "no flow 7"),
        (lambda: live.start(nowhere, 1.0), "crosses no link"),
        (lambda: live.start(flow, 0.0), "above 0"),
        (lambda: live.start(flow, math.nan), "above 0"),
        (lambda: live.set_priority(flow, 256), "0 to 255"),
        (lambda: live.set_capacity(3, 1.0), "no link 3"),
        (lambda: live.set_capacity(link, -1.0), "at least 0"),
        (lambda: live.advance(math.inf), "time goes on"),
    ):
        with pytest.raises(ValueError, match=why):
            call()
    live.start(flow, 2.0)
    with pytest.raises(ValueError, match="under way"):
        live.start(flow, 1.0)
    with pytest.raises(ValueError, match="time goes on"):
        live.advance(2.5)
    assert live.advance(2.0) == [flow]
    with pytest.raises(ValueError, match="time goes on"):
        live.advance(1.0)
    live.start(flow, 1.0)
    assert live.advance(3.0) == [flow]


def test_a_network_may_grow_beside_it() -> None:
    """What is live is the network as it was."""
    network = Network()
    flow = network.add(Flow([network.add_link(1.0)], 1.0))
    live = network.live()
    more = network.add(Flow([network.add_link(1.0)], 1.0))
    live.start(flow, 1.0)
    with pytest.raises(ValueError, match="no flow 1"):
        live.start(more, 1.0)
    assert live.next() == 1.0
