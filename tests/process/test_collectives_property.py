"""Every collective gives what NumPy gives: any type, reduction, count, rank count, schedule, placement and transport.

All ranks end with the same bits, nothing beside the output is written, and inputs stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from process.calls import check_outcomes, run_case
from process.pool import Pool
from process.reference import COLLECTIVES, OPS, REDUCING, ROOTED, TYPES, Case, draw_inputs, expected

from theseus_py import Communicator

ALL_REDUCE = ("one_shot", "direct", "ring", "tree", "doubling", "halving_doubling", "hierarchical")
SCHEDULES = {
    "AllReduce": ALL_REDUCE,
    "AllGather": ("direct", "ring", "doubling", "hierarchical"),
    "ReduceScatter": ("direct", "ring", "halving", "hierarchical"),
    "Broadcast": ("direct", "ring", "tree", "hierarchical"),
    "Reduce": ("direct", "ring", "tree", "hierarchical"),
    "AllToAll": ("direct", "pairwise"),
    "Gather": ("direct",),
    "Scatter": ("direct",),
}
FORCED = [(collective, schedule) for collective, names in SCHEDULES.items() for schedule in names]
RANKS = (1, 2, 3, 4, 5, 7, 8)
SLOT_BYTES = 1024
# How bytes travel: through small slots that soon wrap around, by reference to the sender's buffer, over TCP.
COPIED = {"THESEUS_SLOT_BYTES": str(SLOT_BYTES), "THESEUS_SLOTS": "2"}
REFERENCED = {"THESEUS_SLOT_BYTES": "65536"}
TCP = {"THESEUS_SHM": "0", "THESEUS_SLOT_BYTES": "4096", "THESEUS_SLOTS": "2"}
# The same examples every time: a failure in CI is one at the desk.
HOUSE = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


def counts(kind: str, ranks: int) -> st.SearchStrategy[int]:
    """Small and odd ones, those around a slot's end and a chunk's end, and one of many slots."""
    slot = SLOT_BYTES // TYPES[kind].size
    around = [edge + by for edge in (slot, 2 * slot, ranks * slot) for by in (-1, 0, 1)]
    return st.sampled_from([0, 1, 2, 3, 7, 33, 1000, *around, 5 * ranks * slot + 3])


@st.composite
def cases(draw: st.DrawFn, collective: str, ranks: int) -> Case:
    """Any call of `collective`."""
    kind = draw(st.sampled_from(sorted(TYPES)))
    return Case(
        collective,
        kind,
        draw(counts(kind, ranks)),
        op=draw(st.sampled_from(OPS)) if collective in REDUCING else "Sum",
        root=draw(st.integers(0, ranks - 1)) if collective in ROOTED else 0,
        in_place=draw(st.booleans()),
        send_shift=draw(st.sampled_from([0, 1, 3, 15])),
        recv_shift=draw(st.sampled_from([0, 1, 2, 13])),
        exact=draw(st.booleans()),
        seed=draw(st.integers(0, 2**20)),
    )


def check(pool: Pool, ranks: int, batch: list[Case], environment: dict[str, str]) -> None:
    """Run a batch of calls on all ranks, one after the other, and compare."""
    inputs = [draw_inputs(case, ranks) for case in batch]

    def body(communicator: Communicator) -> Any:
        own = [each[communicator.rank] for each in inputs]
        return [run_case(communicator, case, data) for case, data in zip(batch, own, strict=True)]

    outcomes = pool.run_with(ranks, body, environment)
    for index, case in enumerate(batch):
        problems = check_outcomes(case, [each[index] for each in outcomes], expected(case, inputs[index], ranks))
        assert not problems, f"{case}, {ranks} ranks: {'; '.join(problems)}"


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("collective", "schedule"), FORCED)
def test_any_call(pool: Pool, collective: str, schedule: str, ranks: int) -> None:
    @HOUSE
    @given(cases(collective, ranks), st.sampled_from([COPIED, REFERENCED]))
    def holds(case: Case, transport: dict[str, str]) -> None:
        check(pool, ranks, [case], {**transport, "THESEUS_ALGO": schedule})

    holds()


@pytest.mark.parametrize(("collective", "schedule"), [each for each in FORCED if each[0] in REDUCING])
def test_every_type_with_every_reduction(pool: Pool, collective: str, schedule: str) -> None:
    batch = [
        Case(collective, kind, count, op, root=1, in_place=count == 3, seed=7, send_shift=1)
        for kind in TYPES
        for op in OPS
        for count in (3, 1100)
    ]
    check(pool, 3, batch, {**COPIED, "THESEUS_ALGO": schedule})


@pytest.mark.parametrize(("collective", "schedule"), FORCED)
def test_the_forced_schedule_is_the_one_that_runs(pool: Pool, collective: str, schedule: str) -> None:
    index = COLLECTIVES.index(collective)
    environment = {**COPIED, "THESEUS_ALGO": schedule}
    chosen = pool.run_with(4, lambda each: each._core.explain(index, 1000, 7, 0)["chosen"], environment)
    assert chosen == [schedule] * 4


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("ranks", [16, 33, 64])
def test_many_ranks(pool: Pool, collective: str, ranks: int) -> None:
    batch = [
        Case(collective, "float32", 7, root=ranks - 1, in_place=True, seed=1),
        Case(collective, "int8", 300, op="Avg" if collective in REDUCING else "Sum", seed=2),
    ]
    check(pool, ranks, batch, {"THESEUS_SLOT_BYTES": "1024", "THESEUS_SLOTS": "2"})


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_over_tcp(pool: Pool, collective: str, ranks: int) -> None:
    @HOUSE
    @given(cases(collective, ranks))
    def holds(case: Case) -> None:
        check(pool, ranks, [case], TCP)

    holds()
