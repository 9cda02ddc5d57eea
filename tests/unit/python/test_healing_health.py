"""Blame and health against flows whose rates are worked out by max-min fair sharing: only the sick are found."""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter

import numpy as np
import pytest

from theseus_py.healing.blame import Flow, Observation, cover, look
from theseus_py.healing.health import HealthChange, Monitor, Settings

CAPACITY = 25e6
WINDOW = 0.02
HOSTS, RAILS = 4, 4
Left = dict[tuple[int, int, int], float]  # (0 out, 1 in), host, rail: what is left


def max_min(flows: dict[Flow, float], left: Left) -> dict[Flow, float]:
    """Rates of flows that want at most so much each, over NICs shared fairly: progressive filling."""
    rates = dict.fromkeys(flows, 0.0)
    active = {flow for flow, wanted in flows.items() if wanted > 0}
    ends = {flow: ((0, flow.src, flow.rail), (1, flow.dst, flow.rail)) for flow in flows}
    room = {nic: CAPACITY * left.get(nic, 1.0) for pair in ends.values() for nic in pair}
    while active:
        users = Counter(nic for flow in active for nic in ends[flow])
        step = min(room[nic] / count for nic, count in users.items())
        step = min(step, min(flows[flow] - rates[flow] for flow in active))
        for flow in active:
            rates[flow] += step
        for nic, count in users.items():
            room[nic] -= count * step
        full = {nic for nic in users if room[nic] <= 1e-6 * CAPACITY}
        active = {
            flow for flow in active if flows[flow] - rates[flow] > 1e-6 * CAPACITY and full.isdisjoint(ends[flow])
        }
    return rates


def all_pairs() -> dict[Flow, float]:
    pairs = itertools.permutations(range(HOSTS), 2)
    return {Flow(src, dst, rail): np.inf for src, dst in pairs for rail in range(RAILS)}


def observe(flows: dict[Flow, float], left: Left) -> dict[Flow, Observation]:
    """What a window shows: flows that want more than they get wait all the time, others hardly."""
    rates = max_min(flows, left)
    waits = {flow: rates[flow] < wanted * 0.999 for flow, wanted in flows.items()}
    return {flow: Observation(rates[flow], 1.0) if waits[flow] else Observation(CAPACITY * 0.9, 0.05) for flow in flows}


def collectives(left: Left) -> dict[Flow, Observation]:
    """A window of short collectives, each of which moves as much over every flow, and ends when the last has it all."""
    return dict(_collectives(tuple(sorted(left.items()))))


@functools.cache
def _collectives(left: tuple[tuple[tuple[int, int, int], float], ...]) -> tuple[tuple[Flow, Observation], ...]:
    amount = CAPACITY / 1000
    waiting = dict.fromkeys(all_pairs(), amount)
    ended: dict[Flow, float] = {}
    now = 0.0
    while waiting:
        rates = max_min(dict.fromkeys(waiting, np.inf), dict(left))
        moving = {flow: rate for flow, rate in rates.items() if rate > 0}
        if not moving:
            now *= 20  # for what is dead the others wait
            ended |= dict.fromkeys(waiting, np.inf)
            break
        step = min(waiting[flow] / rate for flow, rate in moving.items())
        now += step
        for flow, rate in moving.items():
            waiting[flow] -= step * rate
            if waiting[flow] <= 1e-6 * amount:
                ended[flow] = now
                del waiting[flow]
    return tuple((flow, Observation(amount / at, min(1.0, at / now))) for flow, at in ended.items())


def noisy(observations: dict[Flow, Observation], noise: random.Random) -> dict[Flow, Observation]:
    return {
        flow: Observation(goodput * noise.uniform(0.96, 1.04), share * noise.uniform(0.95, 1.0))
        for flow, (goodput, share, *_) in observations.items()
    }


def both(host: int, rail: int, left: float) -> Left:
    return {(0, host, rail): left, (1, host, rail): left}


def patience(left: float) -> float:
    """Seconds within which a NIC of which so much is left is found: what lost little needs longer."""
    return 0.1 if left < 0.2 else 0.3 if left < 0.5 else 0.7 if left < 0.7 else 2.3


class Bench:
    """A monitor, and time that passes."""

    def __init__(self, monitor: Monitor | None = None) -> None:
        self.monitor = monitor or Monitor(HOSTS, RAILS, CAPACITY)
        self.now = 100.0
        self.changes: list[HealthChange] = []

    def run(self, seconds: float, observations) -> list[HealthChange]:
        """`observations`: a dict, or a function that makes one for each window."""
        found = []
        for _ in range(round(seconds / WINDOW)):
            self.now += WINDOW
            change = self.monitor.step(self.now, observations() if callable(observations) else observations)
            if change is not None:
                found.append(change)
        self.changes += found
        return found

    def sick(self) -> dict[tuple[int, int], float]:
        health = self.monitor.health
        return {(int(h), int(r)): float(health[h, r]) for h, r in zip(*np.nonzero(health < 1), strict=True)}


@pytest.mark.parametrize("left", [0.75, 0.5, 0.25, 0.1, 0.0])
@pytest.mark.parametrize("ways", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("endless", [False, True])
def test_one_slow_nic_is_found_whichever_way(left: float, ways: tuple[int, ...], endless: bool) -> None:
    if endless and left > 0.3:
        return  # others fill what its flows leave over, and all NICs but this one are full: nothing is lost either
    bench = Bench()
    noise = random.Random(int(left * 100) + len(ways))
    slow: Left = {(way, 2, 1): left for way in ways}
    seconds = patience(left)
    first = bench.run(seconds, lambda: noisy(observe(all_pairs(), slow) if endless else collectives(slow), noise))
    assert first and first[0].changed == ((2, 1),)
    assert set(bench.sick()) == {(2, 1)}
    assert left - 2.5 / 16 <= bench.sick()[2, 1] <= left


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("equal", [False, True])
def test_two_slow_nics_are_found_and_never_overestimated(seed: int, equal: bool) -> None:
    """The worse of two for certain; the other one's flows may wait for it too little to be seen before it is healed."""
    draw = random.Random(seed)
    nics = draw.sample([(h, r) for h in range(HOSTS) for r in range(RAILS)], 2)
    left = {nic: draw.choice([0.0, 0.1, 0.3, 0.6]) for nic in nics}
    if equal:
        left[nics[1]] = left[nics[0]]
    slow: Left = {}
    for (host, rail), rest in left.items():
        slow |= both(host, rail, rest)
    bench = Bench()
    bench.run(3.0, lambda: noisy(collectives(slow), draw))
    sick = bench.sick()
    assert set(sick) == set(nics) if equal else min(nics, key=left.__getitem__) in sick
    assert set(sick) <= set(nics)
    assert all(left[nic] - 3 / 16 <= health <= left[nic] for nic, health in sick.items())


def test_idle_nics_are_never_sick() -> None:
    bench = Bench()
    assert not bench.run(2.0, {})
    busy = {flow: np.inf for flow in all_pairs() if flow.rail == 0 and flow.src == 0}
    assert not bench.run(2.0, observe(busy, {}))


@pytest.mark.parametrize("seed", range(5))
def test_applications_that_send_little_make_no_nic_sick(seed: int) -> None:
    draw = random.Random(seed)
    bench = Bench()

    def window() -> dict[Flow, Observation]:
        return noisy(observe({flow: draw.uniform(0, CAPACITY / 20) for flow in all_pairs()}, {}), draw)

    assert not bench.run(2.0, window)

    def short_bursts() -> dict[Flow, Observation]:
        return {flow: Observation(draw.uniform(0, CAPACITY), draw.uniform(0, 0.4)) for flow in all_pairs()}

    assert not bench.run(2.0, short_bursts)


@pytest.mark.parametrize("seed", range(5))
def test_fair_sharing_alone_makes_no_nic_sick(seed: int) -> None:
    """Flows of any pattern may be slow because others share their NICs: incast, a busy sender, both."""
    draw = random.Random(seed)
    bench = Bench()

    def window() -> dict[Flow, Observation]:
        chosen = draw.sample(sorted(all_pairs()), draw.randrange(1, 40))
        return noisy(observe(dict.fromkeys(chosen, np.inf), {}), draw)

    assert not bench.run(2.0, window)


@pytest.mark.parametrize("center", [0.5, 0.3])
def test_noise_around_a_threshold_changes_a_nic_at_most_once_a_second(center: float) -> None:
    draw = random.Random(1)
    bench = Bench()
    bench.run(10, lambda: noisy(collectives(both(1, 0, round(draw.gauss(center, 0.1), 2))), draw))
    times = [change.at for change in bench.changes]
    assert times and all(later - earlier >= 1 for earlier, later in itertools.pairwise(times))
    assert max(bench.sick().values()) <= center


def test_noise_around_full_speed_does_not_flap() -> None:
    draw = random.Random(2)
    bench = Bench()
    bench.run(20, lambda: noisy(collectives(both(1, 0, round(draw.gauss(0.86, 0.06), 2))), draw))
    assert len(bench.changes) <= 20
    times = [change.at for change in bench.changes]
    assert all(later - earlier >= 1 for earlier, later in itertools.pairwise(times))


def test_a_nic_that_dies_is_down_at_once_even_after_another_change() -> None:
    bench = Bench()
    bench.run(0.65, collectives(both(3, 3, 0.6)))
    assert bench.sick() == {(3, 3): 9 / 16}
    bench.run(0.65, collectives(both(3, 3, 0.0)))
    assert bench.sick() == {(3, 3): 0.0}


def test_recovery_takes_a_steady_second() -> None:
    bench = Bench()
    bench.run(1.5, collectives(both(0, 1, 0.3)))
    assert bench.sick() == {(0, 1): 4 / 16}
    up = bench.run(3.0, collectives({}))
    assert [change.health[0][1] for change in up] == [1.0]
    assert up[0].at - 101.5 >= 0.9
    bench.run(0.2, collectives(both(0, 1, 0.3)))
    interrupted = itertools.cycle([0.3] * 3 + [1.0] * 20)
    flickering = bench.run(5.0, lambda: collectives(both(0, 1, next(interrupted))))
    assert all(change.health[0][1] < 1 for change in flickering) and len(flickering) <= 2


def test_a_partial_recovery_raises_health_partly() -> None:
    bench = Bench()
    bench.run(1.5, collectives(both(0, 1, 0.1)))
    bench.run(5.0, collectives(both(0, 1, 0.5)))
    assert 6 / 16 <= bench.sick()[0, 1] <= 8 / 16


def test_a_nic_that_nobody_uses_or_probes_is_tried_again_the_later_the_more_often_in_vain() -> None:
    bench = Bench()
    bench.run(1.0, collectives(both(2, 2, 0.0)))
    rest = {flow: np.inf for flow in all_pairs() if flow.rail != 2}
    bench.run(2.0, observe(rest, {}))
    assert bench.sick() == {(2, 2): 0.0}
    assert {(flow.src, flow.dst) for flow in bench.monitor.probes} == {(2, 0), (0, 2)}
    waits = []
    for _ in range(3):
        began = bench.now
        while not bench.run(WINDOW, observe(rest, {})):
            pass
        assert bench.sick() == {(2, 2): Settings().trial}
        waits.append(bench.now - began)
        bench.run(0.1, collectives(both(2, 2, 0.0)))
        assert bench.sick() == {(2, 2): 0.0}
    assert waits[1] > 1.5 * waits[0] and waits[2] > 1.5 * waits[1]


def test_probes_raise_a_nic_that_nobody_uses_and_a_dead_one_is_not_tried_in_vain() -> None:
    bench = Bench()
    bench.run(1.0, collectives(both(2, 2, 0.0)))
    rest = {flow: np.inf for flow in all_pairs() if flow.rail != 2}

    def probed(part: float, way_in: float | None = None) -> list[HealthChange]:
        found = []
        for _ in range(50):
            bench.now += WINDOW
            parts = dict(zip(((2, 0, 2), (0, 2, 2)), (part, part if way_in is None else way_in), strict=True))
            probes = {Flow(*flow): value for flow, value in parts.items()} if bench.now % 1 < WINDOW else {}
            change = bench.monitor.step(bench.now, observe(rest, {}), probes)
            if change is not None:
                found.append(change)
        return found

    for _ in range(30):
        assert not probed(0.0)
    for _ in range(5):
        assert not probed(0.97, 0.0)
    assert probed(0.97)
    assert bench.sick() == {}


def test_a_host_that_is_slow_on_all_rails_has_no_sick_nics() -> None:
    slow: Left = {}
    for rail in range(RAILS):
        slow |= both(3, rail, 0.5)
    assert not Bench().run(3.0, collectives(slow))


def test_what_ranks_avoid_by_themselves_is_not_taken_for_idle() -> None:
    """A NIC at which nothing waits, because first aid sends all another way, has not recovered."""
    bench = Bench()
    bench.run(1.5, collectives(both(2, 2, 0.3)))
    assert bench.sick() == {(2, 2): 4 / 16}
    others = {flow: Observation(CAPACITY / 3, 0.95) for flow in all_pairs() if flow.rail != 2}
    avoided = {Flow(2, 0, 2): Observation(0.0, 0.01, WINDOW, True), Flow(0, 2, 2): Observation(0.0, 0.01, WINDOW, True)}
    assert not bench.run(4.0, {**others, **avoided})
    assert bench.run(3.0, others)  # the same without a word of first aid: it could do more


@pytest.mark.parametrize(("part", "sick"), [(0.1, True), (0.4, False)])
def test_what_ranks_avoid_is_probed_and_marked_if_it_gets_next_to_nothing(part: float, sick: bool) -> None:
    """First aid leaves no flow that waits, so flows alone would never tell."""
    bench = Bench()
    others = {flow: Observation(CAPACITY / 3, 0.95) for flow in all_pairs() if flow.rail != 2}
    avoided = {Flow(2, 3, 2): Observation(0.0, 0.01, WINDOW, True)}
    bench.run(0.8, {**others, **avoided})
    assert {Flow(2, 0, 2), Flow(0, 2, 2), Flow(3, 0, 2), Flow(0, 3, 2)} == set(bench.monitor.probes)
    results = {Flow(2, 0, 2): part, Flow(0, 2, 2): part, Flow(3, 0, 2): 0.9, Flow(0, 3, 2): 0.9}
    for number in range(2):
        assert bench.sick() == {}
        bench.monitor.step(bench.now + number * WINDOW, {**others, **avoided}, results)
    assert set(bench.sick()) == ({(2, 2)} if sick else set())


def test_who_is_avoided_for_the_sake_of_a_marked_nic_is_not_probed() -> None:
    """Ranks avoid flows, and so both ends of them: only one end is slow."""
    bench = Bench()
    bench.run(1.0, collectives(both(2, 2, 0.0)))
    assert bench.sick() == {(2, 2): 0.0}
    others = {flow: Observation(CAPACITY / 3, 0.3) for flow in all_pairs() if 2 not in (flow.src, flow.dst)}
    avoided = {flow: Observation(0.0, 0.01, WINDOW, True) for flow in all_pairs() if (2, 2) in (flow[::2], flow[1:])}
    bench.run(1.5, {**others, **avoided})
    assert len(bench.monitor.probes) == 2
    assert all((2, 2) in (flow[::2], flow[1:]) for flow in bench.monitor.probes)


def test_probes_without_news_are_wanted_less_and_less_often() -> None:
    bench = Bench()
    bench.run(1.0, collectives(both(2, 2, 0.1)))
    rest = {flow: np.inf for flow in all_pairs() if flow.rail != 2}

    def probes_in(seconds: float, part: float) -> int:
        count = 0
        for _ in range(round(seconds / WINDOW)):
            bench.now += WINDOW
            wanted = dict.fromkeys(bench.monitor.probes, part)
            bench.monitor.step(bench.now, observe(rest, {}), wanted)
            count += len(wanted)
        return count

    probes_in(8.0, 0.1)
    assert 4 <= probes_in(12.0, 0.1) <= 8  # each way, every 4 s
    probes_in(5.0, 1.0)
    assert bench.sick() == {}


def test_one_slow_flow_is_a_tie_until_another_tells() -> None:
    bench = Bench()
    slow = {Flow(0, 1, 2): Observation(CAPACITY * 0.2, 1.0)}
    bench.run(0.3, slow)
    assert bench.sick() == {}
    assert set(bench.monitor.probes) == {Flow(0, 2, 2), Flow(2, 0, 2), Flow(1, 2, 2), Flow(2, 1, 2)}
    bench.run(0.1, {**slow, Flow(0, 2, 2): Observation(CAPACITY * 0.02, 1.0)})
    assert set(bench.sick()) == {(0, 2)}


def test_a_tie_that_nobody_parts_blames_both() -> None:
    bench = Bench()
    bench.run(1.5, {Flow(0, 1, 2): Observation(CAPACITY * 0.2, 1.0)})
    assert set(bench.sick()) == {(0, 2), (1, 2)}


def test_probes_part_a_tie_before_it_is_over() -> None:
    bench = Bench()
    for _ in range(20):
        bench.now += WINDOW
        sound = {Flow(0, 2, 2): 0.95, Flow(2, 0, 2): 0.95} if bench.now > 100.2 else {}
        bench.monitor.step(bench.now, {Flow(0, 1, 2): Observation(CAPACITY * 0.2, 1.0)}, sound)
    assert set(bench.sick()) == {(1, 2)}


def rough(observations: dict[Flow, Observation], noise: random.Random, speed: float = 1.0) -> dict[Flow, Observation]:
    """What real sockets show: half of a NIC's speed or twice as much in any one window, right only in the long run."""
    return {
        flow: Observation(goodput * speed * noise.lognormvariate(-0.045, 0.3), share * noise.uniform(0.9, 1.0))
        for flow, (goodput, share, *_) in observations.items()
    }


@pytest.mark.parametrize("seed", range(3))
def test_where_speeds_are_learned_healthy_nics_stay_healthy(seed: int) -> None:
    """Though every window is wrong, and though all NICs are slower for a while, as on a busy machine."""
    noise = random.Random(seed)
    bench = Bench(Monitor(HOSTS, RAILS))
    assert not bench.run(8.0, lambda: rough(collectives({}), noise))
    assert bench.monitor.capacity == pytest.approx(np.full((HOSTS, RAILS), CAPACITY), rel=0.05)
    assert not bench.run(3.0, lambda: rough(collectives({}), noise, 0.3))
    assert not bench.run(1.0, {})
    assert not bench.run(3.0, lambda: rough(observe(all_pairs(), {}), noise))


@pytest.mark.parametrize("left", [0.75, 0.5, 0.25, 0.1, 0.0])
def test_where_speeds_are_learned_a_slow_nic_is_found_the_sooner_the_slower(left: float) -> None:
    noise = random.Random(int(100 * left))
    bench = Bench(Monitor(HOSTS, RAILS))
    bench.run(3.0, lambda: rough(collectives({}), noise))
    first = bench.run(2.5, lambda: rough(collectives(both(2, 1, left)), noise))
    assert first and first[0].changed == ((2, 1),)
    assert first[0].at - 103 <= patience(left) + 0.2
    bench.run(3.0, lambda: rough(collectives(both(2, 1, left)), noise))
    assert set(bench.sick()) == {(2, 1)}
    assert left - 4 / 16 <= bench.sick()[2, 1] <= left
    bench.run(4.0, lambda: rough(collectives({}), noise))
    assert bench.sick() == {}


def test_a_nic_that_was_slow_from_the_start_is_found_by_what_others_do() -> None:
    noise = random.Random(1)
    bench = Bench(Monitor(HOSTS, RAILS))
    bench.run(3.0, lambda: rough(collectives(both(1, 3, 0.4)), noise))
    assert set(bench.sick()) == {(1, 3)}


@pytest.mark.parametrize("seed", range(40))
def test_the_smallest_cover_is_the_smallest(seed: int) -> None:
    """Against every subset of hosts."""
    draw = random.Random(seed)
    pairs = draw.sample(list(itertools.combinations(range(6), 2)), draw.randrange(0, 8))
    sure, unsure = cover(pairs)
    for size in range(7):
        covers = [
            set(chosen)
            for chosen in itertools.combinations(range(6), size)
            if all(a in chosen or b in chosen for a, b in pairs)
        ]
        if covers:
            assert sure == set.intersection(*covers)
            assert sure | unsure == set.union(*covers)
            return


def test_large_covers_end_soon() -> None:
    pairs = [(a, b) for a in range(10) for b in range(10, 64)]
    sure, unsure = cover(pairs)
    assert sure == set(range(10)) and not unsure


def test_a_window_explains_what_a_full_nic_explains() -> None:
    window = look(collectives({}), np.full((HOSTS, RAILS), CAPACITY))
    assert window.unexplained == () and not window.blamed
    window = look(observe(all_pairs(), {(0, 1, 0): 0.1}), np.full((HOSTS, RAILS), CAPACITY))
    assert set(window.unexplained) == {Flow(1, other, 0) for other in (0, 2, 3)}
    assert window.blamed == {(1, 0)}
