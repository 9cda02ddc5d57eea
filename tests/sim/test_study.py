"""Plans on simulated links, and the choice of a level: promises that hold whatever the numbers of the hardware."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from resccl import Algorithm, Plan, Topology, compile, synth
from resccl.examples import hm
from resccl.study import (
    LEVELS,
    Hardware,
    Level,
    Study,
    calibrate,
    choose_level,
    compile_level,
    idle_shares,
    simulate,
)

Maker = Callable[[int, int, int], Algorithm]
MEGABYTE = 1 << 20
SHAPES = [(2, 2), (2, 4), (3, 4)]
EXPERT = [hm.all_gather, hm.reduce_scatter, hm.all_reduce]


def study_of(make: Maker, hosts: int, gpus: int, rails: int = 1, hardware: Hardware | None = None) -> Study:
    return Study(make(hosts, gpus, rails), Topology.uniform(hosts, gpus, rails), hardware or Hardware())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("make", [*EXPERT, synth.all_gather, synth.all_reduce])
def test_every_levels_plan_is_proven(make: Maker, level: Level) -> None:
    """What is simulated is a right plan: the verifier accepts it."""
    compile_level(make(2, 4, 2), Topology.uniform(2, 4, 2), level, verify=True)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", [4096, 40 * MEGABYTE])
def test_shares_are_shares(level: Level, size: int) -> None:
    """Use of links and idle shares lie between 0 and 1, and something is used."""
    outcome = study_of(hm.all_reduce, 2, 4, 2).outcome(level, size)
    for share in (outcome.network_use, outcome.local_use, outcome.link_use, outcome.busiest):
        assert 0.0 < share <= 1.0
    assert outcome.blocks
    assert all(0.0 <= block.idle_share < 1.0 and block.end <= outcome.seconds * (1 + 1e-9) for block in outcome.blocks)


def test_the_same_run_gives_the_same_numbers() -> None:
    """Two compilations and two simulations agree to the last bit."""
    first, second = (study_of(hm.all_reduce, 2, 4, 2).outcome("task", 20 * MEGABYTE) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("hosts", "gpus"), SHAPES)
@pytest.mark.parametrize("make", EXPERT)
def test_hpds_is_never_slower_than_algorithm_level_for_much_data(make: Maker, hosts: int, gpus: int) -> None:
    """For 32 micro-batches of the expert algorithms, a TB a connection (section 3.1). TBs that connections share may
    cost something on tiny shapes, but never a tenth.
    """
    study = study_of(make, hosts, gpus, max(1, gpus // 2))
    size = float(32 * MEGABYTE * study.algorithm.chunks)
    slow = study.seconds("algorithm", size)
    assert study.seconds("wide", size) <= slow * (1 + 1e-9)
    assert study.seconds("task", size) <= slow * 1.1


def test_no_plan_beats_the_busiest_nic() -> None:
    """AllGather of 2 hosts: each NIC must take in the other host's share of its rail, at its bandwidth."""
    study = study_of(hm.all_gather, 2, 4, 2, Hardware(contention=0.0))
    size = 64.0 * MEGABYTE
    least = size / 2 / 2 / study.hardware.network_bandwidth
    for level in LEVELS:
        assert study.seconds(level, size) > least


@pytest.mark.parametrize("field", ["contention", "local_start", "network_start"])
def test_dearer_hardware_is_slower(field: str) -> None:
    """Each cost is felt, in the direction that its name says."""
    cheap = study_of(hm.all_gather, 2, 4, 2)
    dear = study_of(hm.all_gather, 2, 4, 2, replace(Hardware(), **{field: getattr(Hardware(), field) * 4}))
    assert dear.seconds("stage", 8.0 * MEGABYTE) > cheap.seconds("stage", 8.0 * MEGABYTE) * 1.001


def test_events_are_in_order_and_inside_the_run() -> None:
    """A TB's instructions do not overlap, and each message ends after it began."""
    topology = Topology.uniform(2, 2)
    outcome = simulate(compile(hm.all_reduce(2, 2), topology), topology, 9 * MEGABYTE, events=True)
    assert outcome.micro_batches == 3
    last: dict[tuple[int, int], float] = {}
    for event in outcome.events:
        where = (event.rank, event.tb)
        assert last.get(where, 0.0) <= event.start * (1 + 1e-9)
        assert event.start <= event.finish <= outcome.seconds * (1 + 1e-9)
        last[where] = event.finish


def test_an_idle_tb_is_seen_to_wait() -> None:
    """The second link of a chain waits for the first: half its life for one micro-batch, less for many (section 2)."""
    topology = Topology.uniform(1, 3)
    algorithm = Algorithm("chain", "Broadcast", ranks=3, chunks=1)
    with algorithm.phase("chain") as phase:
        phase.send(0, 1, step=0, chunk=0)
        phase.send(1, 2, step=1, chunk=0)
    plan = compile(algorithm, topology, allocation="per_connection")
    hardware = Hardware(thread_block_bandwidth=math.inf)
    one, many = (idle_shares(plan, topology, float(n * MEGABYTE), hardware) for n in (1, 19))
    assert sorted(one) == pytest.approx([0.0, 0.0, 0.5, 0.5])
    assert sorted(many) == pytest.approx([0.0, 0.0, 0.05, 0.05])


def test_slots_bound_who_runs_ahead() -> None:
    """Two senders, and a receiver that takes eight messages of one, then eight of the other: with eight slots the
    second sends beside the first, with one slot all but its first message come after.
    """

    def end(peer: int, outgoing: bool) -> dict[str, object]:
        return {"peer": peer, "outgoing": outgoing, "rail": 0, "channel": 0}

    def send(rank: int) -> dict[str, object]:
        instruction = {"opcode": "Send", "send": 0, "src": ["input", 0], "sub_pipeline": rank}
        return {"rank": rank, "scratch_chunks": 0, "connections": [end(2, True)], "thread_blocks": [[instruction]]}

    receives = [{"opcode": "Recv", "recv": peer, "dst": ["output", peer], "sub_pipeline": peer} for peer in (0, 1)]
    root = {"rank": 2, "scratch_chunks": 0, "connections": [end(0, False), end(1, False)], "thread_blocks": [receives]}
    plan = Plan.from_dict(
        {
            "name": "two to one",
            "collective": "Gather",
            "ranks": 3,
            "root": 2,
            "chunks_per_block": 1,
            "rendezvous_safe": False,
            "loop": "sub_pipelines",
            "rank_plans": [send(0), send(1), root],
        }
    )
    for slots, messages in ((8, 8), (1, 15)):
        hardware = Hardware(slots=slots, thread_block_bandwidth=math.inf, mesh=True)
        seconds = simulate(plan, Topology.uniform(1, 3), 3.0 * 8 * MEGABYTE, hardware).seconds
        assert seconds == pytest.approx(messages * hardware.message_time(MEGABYTE, False))


def test_a_plan_that_cannot_end_is_named() -> None:
    """Two TBs that wait for each other: an error that says so, no endless run."""
    instruction = {"opcode": "Nop", "dependencies": [[1, 0, 0]]}
    other = {"opcode": "Nop", "dependencies": [[0, 0, 0]]}
    plan = Plan.from_dict(
        {
            "name": "knot",
            "collective": "AllReduce",
            "ranks": 1,
            "root": 0,
            "chunks_per_block": 1,
            "rank_plans": [{"rank": 0, "connections": [], "thread_blocks": [[instruction], [other]]}],
        }
    )
    with pytest.raises(ValueError, match="cannot end"):
        simulate(plan, Topology.uniform(1, 1), MEGABYTE)


@pytest.mark.parametrize("size", [0, -1, math.nan, math.inf])
def test_no_size_no_simulation(size: float) -> None:
    """A buffer has some bytes."""
    topology = Topology.uniform(1, 2)
    with pytest.raises(ValueError, match="cannot be simulated"):
        simulate(compile(hm.all_gather(1, 2), topology), topology, size)


def test_the_chosen_level_is_never_worse_than_either() -> None:
    """Small messages lose at task level (equation 5) and large ones at algorithm level; the choice loses at neither."""
    study = study_of(hm.all_reduce, 2, 4, 2)
    pair: tuple[Level, Level] = ("algorithm", "task")
    models = {level: calibrate(study, level) for level in pair}
    chosen = set()
    for power in range(16, 29):
        size = float(1 << power)
        times = {level: study.seconds(level, size) for level in pair}
        level = choose_level(size, models)
        chosen.add(level)
        assert times[level] <= min(times.values()) * 1.001
    assert chosen == set(pair)
    with pytest.raises(ValueError, match="no level"):
        choose_level(1.0, {})


def test_a_model_is_exact_where_it_was_measured() -> None:
    """Calibration keeps what it saw, and goes on evenly beyond."""
    study = study_of(hm.all_gather, 2, 2)
    model = calibrate(study, "task")
    for n in (1, 2, 8):
        size = float(n * MEGABYTE * study.algorithm.chunks)
        assert model.seconds(size) == pytest.approx(study.seconds("task", size))
    far = [model.seconds(float(n * MEGABYTE * study.algorithm.chunks)) for n in (20, 30, 40)]
    assert np.diff(far) == pytest.approx([far[1] - far[0]] * 2)
