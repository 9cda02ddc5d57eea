"""Plans out to MSCCL XML and back, and plans raised to algorithms: both move the same values."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.resccl.formats_inputs import in_place_only, instructions, msccl, nop, prove, ring_allreduce, step
from unit.resccl.mutations import ALGORITHMS, compile_options, make_algorithm, topology

from resccl import _core
from resccl.check import find_fault
from resccl.collectives import ChunkSpace
from resccl.formats import FormatError, export_msccl_xml, import_msccl_xml, raise_algorithm

SHAPES = [(1, 3), (2, 2), (2, 3)]


def compiled(collective: str, hosts: int, each: int, **options: Any) -> list[tuple[str, dict[str, Any]]]:
    """Plans of all built-in algorithms for a collective, root 1."""
    topology = {"host_of_rank": [r // each for r in range(hosts * each)], "rails": 2}
    found = []
    for name, *_ in _core.built_in_names():
        try:
            algorithm = _core.built_in(name, collective, topology, 1)
        except ValueError:
            continue  # the algorithm does not do this collective, or not on this shape
        found.append((name, _core.decode_plan(_core.compile(algorithm, topology, **options))))
    assert found
    return found


COLLECTIVES = ["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AllToAll", "Gather", "Scatter"]


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("allocation", ["per_connection", "state_based"])
def test_what_is_exported_imports_to_a_plan_that_is_right(collective: str, allocation: str) -> None:
    for hosts, each in SHAPES:
        for _, plan in compiled(collective, hosts, each, allocation=allocation):
            back = import_msccl_xml(export_msccl_xml(plan)).plan
            assert back is not None
            prove(back, slots=8, seeds=1)


def test_thread_blocks_of_the_format_have_one_peer_a_direction_and_one_dependency_a_step() -> None:
    plan = dict(compiled("AllReduce", 2, 3, allocation="state_based"))["hierarchical"]
    text = export_msccl_xml(plan, {"min_bytes": 5, "max_bytes": 7, "protocol": "LL"}).decode()
    assert text.count("<gpu ") == 6
    meta = import_msccl_xml(text.encode()).meta
    assert (meta["min_bytes"], meta["max_bytes"], meta["protocol"]) == (5, 7, "LL")
    assert all(line.count("depid=") == 1 for line in text.split("\n") if "<step" in line)


def test_names_are_quoted() -> None:
    plan = import_msccl_xml(ring_allreduce(3).encode()).plan
    assert plan is not None
    plan["name"] = "a\"<&>'b"
    assert import_msccl_xml(export_msccl_xml(plan)).meta["name"] == plan["name"]


def test_folds_keep_their_order() -> None:
    # The rank's own value comes last: its place must not be overwritten before, in place or not.
    plan = dict(compiled("Reduce", 1, 3))["direct"]
    folds = [i for r in range(3) for i in instructions(plan, r) if i["opcode"] == "Fold"]
    assert folds
    for i in folds:
        i["fold"] = [c for c in i["fold"] if c >= 0] + [-1]
    back = import_msccl_xml(export_msccl_xml(plan)).plan
    assert back is not None
    prove(back, slots=8)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_raised_plan_compiles_to_one_that_is_right(collective: str) -> None:
    for hosts, each in SHAPES:
        topology = {"host_of_rank": [r // each for r in range(hosts * each)], "rails": 2}
        for name, plan in compiled(collective, hosts, each):
            algorithm = raise_algorithm(plan)
            space = ChunkSpace(collective, plan["ranks"], algorithm["chunks"], plan["root"])
            assert find_fault(space, algorithm["transfers"]) is None, name
            prove(_core.decode_plan(_core.compile(algorithm, topology)), slots=8, seeds=1)


def any_plan(seed: int, collectives: Sequence[str]) -> dict[str, Any] | None:
    """A plan of the compiler for a random algorithm with random options; None where that cannot be."""
    rng = random.Random(seed)
    collective = rng.choice(collectives)
    where = topology(*rng.choice([(1, 2, 1), (1, 3, 1), (2, 2, 2), (2, 3, 2)]))
    try:
        algorithm = make_algorithm(rng, collective, rng.choice(ALGORITHMS[collective]), where)
    except ValueError:
        return None  # not made for this shape
    return _core.decode_plan(_core.compile(algorithm, where, **{**compile_options(rng), "fold": True}))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_any_plan_of_the_compiler_can_be_exported_and_raised(seed: int) -> None:
    plan = any_plan(seed, list(ALGORITHMS))
    if plan is None:
        return
    back = import_msccl_xml(export_msccl_xml(plan)).plan
    assert back is not None
    _core.verify(_core.encode_plan(back))
    raised = raise_algorithm(plan)
    space = ChunkSpace(plan["collective"], plan["ranks"], raised["chunks"], plan["root"])
    assert find_fault(space, raised["transfers"]) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_what_is_written_for_in_place_only_is_right_out_of_place_as_well(seed: int) -> None:
    plan = any_plan(seed, ["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"])
    if plan is None:
        return
    text = in_place_only(export_msccl_xml(plan).decode(), plan["collective"], plan["chunks_per_block"])
    back = import_msccl_xml(text.encode()).plan
    assert back is not None
    _core.verify(_core.encode_plan(back))


def test_raising_undoes_compiling() -> None:
    topology = {"host_of_rank": [0] * 4, "rails": 1}
    algorithm = _core.built_in("ring", "AllGather", topology, 0)
    raised = raise_algorithm(_core.decode_plan(_core.compile(algorithm, topology)))
    moves = [{tuple(row[[0, 1, 3, 4]]) for row in a["transfers"]} for a in (algorithm, raised)]
    assert moves[0] == moves[1]


def test_messages_that_no_output_needs_are_left_out() -> None:
    gpus: list[Any] = [
        [
            (1 - r, 1 - r, 0, [step("s", f"o{r}"), step("r", f"o{1 - r}")]),
            (1 - r, 1 - r, 1, [step("s", f"o{r}"), step("r", "s0")]),
        ]
        for r in range(2)
    ]
    plan = import_msccl_xml(msccl("allgather", 2, gpus, inplace=1, outofplace=0, i=0).encode()).plan
    assert plan is not None
    assert len(raise_algorithm(plan)["transfers"]) == 2


def test_what_an_algorithm_cannot_say_is_refused_by_rank_and_chunk() -> None:
    # Rank 1 passes on rank 0's value while it keeps its own one of the same chunk, and adds to that what comes of it.
    final = step("s", "o0")
    gpus: list[Any] = [
        [(1, 1, 0, [step("s", "i0"), step("r", "o0")])],
        [
            (2, 0, 0, [step("r", "s0"), step("s", "s0")]),
            (0, 2, 0, [step("rrc", "i0", "o0"), final]),
            (2, -1, 1, [nop(1, 0), final]),
        ],
        [(1, 1, 0, [step("rrs", "i0")]), (-1, 1, 1, [step("r", "o0")])],
    ]
    plan = import_msccl_xml(msccl("allreduce", 1, gpus, inplace=0, outofplace=1).encode()).plan
    assert plan is not None
    prove(plan)
    with pytest.raises(FormatError, match="rank 1's chunk 0 would need its own input again"):
        raise_algorithm(plan)


def test_a_rank_that_only_passes_on_can_do_so_after_its_own_part() -> None:
    # Here rank 1 could have sent its own value before the other one came, so an algorithm can say it.
    gpus: list[Any] = [
        [(1, 2, 0, [step("s", "i0"), step("r", "o0")])],
        [(2, 0, 0, [step("r", "s0"), step("s", "s0"), step("s", "i0")]), (-1, 2, 0, [step("r", "o0")])],
        [
            (0, 1, 0, [step("rrc", "i0", "o0"), step("rrc", "o0"), step("s", "o0")]),
            (1, -1, 0, [step("s", "o0", dep=(0, 1))]),
        ],
    ]
    plan = import_msccl_xml(msccl("allreduce", 1, gpus, inplace=0, outofplace=1).encode()).plan
    assert plan is not None
    prove(plan)
    prove(_core.decode_plan(_core.compile(raise_algorithm(plan), {"host_of_rank": [0] * 3, "rails": 1})), slots=8)


def test_a_plan_that_is_wrong_is_not_raised() -> None:
    plan = import_msccl_xml(ring_allreduce(3).encode()).plan
    assert plan is not None
    plan["rank_plans"][0]["thread_blocks"][0][-1]["dst"] = ["scratch", 0]
    with pytest.raises(FormatError, match="rank 0 ends without the right value of chunk 2"):
        raise_algorithm(plan)


def test_conversions_are_deterministic() -> None:
    plan = dict(compiled("AllReduce", 2, 3))["hierarchical"]
    assert export_msccl_xml(plan) == export_msccl_xml(plan)
    assert np.array_equal(raise_algorithm(plan)["transfers"], raise_algorithm(plan)["transfers"])
