"""The greedy synthesiser: right, deterministic, close to what the links allow, and on few thread blocks."""

from __future__ import annotations

from collections import defaultdict

import pytest

pytest.importorskip("resccl._core", reason="the native library is not built")

from resccl import Topology, compile, synth
from resccl.tbs import ALGORITHMS, SHAPES, count_msccl, count_ours, count_resccl, rails_of

MORE = [(1, 1), (1, 2), (2, 1), (3, 2), (1, 8)]


@pytest.mark.parametrize("shape", [*SHAPES, *MORE], ids=lambda shape: f"{shape[0]}x{shape[1]}")
@pytest.mark.parametrize("build", [synth.all_gather, synth.all_reduce], ids=lambda build: build.__name__)
def test_it_is_right(build, shape: tuple[int, int]) -> None:  # type: ignore[no-untyped-def]
    """Whatever the shape, rails and fan-out, the plan is proven."""
    hosts, gpus = shape
    for rails, fan_out in ((1, 1), (2, 3)):
        algorithm = build(hosts, gpus, rails=rails, fan_out=fan_out)
        algorithm.check()
        compile(algorithm, Topology.uniform(hosts, gpus, rails)).verify(any_count=True)
        assert (build(hosts, gpus, rails=rails, fan_out=fan_out).transfers == algorithm.transfers).all()


@pytest.mark.parametrize("rails", [1, 2, 4])
def test_no_link_carries_two_chunks_at_once(rails: int) -> None:
    """Between ranks of a host, and on each end of a rail; and nothing is sent before it has arrived."""
    shape = synth.Shape(3, 4, rails, fan_out=2)
    transfers = synth.spread(shape)
    until: dict[object, float] = defaultdict(float)
    there = {(rank, rank): 0.0 for rank in range(12)}
    for start, src, dst, chunk, rail in transfers:
        assert there[src, chunk] <= start
        assert (dst, chunk) not in there
        duration = shape.network_time if rail >= 0 else shape.local_time
        there[dst, chunk] = start + duration
        links = [(src, dst)] if rail < 0 else [(src // 4, rail, "out"), (dst // 4, rail, "in")]
        for link in links:
            assert until[link] <= start
            until[link] = start + duration
    assert len(there) == 12 * 12


@pytest.mark.parametrize(("hosts", "gpus"), SHAPES)
def test_it_is_near_what_the_network_allows(hosts: int, gpus: int) -> None:
    """Every chunk of the other hosts enters a host once, over its rails: it takes little longer than that."""
    shape = synth.Shape(hosts, gpus)
    bound = (hosts - 1) * gpus * shape.network_time / shape.rails
    end = max(
        start + (shape.network_time if rail >= 0 else shape.local_time) for start, *_, rail in synth.spread(shape)
    )
    assert bound <= end <= 1.25 * bound + gpus * shape.local_time


def test_idle_shares_are_simulated() -> None:
    """And say the same each time."""
    topology = Topology.uniform(2, 4, 2)
    counts = [count_ours(synth.all_gather(2, 4, 2), topology, idle=True) for _ in range(2)]
    assert counts[0] == counts[1]
    assert counts[0].idle is not None and 0 < counts[0].idle < 1
    assert str(counts[0]).startswith("4 · ") and str(counts[0]).endswith("%")


@pytest.mark.parametrize("arguments", [(0, 4), (2, 0), (1000, 8)])
def test_an_impossible_shape(arguments: tuple[int, int]) -> None:
    with pytest.raises(ValueError):
        synth.all_gather(*arguments)
    with pytest.raises(ValueError):
        synth.all_gather(2, 2, fan_out=0)
    with pytest.raises(ValueError):
        synth.all_gather(2, 2, network_time=0)


@pytest.mark.parametrize(("hosts", "gpus"), SHAPES)
def test_table_3(hosts: int, gpus: int) -> None:
    """MSCCL's counts are the paper's 14 and 30, ResCCL's its 8 and 16; ours are these, its 6 and 4, or fewer."""
    topology = Topology.uniform(hosts, gpus, rails_of(gpus))
    algorithms = {name: build(hosts, gpus, topology.rails) for name, build in ALGORITHMS.items()}
    for name in ("expert AllReduce", "expert AllGather"):
        assert count_msccl(algorithms[name], topology).thread_blocks == 4 * gpus - 2
        assert count_resccl(algorithms[name], topology).thread_blocks == 2 * gpus
        assert count_ours(algorithms[name], topology).thread_blocks <= 2 * gpus
    assert count_ours(algorithms["synthesised AllReduce"], topology).thread_blocks <= 6
    assert count_ours(algorithms["synthesised AllGather"], topology).thread_blocks <= 4
