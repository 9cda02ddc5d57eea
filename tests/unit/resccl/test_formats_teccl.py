"""Import of TE-CCL JSON: flows become transfers; the collective follows from the demands."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.resccl.formats_inputs import encoded, prove

from resccl import _core
from resccl.formats import FormatError, Imported, import_teccl_json


def flow(
    chunk: int, origin: int, source: int, target: int, epoch: int, volume: float | None = None, via: str = ""
) -> str:
    share = "" if volume is None else f" with volume {volume}"
    return f"Chunk {chunk} from {origin} traveled over {source}->{target}{share} in epoch {epoch}{via}"


def load(flows: list[str], demands: list[str] | None = None) -> Imported:
    document: dict[str, Any] = {"1-Epoch_Duration": 1e-6, "3-Epochs_Required": 9, "7-Flows": flows}
    if demands is not None:
        document["8-Chunk paths"] = {d: [] for d in demands}
    return import_teccl_json(encoded(document), "t.json")


def run(found: Imported) -> None:
    """The algorithm compiles to a plan that is right."""
    assert found.algorithm is not None
    topology = {"host_of_rank": [0] * found.algorithm["ranks"], "rails": 1}
    prove(_core.decode_plan(_core.compile(found.algorithm, topology)), slots=8)


def ring(first: int, ranks: int, chunks: int = 1) -> list[str]:
    """All-gather of gpus numbered from `first`, each chunk handed on around the ring."""
    return [
        flow(c, first + origin, first + (origin + hop) % ranks, first + (origin + hop + 1) % ranks, 5 * hop)
        for c in range(chunks)
        for origin in range(ranks)
        for hop in range(ranks - 1)
    ]


@pytest.mark.parametrize(("first", "chunks"), [(0, 1), (1, 2)])
def test_an_all_gather_is_told_from_its_flows(first: int, chunks: int) -> None:
    found = load(ring(first, 4, chunks))
    assert found.algorithm is not None
    assert (found.algorithm["collective"], found.algorithm["chunks"]) == ("AllGather", 4 * chunks)
    assert any("ranks 0 to 3" in note for note in found.notes) == (first > 0)
    assert found.meta["epoch_seconds"] == 1e-6
    run(found)


def test_demands_say_what_flows_alone_do_not() -> None:
    # Everybody gets the chunk on its way, and only one wants it.
    flows = [flow(0, 0, 0, 1, 0), flow(0, 0, 1, 2, 1), flow(0, 1, 1, 2, 0)]
    found = load(
        flows, ["Demand at 2 for chunk 0 from 0 met by epoch 2", "Demand at 2 for chunk 0 from 1 met by epoch 1"]
    )
    assert found.algorithm is not None
    assert (found.algorithm["collective"], found.algorithm["root"]) == ("Gather", 2)
    run(found)


def test_switches_hold_nothing_and_what_comes_twice_is_left_out() -> None:
    flows = [flow(0, 1, 1, 2, 0, via=" via switches 7->8"), flow(0, 2, 2, 1, 0), flow(0, 1, 1, 2, 3)]
    found = load(
        flows, ["Demand at 2 for chunk 0 from 1 met by epoch 1", "Demand at 1 for chunk 0 from 2 met by epoch 1"]
    )
    assert found.algorithm is not None
    assert len(found.algorithm["transfers"]) == 2
    run(found)


def test_an_all_to_all_whose_flows_move_parts_of_chunks() -> None:
    # Chunk d of every gpu goes to gpu d, half of it by way of the third.
    flows = []
    for origin in range(3):
        for target in range(3):
            if origin == target:
                continue
            other = 3 - origin - target
            flows.append(flow(target, origin, origin, target, 0, 0.5))
            flows.append(flow(target, origin, origin, other, 0, 0.5))
            flows.append(flow(target, origin, other, target, 1, 0.5))
    found = load(flows)
    assert found.algorithm is not None
    assert (found.algorithm["collective"], found.algorithm["chunks"]) == ("AllToAll", 18)
    run(found)


def test_broadcast_and_scatter() -> None:
    found = load(
        [flow(0, 1, 1, 0, 0), flow(0, 1, 0, 2, 1)], [f"Demand at {d} for chunk 0 from 1 met by epoch 1" for d in (0, 2)]
    )
    assert found.algorithm is not None
    assert (found.algorithm["collective"], found.algorithm["root"]) == ("Broadcast", 1)
    run(found)
    found = load([flow(0, 0, 0, 1, 0), flow(1, 0, 0, 2, 0)])
    assert found.algorithm is not None
    assert found.algorithm["collective"] == "Scatter"
    run(found)


@pytest.mark.parametrize(
    ("flows", "said"),
    [
        (["Chunk 0 went from 0 to 1"], "flow 0: .*known shape"),
        ([5], "flow 0: 5 is not of the known shape"),
        ([], "0 flows"),
        ([flow(0, 0, 1, 1, 0)], "from gpu 1 to itself"),
        ([flow(0, 0, 0, 1, 0, 0.1234567)], "no simple fraction"),
        ([flow(0, 0, 0, 1, 0, 7.0)], "no simple fraction"),
        ([*ring(0, 3)[:-1], flow(0, 2, 0, 1, 0)], "gpu 0 does not have it by then"),
        ([flow(0, 0, 0, 1, 0), flow(0, 1, 1, 2, 0)], "no known collective"),
    ],
)
def test_what_is_wrong_is_named(flows: list[Any], said: str) -> None:
    with pytest.raises(FormatError, match=said) as refusal:
        load(flows)
    assert "t.json" in str(refusal.value)


def test_what_never_arrives_is_named() -> None:
    demands = [f"Demand at {d} for chunk 0 from {s} met by epoch 1" for s in range(3) for d in range(3) if s != d]
    with pytest.raises(FormatError, match="chunk 0 of gpu 2 never reaches gpu 1"):
        load(ring(0, 3)[:-1], demands)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_flows_are_refused_or_imported_and_nothing_else(data: st.DataObject) -> None:
    flows = ring(0, 3)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(flows) - 1))
        new = [data.draw(st.integers(0, 3)) for _ in range(5)]
        flows[at : at + data.draw(st.integers(0, 1))] = [
            flow(*new, volume=data.draw(st.sampled_from([None, 0.5, 1.0])))
        ]
    try:
        found = load(flows)
    except FormatError:
        return
    run(found)
