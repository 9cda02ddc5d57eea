"""Leaves and spines: the trunk is the bottleneck in both directions, in order of priority; ways can be found out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.watch import GOODPUT, flow, rates, reaches, until_it_flows

from theseus_py.testbed import Shape, Testbed, missing

TRUNK = 50e6
FULL = TRUNK * GOODPUT
# What a window of a second may hold beyond the rate: buckets of 128 KiB and packets of 64 KiB.
BURST = 1.6e6
_TTL = str(Path(__file__).with_name("ttl.py"))


@pytest.fixture(autouse=True, scope="module")
def _priorities_work() -> None:
    if reasons := missing():
        pytest.skip("; ".join(reasons))


@pytest.fixture
def narrow() -> Iterator[Testbed]:
    """Four hosts, two at either leaf, behind one trunk of 50 Mbit/s."""
    with Testbed(4, 1, "1gbit", priorities=True, leaves=2, spines=1, trunk=TRUNK) as made:
        yield made


def who_answers(bed: Testbed, host: int, to: str, ttl: int, port: int) -> str:
    """The router at which a packet of that life dies."""
    reading, writing = os.pipe()
    process = bed.start(host, [sys.executable, _TTL, to, str(ttl), str(port)], stdout=writing, stderr=writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read().strip()
    assert process.wait(20) == 0, said
    return said


def test_the_trunk_limits_both_directions_at_once_and_a_leaf_does_not(narrow: Testbed) -> None:
    """Flows between leaves get the trunk's rate each way; one inside a leaf gets far more."""
    flow(narrow, 0, 1, 0, 7000)
    flow(narrow, 1, 0, 0, 7001)
    until_it_flows(narrow, 0, 0)
    until_it_flows(narrow, 1, 0)
    for host in (0, 1):
        assert reaches(lambda host=host: rates(narrow)[host][0][0], FULL) >= 0.9 * FULL  # type: ignore[misc]
    assert all(way <= 1.05 * FULL + BURST for host in rates(narrow)[:2] for way in host[0])
    flow(narrow, 2, 0, 0, 7002)
    until_it_flows(narrow, 2, 0)
    assert reaches(lambda: rates(narrow)[2][0][0], 4 * FULL) >= 4 * FULL


def test_the_trunk_serves_the_higher_mark_and_hands_over_when_it_ends(narrow: Testbed) -> None:
    """Two flows from two hosts meet only at the trunk: CS5 takes it, CS0 starves, and has it afterwards."""
    flow(narrow, 0, 1, 0, 7000, dscp=0)
    until_it_flows(narrow, 0, 0)
    high, _ = flow(narrow, 2, 3, 0, 7001, dscp=40)
    until_it_flows(narrow, 2, 0)
    assert reaches(lambda: rates(narrow)[3][0][1], FULL) >= 0.9 * FULL
    assert rates(narrow)[1][0][1] <= 0.1 * FULL
    high.kill()
    assert reaches(lambda: rates(narrow)[1][0][1], FULL) >= 0.9 * FULL


def test_flows_spread_over_spines_and_each_keeps_to_one() -> None:
    """A packet of life 2 dies at the spine, which says so: by source port some at either, the same one each time."""
    with Testbed(2, 1, "1gbit", priorities=True, leaves=2, spines=2, trunk=TRUNK) as bed:
        there = bed.shape.address(1, 0)
        assert who_answers(bed, 0, there, 1, 9000) == bed.shape.leaf_address(0, 0)
        ways = [who_answers(bed, 0, there, 2, port) for port in range(9000, 9012)]
        assert ways == [who_answers(bed, 0, there, 2, port) for port in range(9000, 9012)]
        assert set(ways) == {bed.shape.trunk_addresses(0, spine)[1] for spine in range(2)}
        assert who_answers(bed, 0, there, 3, 9000) in {bed.shape.trunk_addresses(1, spine)[0] for spine in range(2)}


def test_hosts_are_dealt_to_leaves_and_attached_beds_know_it() -> None:
    """Whoever attaches by name sees the same shape; every host is reached from every other one."""
    shape = Shape(5, 1, 1e9, True, 3, 2, TRUNK)
    bed = Testbed.up(f"leaves-{os.getpid()}", shape)
    try:
        assert bed.shape == shape
        assert [shape.leaf(host) for host in range(5)] == [0, 1, 2, 0, 1]
        for host in range(1, 5):
            flow(bed, host, 0, 0, 7000 + host)
            until_it_flows(bed, host, 0)
    finally:
        bed.down()


@pytest.mark.parametrize("asked, words", [({"trunk": 1e8}, "two leaves at least"), ({"leaves": 99}, "between 1 and")])
def test_shapes_that_make_no_sense_are_refused(asked: dict[str, float], words: str) -> None:
    """Before anything is made."""
    with pytest.raises(ValueError, match=words):
        Shape(**asked)  # type: ignore[arg-type]
