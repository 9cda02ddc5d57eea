"""Plans around slow NICs: never better than what is possible, hardly worse, and no NIC beyond its part."""

from __future__ import annotations

import importlib
import itertools
import re
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from theseus_py.healing import COLLECTIVES, Collective, NoWay, Plan, chunks_for, floor, plan, plan_for
from theseus_py.healing.plan import DROP_BELOW, predicted_time
from theseus_py.healing.solve import healthy_time, solve

SIZE = 64 << 20


def sick(hosts: int, rails: int, nics: dict[tuple[int, int], float]) -> np.ndarray:
    health = np.ones((hosts, rails))
    for nic, left in nics.items():
        health[nic] = left
    return health


def one(left: float) -> dict[tuple[int, int], float]:
    return {(1, 2): left}


def two_of_a_host(left: float) -> dict[tuple[int, int], float]:
    return {(1, 2): left, (1, 3): left}


def two_hosts(left: float) -> dict[tuple[int, int], float]:
    return {(1, 2): left, (3, 0): left}


# Hosts, sick NICs, and what a linear program gave for AllReduce at p = 0.5, 0.1 and 0, to the digits it was noted with.
TABLE = [
    (4, one, (1.03, 1.06, 1.067)),
    (8, one, (1.016, 1.029, 1.032)),
    (4, two_of_a_host, (1.07, 1.21, 1.33)),
    (4, two_hosts, (1.07, 1.13, 1.14)),
]


@pytest.mark.parametrize(("hosts", "nics", "expected"), TABLE)
def test_unequal_shares_reach_what_is_possible(hosts, nics, expected) -> None:
    for left, time in zip((0.5, 0.1, 0.0), expected, strict=True):
        health = sick(hosts, 4, nics(left))
        best = solve("AllReduce", health).time / healthy_time("AllReduce", hosts, 4)
        assert best == pytest.approx(time, rel=0.01)
        assert best == pytest.approx(floor("AllReduce", health), rel=1e-4)


@pytest.mark.parametrize("collective", ["AllReduce", "AllGather"])
@pytest.mark.parametrize("nics", [{(0, 1): 0.5, (2, 3): 0.0}, {(1, 2): 0.0, (1, 3): 0.0}, {(1, 2): 0.4, (3, 0): 0.1}])
def test_of_the_best_splits_the_most_even_one_is_taken(collective: Collective, nics) -> None:
    """Rails that both ends have are all used: a vertex of the program leaves most of them out, and hosts then wait for
    each other.
    """
    health = sick(4, 4, nics)
    flows = solve(collective, health).flows
    for i, j in itertools.permutations(range(4), 2):
        assert ((flows[i, j] > 1e-4) == (np.minimum(health[i], health[j]) > 0)).all()


@pytest.mark.parametrize("size", [1 << 20, 16 << 20, 64 << 20])
@pytest.mark.parametrize("left", [0.5, 0.3, 0.0])
def test_chunks_are_chosen_to_fit_the_split(size: int, left: float) -> None:
    made = plan_for("AllReduce", sick(4, 4, one(left)), size)
    fewest = chunks_for("AllReduce", size, 4)
    assert fewest <= made.chunks <= 1.25 * fewest
    assert made.predicted <= 1.006 * made.parts[0].ideal


@pytest.mark.parametrize(("hosts", "nics"), [(hosts, nics) for hosts, nics, _ in TABLE])
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("left", [0.8, 0.5, 0.25, 0.0])
def test_whole_messages_cost_little(hosts, nics, collective: Collective, left: float) -> None:
    made = plan(collective, sick(hosts, 4, nics(left)), chunks=chunks_for(collective, SIZE, hosts))
    assert made.floor * (1 - 1e-9) <= made.predicted <= 1.02 * made.floor


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_weak_nic_is_left_out_unless_that_costs_much(collective: Collective) -> None:
    made = plan(collective, sick(4, 4, one(DROP_BELOW / 2)), chunks=chunks_for(collective, SIZE, 4))
    assert all(part.quotas[1, :, 2].sum() == 0 and part.quotas[:, 1, 2].sum() == 0 for part in made.parts)
    assert made.predicted <= 1.06 * made.floor
    made = plan("AllReduce", sick(4, 4, two_of_a_host(0.19)), chunks=1024)
    assert made.parts[0].quotas[1, :, 2].sum() > 0
    assert made.predicted <= 1.02 * made.floor


def test_the_host_with_the_slow_nic_owns_less() -> None:
    made = plan("AllReduce", sick(4, 4, one(0.1)), chunks=1000)
    shares = made.parts[0].shares
    assert shares[1] < 130 < 280 < min(shares[0], shares[2], shares[3])
    assert sum(shares) == 1000


@pytest.mark.parametrize("left", [0.75, 0.5, 0.25])
@pytest.mark.parametrize("rails", [2, 4, 8])
def test_rerouting_moves_the_papers_part(left: float, rails: int) -> None:
    """That is f = (n - 1)(1 - p)/(n - 1 + p) of its bytes, evenly to the n - 1 others: n/(n - 1 + p) in all."""
    made = plan("AllReduce", sick(4, rails, {(0, 0): left}), chunks=1024, kind="rerouted")
    out = made.parts[0].quotas[0].sum(axis=0)
    even = out.sum() / rails
    moved = (rails - 1) * (1 - left) / (rails - 1 + left)
    assert out[0] == pytest.approx((1 - moved) * even, abs=2)
    assert out[1:] == pytest.approx(np.full(rails - 1, (1 + moved / (rails - 1)) * even), abs=2)
    assert made.predicted == pytest.approx(rails / (rails - 1 + left), rel=0.01)
    assert made.parts[0].shares == (256,) * 4


def test_two_hosts_share_evenly() -> None:
    health = sick(2, 4, {(0, 0): 0.5})
    made = plan("AllReduce", health, chunks=512)
    assert made.parts[0].shares == (256, 256)
    assert made.predicted == pytest.approx(floor("AllReduce", health), rel=0.01)


def test_hosts_without_a_rail_in_common_have_no_plan() -> None:
    health = [[1, 0], [0, 1], [1, 1]]
    for collective in COLLECTIVES:
        with pytest.raises(NoWay):
            plan(collective, health, chunks=64, kind="rerouted")
    with pytest.raises(NoWay):
        plan("AllReduce", [[0, 0], [1, 1], [1, 1]], chunks=64)
    assert floor("AllReduce", [[0, 0], [1, 1], [1, 1]]) == np.inf
    # A weak rail that two hosts have in common is better than none.
    assert plan("AllGather", [[1, 0.1], [0, 1], [1, 1]], chunks=64).predicted < 40


@pytest.mark.parametrize("health", [[[1, 1]], [[1, 2], [1, 1]], [[1, -1], [1, 1]], [[float("nan"), 1], [1, 1]], [1, 1]])
def test_a_map_that_is_none_is_refused(health) -> None:
    with pytest.raises(ValueError, match="health"):
        plan("AllReduce", health, chunks=64)


maps = st.integers(2, 6).flatmap(
    lambda hosts: st.integers(1, 4).flatmap(
        lambda rails: st.lists(
            st.lists(st.sampled_from([0, 1, 2, 4, 8, 12, 16, 16, 16, 16]), min_size=rails, max_size=rails),
            min_size=hosts,
            max_size=hosts,
        )
    )
)


@settings(deadline=None, max_examples=120, derandomize=True)
@given(maps, st.sampled_from(COLLECTIVES), st.integers(1, 3), st.sampled_from([12, 64, 300]))
def test_any_map_gives_a_sound_plan_or_none(sixteenths, collective: Collective, locals_: int, chunks: int) -> None:
    """Sums hold, dead NICs carry nothing, and loads stay within T times capacity but for what rounding brings."""
    health = np.array(sixteenths) / 16
    try:
        made = plan(collective, health, chunks=chunks, ranks_per_host=locals_)
    except NoWay:
        return
    hosts = len(health)
    for part in made.parts:
        counts = part.quotas
        assert (counts >= 0).all() and counts[:, :, :].sum(axis=(0, 1))[(health == 0).all(axis=0)].sum() == 0
        assert counts.sum(axis=1)[health == 0].sum() == 0 and counts.sum(axis=0)[health == 0].sum() == 0
        between = counts.sum(axis=2)
        if part.shares:
            assert sum(part.shares) == chunks
        if collective == "AllReduce":
            shares = np.array(part.shares)
            expected = shares[:, None] + shares[None, :]
            np.fill_diagonal(expected, 0)
            assert (between == expected).all()
        elif collective != "Broadcast":
            each = chunks * locals_ ** (2 if collective == "AllToAll" else 1)
            assert (between == each * (1 - np.eye(hosts))).all()
        assert part.predicted >= part.floor * (1 - 1e-9)
    check_loads(made, health)


def check_loads(made: Plan, health: np.ndarray) -> None:
    split = solve(made.collective, health) if made.collective != "Broadcast" and made.hosts > 2 else None
    if split is None or (health < DROP_BELOW).any():
        return
    counts = made.parts[0].quotas
    whole = made.chunks if made.parts[0].shares else counts.sum(axis=2)[0, 1] * made.hosts
    slack = 2 * made.hosts + 2  # messages: each share and each pair may round up
    for load in (counts.sum(axis=1), counts.sum(axis=0)):
        assert (load <= split.time * health * whole + slack).all()


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_arguments_are_short_ascii_and_deterministic(collective: Collective) -> None:
    health = sick(8, 8, one(0.5))
    made = plan(collective, health, chunks=256, ranks_per_host=2)
    again = plan(collective, health.tolist(), chunks=256, ranks_per_host=2)
    assert made.arguments == again.arguments
    assert re.fullmatch(r"[a-z0-9=;,]+", made.arguments)
    assert len(made.arguments) <= 32768
    assert made.algorithm == "healed:" + made.arguments


@pytest.mark.parametrize("left", [0.5, 0.25, 0.0])
@pytest.mark.parametrize("collective", ["AllReduce", "AllGather"])
def test_large_clusters_are_planned_too(collective: Collective, left: float) -> None:
    """By weights: a table would be too long. Each NIC's load is rounded once or twice, not for each pair."""
    health = sick(64, 8, {(5, 2): left, (9, 0): 0.75})
    made = plan(collective, health, chunks=4096 if collective == "AllReduce" else 64)
    assert made.parts[0].weights is not None
    assert len(made.arguments) <= 16384
    assert made.floor <= made.predicted <= 1.05 * made.floor
    assert predicted_time(collective, made.algorithm, health) == pytest.approx(made.predicted)


def test_chunks_fit_messages() -> None:
    assert chunks_for("AllReduce", 64 << 20, 4) == 512
    assert chunks_for("AllReduce", 16 << 20, 4) == 128
    assert chunks_for("AllReduce", 1 << 30, 4) == 512
    assert chunks_for("AllReduce", 1 << 18, 4) == 64
    assert chunks_for("AllGather", 64 << 20, 4) == 128
    assert chunks_for("AllToAll", 1 << 18, 1000) == 1


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("locals_", [1, 2])
def test_the_generator_does_what_the_plan_says(collective: Collective, locals_: int, monkeypatch) -> None:
    """The arguments are those that csrc/compiler reads: its transfers load every pair and rail as planned."""
    resccl = pytest.importorskip("resccl", reason="the compiler's extension is not built")
    made = plan(collective, sick(4, 4, one(0.5)), chunks=24, ranks_per_host=locals_)
    check_generated(resccl, made, locals_)
    monkeypatch.setattr(importlib.import_module("theseus_py.healing.plan"), "LARGEST_TABLE", 0)
    made = plan(collective, sick(4, 4, one(0.5)), chunks=24, ranks_per_host=locals_)
    assert made.parts[0].weights is not None
    check_generated(resccl, made, locals_)


def check_generated(resccl: ModuleType, made: Plan, locals_: int) -> None:
    collective = made.collective
    topology = resccl.Topology.uniform(4, locals_, 4)
    for part in made.parts:
        algorithm = resccl.built_in(made.algorithm, collective, topology, (part.root_host or 0) * locals_)
        src, dst, _, _, _, rail = algorithm.transfers.T
        counts = np.zeros((4, 4, 4), dtype=np.int64)
        np.add.at(counts, (src // locals_, dst // locals_, rail), 1)
        counts[np.arange(4), np.arange(4)] = 0
        assert (counts == part.quotas).all()
    resccl.compile(algorithm, topology, scheduling="per_connection")  # proven


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_text_says_how_long_its_plan_takes(collective: Collective) -> None:
    made = plan(collective, sick(4, 4, one(0.5)), chunks=64)
    assert predicted_time(collective, made.algorithm, sick(4, 4, one(0.5))) == pytest.approx(made.predicted)
    assert predicted_time(collective, made.algorithm, sick(4, 4, one(0.1))) > 3
    with pytest.raises(ValueError, match="nothing of quotas"):
        predicted_time(collective, "healed:hosts=4", sick(4, 4, {}))
