"""Plans from outside: what is loaded runs right whatever made it, and what must not run is refused on all ranks."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from process.calls import check_outcomes, run_case
from process.pool import Pool
from process.processes import Ranks, one_host, two_hosts
from process.reference import COLLECTIVES, OPS, REDUCING, ROOTED, TYPES, Case, draw_inputs, expected
from process.test_collectives_property import COPIED, FORCED, HOUSE, REFERENCED, TCP

import theseus_py
from theseus_py import Communicator
from theseus_py.errors import InvalidArgument, InvalidUsage, TheseusError

resccl = pytest.importorskip("resccl", reason="the compiler's extension is not built")

LOOPS = ("micro_batches", "sub_pipelines")
SCHEDULINGS = ("hpds", "round_robin", "stage_level", "per_connection")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


@functools.cache
def plan_of(
    collective: str,
    schedule: str,
    ranks: int,
    root: int = 0,
    loop: str = "micro_batches",
    scheduling: str = "hpds",
    hosts: int = 1,
    rails: int = 1,
) -> bytes:
    """A built-in algorithm, compiled."""
    topology = resccl.Topology(tuple(rank * hosts // ranks for rank in range(ranks)), rails)
    algorithm = resccl.built_in(schedule, collective, topology, root)
    options: dict[str, Any] = {} if scheduling == "per_connection" else {"loop": loop}
    return bytes(resccl.compile(algorithm, topology, scheduling=scheduling, **options).to_bytes())


def check_plan(pool: Pool, ranks: int, file: bytes, batch: list[Case], environment: dict[str, str]) -> None:
    """Load a plan on all ranks, run a batch of calls on it, and compare."""
    inputs = [draw_inputs(case, ranks) for case in batch]

    def body(communicator: Communicator) -> Any:
        plan = communicator.load_plan(file)
        own = [each[communicator.rank] for each in inputs]
        return [run_case(communicator, case, data, plan.id) for case, data in zip(batch, own, strict=True)]

    outcomes = pool.run_with(ranks, body, environment)
    for index, case in enumerate(batch):
        problems = check_outcomes(case, [each[index] for each in outcomes], expected(case, inputs[index], ranks))
        assert not problems, f"{case}, {ranks} ranks: {'; '.join(problems)}"


@pytest.mark.parametrize(("collective", "schedule"), FORCED)
def test_any_loaded_plan_gives_what_numpy_gives(pool: Pool, collective: str, schedule: str) -> None:
    """Whatever the scheduling, the order of loops, the shape it was compiled for, the count, the type and the place."""

    @HOUSE
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        hosts, rails = data.draw(st.sampled_from([(1, 1), (2, 1), (2, 2)]))
        ranks = data.draw(st.sampled_from([2, 3, 4, 6] if hosts == 1 else [2, 4, 6]))
        root = data.draw(st.integers(0, ranks - 1)) if collective in ROOTED else 0
        loop, scheduling = data.draw(st.sampled_from(LOOPS)), data.draw(st.sampled_from(SCHEDULINGS))
        file = plan_of(collective, schedule, ranks, root, loop, scheduling, hosts, rails)
        case = Case(
            collective,
            data.draw(st.sampled_from(sorted(TYPES))),
            data.draw(st.sampled_from([1, 2, 7, 33, 255, 256, 1000, 5003])),
            op=data.draw(st.sampled_from(OPS)) if collective in REDUCING else "Sum",
            root=root,
            in_place=data.draw(st.booleans()),
            seed=data.draw(st.integers(0, 2**20)),
        )
        check_plan(pool, ranks, file, [case], data.draw(st.sampled_from([COPIED, REFERENCED])))

    holds()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("collective", ["AllReduce", "AllGather", "ReduceScatter"])
def test_plans_run_over_tcp(pool: Pool, collective: str, loop: str) -> None:
    """Each rank a host of its own; the plan's three rails become connections of the one there is."""
    file = plan_of(collective, "hierarchical", 4, 0, loop, "hpds", 2, 3)
    check_plan(pool, 4, file, [Case(collective, "int32", count, seed=count) for count in (1, 33, 7001)], TCP)


@pytest.mark.parametrize("place", [one_host, two_hosts])
def test_plans_run_between_processes(place: Any, tmp_path: Path) -> None:
    """Shared memory that processes map for themselves, channels that a plan adds included; TCP between hosts."""
    plans = []
    for collective in ("AllReduce", "AllGather", "ReduceScatter"):
        for loop in LOOPS:
            file = tmp_path / f"{collective}-{loop}"
            file.write_bytes(plan_of(collective, "hierarchical", 4, 0, loop, "hpds", 2, 2))
            plans.append([collective, str(file)])
    environment = {"THESEUS_SLOT_BYTES": "4096"}
    with Ranks("plans_of_seed", 4, place, environment, plans=plans, counts=[1, 1001, 50_000]) as ranks:
        ranks.wait_for("done")


def all_to_next(ranks: int, channels: int) -> dict[str, Any]:
    """AllGather of two ranks' worth of data by hand: rank r sends its input to each other rank on `channels` channels.

    Each channel carries one chunk, and the receiver takes the last channel first, so that one FIFO for all would fail.
    """
    parts = []
    for rank in range(ranks):
        connections, blocks = [], []
        for peer in (each for each in range(ranks) if each != rank):
            for channel in range(channels):
                connections.append({"peer": peer, "outgoing": True, "rail": 0, "channel": channel})
                blocks.append([{"opcode": "Send", "send": len(connections) - 1, "src": ["input", channel]}])
            arrivals = []
            for channel in reversed(range(channels)):
                connections.append({"peer": peer, "outgoing": False, "rail": 0, "channel": channel})
                arrivals.append(
                    {"opcode": "Recv", "recv": len(connections) - 1, "dst": ["output", peer * channels + channel]}
                )
            blocks.append(arrivals)
        copies = [
            {"opcode": "Copy", "src": ["input", channel], "dst": ["output", rank * channels + channel]}
            for channel in range(channels)
        ]
        parts.append(
            {"rank": rank, "scratch_chunks": 0, "connections": connections, "thread_blocks": [*blocks, copies]}
        )
    return {
        "name": f"channels({channels})", "collective": "AllGather", "ranks": ranks, "chunks_per_block": channels,
        "rank_plans": parts,
    }  # fmt: skip


@pytest.mark.parametrize("environment", [COPIED, TCP])
def test_each_channel_of_a_pair_is_a_connection_of_its_own(pool: Pool, environment: dict[str, str]) -> None:
    file = resccl.Plan.from_dict(all_to_next(3, 5)).to_bytes()
    check_plan(pool, 3, file, [Case("AllGather", "int32", count, seed=count) for count in (1, 5, 999)], environment)


def test_too_many_channels_are_refused(pool: Pool) -> None:
    file = resccl.Plan.from_dict(all_to_next(2, 200)).to_bytes()
    assert_refused(pool, 2, [file, file], "more than 128 connections from rank")


def refusals(pool: Pool, ranks: int, files: list[bytes]) -> list[TheseusError]:
    """What each rank is told; afterwards the communicator still works."""

    def body(communicator: Communicator) -> TheseusError:
        with pytest.raises(TheseusError) as told:
            communicator.load_plan(files[communicator.rank])
        total = np.ones(3, np.float32)
        communicator.all_reduce(total)
        assert (total == communicator.ranks).all()
        return told.value

    return pool.run_with(ranks, body, COPIED)


def assert_refused(pool: Pool, ranks: int, files: list[bytes], said: str) -> None:
    told = refusals(pool, ranks, files)
    assert len({(type(each), str(each)) for each in told}) == 1, told
    assert said in str(told[0])


def test_wrong_plans_are_refused_by_all_for_one_reason(pool: Pool) -> None:
    """Broken bytes, another number of ranks, a wrong result, a deadlock: nothing runs, everybody knows why."""
    right = plan_of("AllReduce", "ring", 3)
    assert_refused(pool, 3, [b"no plan"] * 3, "rank 0")
    assert_refused(pool, 3, [right[:-9]] * 3, "rank")
    assert_refused(pool, 3, [plan_of("AllReduce", "ring", 2)] * 3, "is for 2 ranks, this communicator has 3")
    wrong = all_to_next(3, 1)
    wrong["rank_plans"][1]["thread_blocks"][1][0]["dst"] = ["output", 2]  # twice there, and never in its place
    assert_refused(pool, 3, [resccl.Plan.from_dict(wrong).to_bytes()] * 3, "rank 1")
    circle = all_to_next(3, 1)
    for part in circle["rank_plans"]:
        part["thread_blocks"] = [[*part["thread_blocks"][1], *part["thread_blocks"][0], *part["thread_blocks"][3],
                                  *part["thread_blocks"][2], *part["thread_blocks"][4]]]  # fmt: skip
    assert_refused(pool, 3, [resccl.Plan.from_dict(circle).to_bytes()] * 3, "deadlock")


def test_different_files_are_refused_naming_the_ranks(pool: Pool) -> None:
    files = [plan_of("AllReduce", "ring", 3)] * 2 + [plan_of("AllReduce", "tree", 3)]
    assert_refused(pool, 3, files, "rank 0 gave a plan of")
    assert_refused(pool, 3, files, "rank 2 another one")


def test_different_plans_in_one_request_are_an_error(pool: Pool) -> None:
    """Ranks that name different plans learn of it; nobody waits for ever."""
    files = [plan_of("AllReduce", "ring", 3), plan_of("AllReduce", "tree", 3)]

    def body(communicator: Communicator) -> str:
        plans = [communicator.load_plan(file) for file in files]
        communicator.set_timeout(60)
        with pytest.raises(TheseusError) as told:
            communicator.all_reduce(np.ones(1000, np.float32), plan=plans[communicator.rank == 1])
        return str(told.value)

    made = pool.join(3)
    try:
        said = pool.run(3, lambda rank: body(made[rank]))
    finally:
        for communicator in made:
            communicator.abort()
    assert any("loaded plan 1" in each and "loaded plan 2" in each for each in said), said


def test_calls_must_fit_their_plan(pool: Pool) -> None:
    files = [plan_of("AllReduce", "ring", 2), plan_of("Broadcast", "ring", 2, 1)]

    def body(communicator: Communicator) -> None:
        reduce, broadcast = (communicator.load_plan(file) for file in files)
        data, both = np.ones(4, np.float32), np.ones(8, np.float32)
        with pytest.raises(InvalidArgument, match="does AllReduce, not AllGather"):
            communicator.all_gather(data, both, plan=reduce)
        with pytest.raises(InvalidArgument, match="has root 1, not 0"):
            communicator.broadcast(data, 0, plan=broadcast)
        with pytest.raises(InvalidArgument, match="none that this communicator has loaded"):
            communicator._core.run_plan(99, 0, data.ctypes.data, data.ctypes.data, 4, 7, 0, 0, 0)
        with pytest.raises(InvalidUsage), theseus_py.group():
            communicator.load_plan(files[0])
        communicator.broadcast(data, 1, plan=broadcast)
        with theseus_py.group():
            communicator.all_reduce(data, plan=reduce)
            communicator.all_reduce(data)
        work = communicator.all_reduce(data, plan=reduce, async_op=True)
        assert work is not None
        work.wait()
        assert (data == 8).all()

    pool.run_with(2, body, COPIED)


def test_a_plan_belongs_to_its_communicator(pool: Pool) -> None:
    def body(communicator: Communicator) -> None:
        plan = communicator.load_plan(plan_of("AllReduce", "ring", 2))
        child = communicator.split(0)
        assert child is not None
        with pytest.raises(InvalidArgument, match="loaded by another communicator"):
            child.all_reduce(np.ones(2), plan=plan)
        child.destroy()

    pool.run_with(2, body, COPIED)


def parking(in_place_only: bool = False) -> dict[str, Any]:
    """AllReduce of two ranks with two chunks; each parks the other's chunk 0 in the Output of chunk 1 before it adds.

    Out of place both inputs stay; `in_place_only`: the sums are made in Output, which must hold the input before.
    """

    def rank_part(rank: int) -> dict[str, Any]:
        peer = 1 - rank
        connections = [{"peer": peer, "outgoing": True}, {"peer": peer, "outgoing": False}]
        source = "output" if in_place_only else "input"
        left = rank == 1  # rank 0's value comes first on both
        if in_place_only:
            block = [
                {"opcode": "Send", "send": 0, "src": ["input", 0]},
                {"opcode": "Send", "send": 0, "src": ["input", 1]},
                {
                    "opcode": "RecvReduceCopy",
                    "recv": 1,
                    "src": ["input", 0],
                    "dst": ["output", 0],
                    "recv_is_left": left,
                },
                {"opcode": "RecvReduceCopy", "recv": 1, "src": [source, 1], "dst": ["output", 1], "recv_is_left": left},
            ]
        else:
            block = [
                {"opcode": "Send", "send": 0, "src": ["input", 1]},
                {"opcode": "Send", "send": 0, "src": ["input", 0]},
                {
                    "opcode": "RecvReduceCopy",
                    "recv": 1,
                    "src": ["input", 1],
                    "dst": ["output", 0],
                    "recv_is_left": left,
                },
                {"opcode": "Copy", "src": ["output", 0], "dst": ["output", 1]},
                {
                    "opcode": "RecvReduceCopy",
                    "recv": 1,
                    "src": ["input", 0],
                    "dst": ["output", 0],
                    "recv_is_left": left,
                },
            ]
        return {"rank": rank, "scratch_chunks": 0, "connections": connections, "thread_blocks": [block]}

    return {
        "name": "parking", "collective": "AllReduce", "ranks": 2, "chunks_per_block": 2,
        "rank_plans": [rank_part(0), rank_part(1)],
    }  # fmt: skip


def test_plans_that_park_chunks_run_with_any_count(pool: Pool) -> None:
    """A chunk in the place of a shorter one would run over it, so such counts run on copies; the guards would tell."""
    file = resccl.Plan.from_dict(parking()).to_bytes()
    batch = [
        Case("AllReduce", kind, count, op=op, seed=count)
        for count in (1, 2, 7, 1001)
        for kind in ("int32", "float32")
        for op in ("Sum", "Avg")
    ]
    check_plan(pool, 2, file, batch, COPIED)

    def body(communicator: Communicator) -> None:
        plan = communicator.load_plan(file)
        assert not plan.any_count and plan.out_of_place and not plan.in_place
        with pytest.raises(InvalidArgument, match="wrong in place"):
            communicator.all_reduce(np.ones(4, np.float32), plan=plan)
        # Two of them in one group share the plan's room for copies, one after the other.
        first, second = np.full(3, 1, np.int32), np.full(5, 2, np.int32)
        results = np.zeros(3, np.int32), np.zeros(5, np.int32)
        with theseus_py.group():
            communicator.all_reduce(first, results[0], plan=plan)
            communicator.all_reduce(second, results[1], plan=plan)
        assert (results[0] == 2).all() and (results[1] == 4).all()

    pool.run_with(2, body, COPIED)


def test_plans_for_one_place_say_so(pool: Pool) -> None:
    file = resccl.Plan.from_dict(parking(in_place_only=True)).to_bytes()

    def body(communicator: Communicator) -> None:
        plan = communicator.load_plan(file)
        assert plan.in_place and not plan.out_of_place
        data = np.arange(1000, dtype=np.int64)
        for _ in range(2):  # the second call is one that was seen before
            with pytest.raises(InvalidArgument, match="right in place only"):
                communicator.all_reduce(data, np.zeros_like(data), plan=plan)
            communicator.all_reduce(data, plan=plan)
        assert (data == np.arange(1000) * 4).all() and not plan.scales
        with pytest.raises(InvalidArgument, match="scale the input"):
            communicator.all_reduce(np.ones(4, np.float32), op="avg", plan=plan)

    pool.run_with(2, body, COPIED)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_scheduling_setting_changes_no_result(pool: Pool, collective: str) -> None:
    """THESEUS_SCHEDULING=hpds: what the policy chooses is compiled with sub-pipelines, and gives the same."""
    environment = {**COPIED, "THESEUS_SCHEDULING": "hpds"}
    batch = [
        Case(collective, "int32", count, in_place=in_place, root=1, seed=count)
        for count in (1, 7, 300, 5003)
        for in_place in (False, True)
    ]
    for ranks in (2, 3, 4):
        inputs = [draw_inputs(case, ranks) for case in batch]

        def body(communicator: Communicator, inputs: Any = inputs) -> Any:
            return [
                run_case(communicator, case, each[communicator.rank]) for case, each in zip(batch, inputs, strict=True)
            ]

        outcomes = pool.run_with(ranks, body, environment)
        for index, case in enumerate(batch):
            problems = check_outcomes(case, [each[index] for each in outcomes], expected(case, inputs[index], ranks))
            assert not problems, f"{case}, {ranks} ranks: {'; '.join(problems)}"


def test_ranks_must_agree_on_the_scheduling() -> None:
    """As on THESEUS_ALGO: a difference is an error that names the setting, not a hang."""

    def place(rank: int) -> dict[str, str]:
        return {"THESEUS_SCHEDULING": "hpds" if rank else "per-connection"}

    with Ranks("init_as", 2, place, claims=[[0, 2], [1, 2]]) as ranks:
        for outcome in ranks.wait_for("outcome"):
            assert "THESEUS_SCHEDULING" in outcome["message"], outcome
