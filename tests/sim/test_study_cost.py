"""The formulas of ResCCL's section 3, against sums made by hand, and against simulations where both must agree."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from resccl import Algorithm, Topology, compile
from resccl.study import Hardware, Study, closed_forms, cost, simulate

ALPHA, C, BETA = 2e-6, 1 << 20, 1e-10


def one_link(chunks: int) -> Algorithm:
    """Rank 0 has `chunks` chunks for rank 1."""
    algorithm = Algorithm("line", "Broadcast", ranks=2, chunks=chunks)
    with algorithm.phase("send") as phase:
        for chunk in range(chunks):
            phase.send(0, 1, step=0, chunk=chunk)
    return algorithm


def test_the_papers_figure_2_by_hand() -> None:
    """Four micro-batches, each on NVLink (1), NIC (2), NVLink (1): 4 each at algorithm level, else 1 + 4 * 2 + 1."""
    nic = [2.0]
    assert cost.algorithm_level(4, nic, [2.0]) == 16.0  # the NIC waits 1 before and 1 after its task
    assert cost.task_level(4, nic, (), load=2.0) == 10.0  # filled once (and emptied once)
    first, second, third = (cost.Stage([s], z=z) for s, z in ((1.0, 2.0), (2.0, 1.0), (1.0, 2.0)))
    assert cost.stage_level(4, [first, second, third], gamma=0.25) == 4 * (2 * 1.0 + 0.25)
    assert cost.stage_level(4, [second], gamma=0.25) == 8.0


def test_every_micro_batch_pays_every_bubble() -> None:
    """Equation 3 is linear in n, and in tasks and bubbles alike."""
    task = cost.task_seconds(ALPHA, C, BETA)
    assert task == pytest.approx(2e-6 + 104.8576e-6)
    assert cost.algorithm_level(7, [task] * 3, [0, 1e-5, 3e-5]) == pytest.approx(7 * (3 * task + 4e-5))


def test_task_level_wins_from_the_break_even_on() -> None:
    """With n on the one side T_P > T_A, on the other T_P < T_A; between them they are equal (equations 3 and 5)."""
    tasks, bubbles, left, load = [1.0, 1.0], [0.0, 0.5], [0.1], 2.0
    n = cost.break_even(tasks, bubbles, left, load)
    assert n == pytest.approx(5.0)
    for micro_batches, ahead in ((4, False), (6, True)):
        task = cost.task_level(micro_batches, tasks, left, load)
        assert (task < cost.algorithm_level(micro_batches, tasks, bubbles)) is ahead
    assert cost.break_even(tasks, [0.0, 0.0], [], 1.0) == math.inf
    assert cost.break_even(tasks, [0.0, 0.0], [], 0.0) == 0.0


def test_contention_counts_only_above_one() -> None:
    """A link that one uses at a time costs nothing more, so L(z) is no reward below a capacity either."""
    assert [cost.linear_contention(z) for z in (0.5, 1.0, 2.0, 3.5)] == [0.0, 0.0, 1.0, 2.5]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: cost.algorithm_level(0, [1.0], [0.0]),
        lambda: cost.algorithm_level(1, [-1.0], [0.0]),
        lambda: cost.algorithm_level(1, [1.0], [-1.0]),
        lambda: cost.stage_level(1, [], 0.1),
        lambda: cost.stage_level(1, [cost.Stage([1.0])], -0.1),
        lambda: cost.task_level(1, [1.0], [], load=-1.0),
        lambda: Hardware(local_bandwidth=0.0),
        lambda: Hardware(slots=0),
        lambda: Hardware(local_start=math.nan),
    ],
)
def test_nonsense_is_refused(wrong: Callable[[], object]) -> None:
    """No negative time, bandwidth or count gives a number."""
    with pytest.raises(ValueError):
        wrong()


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("micro_batches", [1, 2, 9])
def test_one_link_without_contention_is_the_formula(hosts: int, micro_batches: int) -> None:
    """Three chunks on one link take n m (alpha + c beta): simulated, by formula and by hand, at every level."""
    hardware = Hardware(thread_block_bandwidth=math.inf, contention=0.0)
    topology = Topology.uniform(hosts, 2 // hosts)
    algorithm = one_link(3)
    size = 3.0 * micro_batches * hardware.chunk
    expected = 3 * micro_batches * hardware.message_time(hardware.chunk, hosts == 2)
    plan = compile(algorithm, topology)
    assert simulate(plan, topology, size, hardware).seconds == pytest.approx(expected, rel=1e-9)
    times = closed_forms(algorithm, topology, size, hardware)
    for seconds in (times.algorithm, times.stage, times.task):
        assert seconds == pytest.approx(expected, rel=1e-6)
    study = Study(algorithm, topology, hardware)
    assert study.seconds("algorithm", size) == pytest.approx(expected, rel=1e-9)


def test_a_chain_fills_once_at_task_level() -> None:
    """Over two equal links one after the other: T_A = 2 n t, T_P = (n + 1) t; the simulation says the same."""
    hardware = Hardware(thread_block_bandwidth=math.inf)
    topology = Topology.uniform(1, 3)
    algorithm = Algorithm("chain", "Broadcast", ranks=3, chunks=1)
    with algorithm.phase("chain") as phase:
        phase.send(0, 1, step=0, chunk=0)
        phase.send(1, 2, step=1, chunk=0)
    n = 6
    size = float(n * hardware.chunk)
    one = hardware.message_time(hardware.chunk, False)
    times = closed_forms(algorithm, topology, size, hardware)
    assert times.algorithm == pytest.approx(2 * n * one)
    assert times.task == pytest.approx((n + 1) * one)
    study = Study(algorithm, topology, hardware)
    assert study.seconds("algorithm", size) == pytest.approx(times.algorithm)
    assert study.seconds("task", size) == pytest.approx(times.task)
