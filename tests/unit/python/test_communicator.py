"""The Python communicator against NumPy: every call, its checks, asynchronous work, groups, and its life."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from unit.python.ranks import run_ranks

import theseus_py
from theseus_py import Communicator, create_unique_id, errors, group, init_all

RANKS = [1, 2, 3]


def mine(rank: int, count: int, dtype: Any = np.float64) -> np.ndarray[Any, Any]:
    """Different in every element and on every rank."""
    return (np.arange(count) * 3 + rank * 100 + 1).astype(dtype)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("op", "combine"), [("sum", np.sum), ("prod", np.prod), ("max", np.max), ("min", np.min)])
def test_all_reduce(ranks: int, op: str, combine: Any) -> None:
    expected = combine(np.stack([mine(rank, 5) for rank in range(ranks)]), axis=0)

    def body(communicator: Communicator) -> tuple[Any, Any]:
        apart, in_place = np.zeros(5), mine(communicator.rank, 5)
        communicator.all_reduce(mine(communicator.rank, 5), apart, op)
        communicator.all_reduce(in_place, op=op)
        return apart, in_place

    for apart, in_place in run_ranks(ranks, body):
        np.testing.assert_allclose(apart, expected)
        np.testing.assert_array_equal(apart, in_place)


@pytest.mark.parametrize("ranks", RANKS)
def test_every_other_collective(ranks: int) -> None:
    inputs = [mine(rank, 2 * ranks) for rank in range(ranks)]
    total = np.sum(inputs, axis=0)
    root = ranks - 1

    def body(communicator: Communicator) -> dict[str, Any]:
        rank, data = communicator.rank, inputs[communicator.rank]
        out: dict[str, Any] = {name: np.zeros(2) for name in ("reduce_scatter", "scatter")}
        out |= {name: np.zeros(2 * ranks) for name in ("all_to_all", "reduce")}
        out |= {name: np.zeros(2 * ranks * ranks) for name in ("all_gather", "gather")}
        communicator.all_gather(data, out["all_gather"])
        communicator.reduce_scatter(data, out["reduce_scatter"], "avg")
        communicator.all_to_all(data, out["all_to_all"])
        communicator.reduce(data, out["reduce"], root=root)
        communicator.gather(data, out["gather"] if rank == root else None, root)
        communicator.scatter(data if rank == root else None, out["scatter"], root)
        out["broadcast"] = data.copy()
        communicator.broadcast(out["broadcast"], root)
        communicator.barrier()
        return out

    for rank, out in enumerate(run_ranks(ranks, body)):
        own = slice(2 * rank, 2 * rank + 2)
        np.testing.assert_array_equal(out["all_gather"], np.concatenate(inputs))
        np.testing.assert_allclose(out["reduce_scatter"], total[own] / ranks)
        np.testing.assert_array_equal(out["all_to_all"], np.concatenate([each[own] for each in inputs]))
        np.testing.assert_array_equal(out["scatter"], inputs[root][own])
        np.testing.assert_array_equal(out["broadcast"], inputs[root])
        # Only the root's result buffers are written.
        np.testing.assert_allclose(out["reduce"], total if rank == root else 0)
        np.testing.assert_array_equal(out["gather"], np.concatenate(inputs) if rank == root else 0)


def test_all_to_all_v_with_a_rank_that_has_nothing() -> None:
    # sent[i][j]: elements from i to j; rank 1 neither sends nor receives.
    sent = [[1, 0, 2], [0, 0, 0], [3, 0, 0]]

    def body(communicator: Communicator) -> Any:
        rank = communicator.rank
        received = [sent[peer][rank] for peer in range(3)]
        data, out = mine(rank, sum(sent[rank])), np.zeros(sum(received))
        communicator.all_to_all_v(data, sent[rank], out, received)
        # A rank that skipped its turn would pair this with the wrong call.
        check = np.ones(1)
        communicator.all_reduce(check)
        assert check[0] == 3
        return out

    zero, one, two = run_ranks(3, body)
    np.testing.assert_array_equal(zero, np.concatenate([mine(0, 3)[:1], mine(2, 3)]))
    assert one.size == 0
    np.testing.assert_array_equal(two, mine(0, 3)[1:])


def test_send_and_recv_keep_their_order() -> None:
    def body(communicator: Communicator) -> list[float]:
        got = [np.zeros(1), np.zeros(1)]
        for number in range(2):
            if communicator.rank == 0:
                communicator.send(np.array([float(number)]), 1)
            else:
                communicator.recv(got[number], 0)
        return [float(each[0]) for each in got]

    assert run_ranks(2, body)[1] == [0.0, 1.0]


def test_grouped_messages_never_wait_for_each_other() -> None:
    count = 1 << 20

    def body(communicator: Communicator) -> bool:
        peer = 1 - communicator.rank
        got = np.zeros(count)
        with group():
            communicator.send(np.full(count, communicator.rank + 1.0), peer)
            communicator.recv(got, peer)
        return bool((got == peer + 1.0).all())

    assert run_ranks(2, body) == [True, True]


def test_one_thread_drives_all_ranks_in_a_group() -> None:
    communicators = init_all(3)
    arrays = [mine(rank, 4) for rank in range(3)]
    with group():
        for communicator, array in zip(communicators, arrays, strict=True):
            communicator.all_reduce(array)
    expected = np.sum([mine(rank, 4) for rank in range(3)], axis=0)
    for array in arrays:
        np.testing.assert_array_equal(array, expected)
    for communicator in communicators:
        communicator.destroy()


def test_an_error_inside_a_group_is_the_one_that_is_raised_and_the_group_ends() -> None:
    with pytest.raises(KeyError), group():
        raise KeyError("mine")
    from theseus_py import _core

    assert _core.group_depth() == 0


def test_asynchronous_work_owns_its_buffers_and_ends() -> None:
    def body(communicator: Communicator) -> Any:
        array = mine(communicator.rank, 1000)
        works = [communicator.all_reduce(array, async_op=True), communicator.barrier(async_op=True)]
        dropped = communicator.all_reduce(mine(communicator.rank, 1000), async_op=True)
        del dropped
        for work in works:
            assert work is not None
            work.wait(30)
            assert work.done()
            assert work.exception() is None
        return array

    one, other = run_ranks(2, body)
    np.testing.assert_array_equal(one, mine(0, 1000) + mine(1, 1000))
    np.testing.assert_array_equal(one, other)


def test_wait_gives_up_in_time_and_the_work_goes_on() -> None:
    late = threading.Event()

    def body(communicator: Communicator) -> bool:
        array = np.ones(1)
        if communicator.rank == 1:
            late.wait(30)
            communicator.all_reduce(array)
            return True
        work = communicator.all_reduce(array, async_op=True)
        assert work is not None
        with pytest.raises(errors.Timeout):
            work.wait(0.05)
        assert not work.done()
        late.set()
        work.wait(30)
        return bool(array[0] == 2)

    assert run_ranks(2, body) == [True, True]


def test_async_inside_a_group_is_refused() -> None:
    alone = Communicator.init(create_unique_id(), 1, 0)
    with pytest.raises(errors.InvalidUsage, match="group"), group():
        alone.all_reduce(np.ones(1), async_op=True)
    alone.destroy()


def test_bool_stays_0_and_1() -> None:
    rows = [np.array([True, True, False]), np.array([True, False, False])]

    def body(communicator: Communicator) -> dict[str, list[int]]:
        out = {}
        for op in ("sum", "prod", "max", "min"):
            array = rows[communicator.rank].copy()
            communicator.all_reduce(array, op=op)
            out[op] = array.view(np.uint8).tolist()
        with pytest.raises(errors.InvalidArgument, match="bool"):
            communicator.all_reduce(rows[communicator.rank].copy(), op="avg")
        return out

    expected = {"sum": [1, 1, 0], "max": [1, 1, 0], "prod": [1, 0, 0], "min": [1, 0, 0]}
    assert run_ranks(2, body) == [expected, expected]


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers_are_summed_moved_and_nothing_else(dtype: Any) -> None:
    def body(communicator: Communicator) -> Any:
        rank = communicator.rank
        array = (np.arange(3) + 1j * (rank + 1)).astype(dtype)
        moved = np.zeros(6, dtype)
        communicator.all_gather(array, moved)
        communicator.all_reduce(array)
        for op in ("max", "min", "prod"):
            with pytest.raises(errors.InvalidArgument, match="complex"):
                communicator.all_reduce(array, op=op)
        return array, moved

    for total, moved in run_ranks(2, body):
        assert total.tolist() == [0 + 3j, 2 + 3j, 4 + 3j]
        assert moved.tolist() == [0 + 1j, 1 + 1j, 2 + 1j, 0 + 2j, 1 + 2j, 2 + 2j]


def test_premulsum_scales_each_ranks_input_even_alone() -> None:
    def body(communicator: Communicator) -> float:
        array = np.array([10.0], np.float32)
        communicator.all_reduce(array, op=communicator.premulsum(communicator.rank + 0.5, array.dtype))
        return float(array[0])

    assert run_ranks(2, body) == [20.0, 20.0]
    assert run_ranks(1, body) == [5.0]


def test_premulsum_is_bound_to_its_type_and_its_life() -> None:
    with Communicator.init(create_unique_id(), 1, 0) as alone:
        half = alone.premulsum(0.5, "float32")
        with pytest.raises(errors.InvalidArgument):
            alone.all_reduce(np.ones(1, np.float64), op=half)
        half.destroy()
        half.destroy()
        with pytest.raises(errors.InvalidArgument):
            alone.all_reduce(np.ones(1, np.float32), op=half)


@pytest.fixture
def pair() -> Any:
    """A communicator of two ranks whose checks are tried without the other: nothing may be sent before they pass."""
    communicators = init_all(2)
    yield communicators[0]
    for communicator in communicators:
        communicator.abort()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.all_reduce(np.zeros(3), np.zeros(4)), ["all_reduce", "3", "4"]),
        (lambda c: c.all_reduce(np.zeros(3), np.zeros(3, np.float32)), ["all_reduce", "float64", "float32"]),
        (lambda c: c.all_reduce(np.zeros(3), op="mean"), ["mean", "sum, prod"]),
        (lambda c: c.all_reduce(np.zeros(3), op=3.5), ["op"]),
        (lambda c: c.all_gather(np.zeros(3), np.zeros(5)), ["all_gather", "recv", "5", "6"]),
        (lambda c: c.reduce_scatter(np.zeros(5), np.zeros(3)), ["reduce_scatter", "send", "5", "6"]),
        (lambda c: c.all_to_all(np.zeros(3), np.zeros(3)), ["all_to_all", "divide", "all_to_all_v"]),
        (lambda c: c.all_to_all_v(np.zeros(3), [1, 1], np.zeros(2), [1, 1]), ["send_counts", "sum to 2", "3"]),
        (lambda c: c.all_to_all_v(np.zeros(3), [1, 1, 1], np.zeros(2), [1, 1]), ["send_counts", "3 counts"]),
        (lambda c: c.all_to_all_v(np.zeros(2), [1, 1], np.zeros(2), [3, -1]), ["recv_counts", "negative"]),
        (lambda c: c.gather(np.zeros(2), None, 0), ["gather", "recv", "root"]),
        (lambda c: c.scatter(None, np.zeros(2), 0), ["scatter", "send", "root"]),
        (lambda c: c.broadcast(np.zeros(2), 2), ["broadcast", "root 2"]),
        (lambda c: c.reduce(np.zeros(2), root=-1), ["reduce", "root -1"]),
        (lambda c: c.split(-3), ["split", "-3"]),
        (lambda c: c.explain("all_produce", 3), ["all_produce", "all_reduce"]),
    ],
)
def test_bad_arguments_are_named_before_anything_is_sent(pair: Communicator, call: Any, words: list[str]) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        call(pair)
    for word in words:
        assert word in str(caught.value)


def test_split_orders_by_key_and_leaves_out_who_has_no_color() -> None:
    def body(communicator: Communicator) -> tuple[int, int, float] | None:
        rank = communicator.rank
        part = communicator.split(None if rank == 2 else 0, key=-rank)
        if part is None:
            return None
        with part:
            array = np.array([float(rank)])
            part.all_reduce(array)
            return part.rank, part.ranks, float(array[0])

    assert run_ranks(3, body) == [(1, 2, 1.0), (0, 2, 1.0), None]


def test_a_destroyed_communicator_says_so() -> None:
    communicator = Communicator.init(create_unique_id(), 1, 0, name="short")
    assert "short" in repr(communicator)
    communicator.destroy()
    communicator.destroy()
    communicator.abort()
    with pytest.raises(errors.InvalidUsage, match="destroyed"):
        communicator.all_reduce(np.ones(1))
    assert "closed" in repr(communicator)


@pytest.mark.parametrize(("ranks", "rank"), [(0, 0), (2, 2), (2, -1)])
def test_impossible_places_are_refused(ranks: int, rank: int) -> None:
    with pytest.raises(errors.InvalidArgument):
        Communicator.init(create_unique_id(), ranks, rank)


def test_a_short_unique_id_is_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match="128"):
        Communicator.init(b"short", 1, 0)


def test_shared_memory_arrays_work_in_collectives() -> None:
    def body(communicator: Communicator) -> Any:
        array = theseus_py.empty(100000, np.float32)
        array[:] = communicator.rank + 1
        communicator.all_reduce(array)
        return array.copy()

    for result in run_ranks(2, body):
        assert (result == 3).all()


def test_explain_names_a_choice_and_candidates() -> None:
    def body(communicator: Communicator) -> Any:
        return communicator.explain("all_reduce", 1000, "float32")

    for explanation in run_ranks(2, body):
        assert explanation.chosen
        assert explanation.reason


def test_from_env_joins_what_the_launcher_started() -> None:
    environ = {"PMI_RANK": "0", "PMI_SIZE": "1"}
    with Communicator.from_env(environ) as communicator:
        assert (communicator.rank, communicator.ranks) == (0, 1)
