"""What NCCL promises beyond the sums: groups, point-to-point order, split, shrink, ends, corner values, NULL."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from process.calls import check_outcomes, run_case
from process.pool import Pool, settings
from process.reference import COLLECTIVES, TYPES, Array, Case, decode, draw_inputs, encode, expected

from theseus_py import Communicator, _core, create_unique_id, errors, group, init_all

INT_MIN = -(2**31)
FLOAT32 = TYPES["float32"].number


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


def run_on_all(communicator: Communicator, kind: str, op: int, values: Array) -> Array:
    """All-reduce stored elements in place, by number of the operation."""
    data = values.copy()
    communicator._core.run(0, data.ctypes.data, data.ctypes.data, len(data), TYPES[kind].number, op, 0)
    return data


# --- Reductions of corner values.


@pytest.mark.parametrize(
    ("kind", "values", "average"),
    [
        ("int8", [100, 100], -28),
        ("int8", [-3, 0], -1),
        ("uint8", [200, 100], 22),
        ("int32", [-3, 0], -1),
        ("int64", [2**62, 2**62], -(2**62)),
        ("float16", [60000.0, 60000.0], 60000.0),
        ("bfloat16", [19.0, 38.0, 57.0, 76.0, 95.0], 57.0),
    ],
)
def test_average(pool: Pool, kind: str, values: list[float], average: float) -> None:
    """Integers wrap around in their type and are divided towards zero; floats are scaled first, so none overflows."""
    stored = [encode(np.array([each]), TYPES[kind]) for each in values]
    results = pool.run_with(len(values), lambda each: run_on_all(each, kind, 4, stored[each.rank]))
    assert [decode(each, TYPES[kind])[0] for each in results] == [average] * len(values)


@pytest.mark.parametrize("schedule", ["one_shot", "direct", "ring", "tree", "doubling", "halving_doubling"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64", "float8e4m3", "float8e5m2"])
def test_max_and_min_pass_over_nan_and_order_the_zeros(pool: Pool, kind: str, schedule: str) -> None:
    """Wherever a NaN is: a number beats it, on all ranks; NaN only where all are. -0 is less than +0."""
    rows = np.array([*itertools.product([np.nan, 1.0, -2.0], repeat=3), [0.0, -0.0, 0.0], [-0.0, 0.0, -0.0]])
    stored = [encode(rows[:, rank], TYPES[kind]) for rank in range(3)]
    for op, best in ((2, np.fmax), (3, np.fmin)):
        wanted = best.reduce(rows, axis=1)
        wanted[-2:] = 0.0 if op == 2 else -0.0
        results = pool.run_with(
            3, lambda each, op=op: run_on_all(each, kind, op, stored[each.rank]), {"THESEUS_ALGO": schedule}
        )
        for each in results:
            got = decode(each, TYPES[kind])
            np.testing.assert_array_equal(got, wanted)
            np.testing.assert_array_equal(np.signbit(got[-2:]), np.signbit(wanted[-2:]))
            assert each.tobytes() == results[0].tobytes()


@pytest.mark.parametrize("kind", ["int32", "float32", "bfloat16"])
def test_one_rank_still_scales(pool: Pool, kind: str) -> None:
    def body(communicator: Communicator) -> Array:
        core, element = communicator._core, TYPES[kind]
        op = core.create_premulsum(element.number, encode(np.array([3.0]), element).tobytes())
        return run_on_all(communicator, kind, op, encode(np.array([5.0]), element))

    assert decode(pool.run_with(1, body)[0], TYPES[kind])[0] == 15.0


def test_a_premulsum_may_be_destroyed_before_the_group_ends(pool: Pool) -> None:
    def body(communicator: Communicator) -> Array:
        data = np.ones(3, np.float32)
        with group():
            op = communicator.premulsum(communicator.rank + 1.0, np.float32)
            communicator.all_reduce(data, op=op)
            op.destroy()
        return data

    for result in pool.run_with(3, body):
        np.testing.assert_array_equal(result, 6.0)


# --- Arguments.


def test_null_is_legal_where_count_is_0(pool: Pool) -> None:
    def body(communicator: Communicator) -> Any:
        for collective in range(len(COLLECTIVES)):
            communicator._core.run(collective, 0, 0, 0, FLOAT32, 0, 0)
        data = np.ones(2, np.float32)
        communicator.all_reduce(data)
        return data

    for result in pool.run_with(3, body):
        np.testing.assert_array_equal(result, 3.0)


@pytest.mark.parametrize(
    ("collective", "send_at", "recv_at"),
    [
        ("AllReduce", 0, 4),
        ("Broadcast", 4, 0),
        ("AllGather", 4, 0),
        ("ReduceScatter", 0, 4),
        ("AllToAll", 0, 8),
        ("AllToAll", 0, 0),
    ],
)
def test_partial_overlap_is_refused(pool: Pool, collective: str, send_at: int, recv_at: int) -> None:
    """What is not the in-place form would be garbage: it is InvalidArgument, on each rank by itself."""

    def body(communicator: Communicator) -> Any:
        data = np.arange(200, dtype=np.float32)
        before = data.copy()
        base = data.ctypes.data
        with pytest.raises(errors.InvalidArgument, match=r"overlap"):
            communicator._core.run(
                COLLECTIVES.index(collective), base + send_at, base + recv_at, 20, FLOAT32, 0, communicator.rank
            )
        np.testing.assert_array_equal(data, before)
        total = np.ones(1)
        communicator.all_reduce(total)
        return total[0]

    # AllGather's sendbuff at an element that is no rank's own block; broadcasts overlap on their root.
    assert pool.run_with(2, body) == [2.0, 2.0]


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_nothing_is_read_or_written_past_a_page_end(pool: Pool, collective: str, offset: int) -> None:
    """Buffers end where memory ends, at any alignment of 2-byte elements."""
    ranks, count = 3, 701
    case = Case(collective, "bfloat16", count, seed=3)
    inputs = draw_inputs(case, ranks)
    libc = ctypes.CDLL(None, use_errno=True)

    def at_the_end(data: Array | int) -> tuple[mmap.mmap, Array, int]:
        length = (data if isinstance(data, int) else len(data)) * 2 + offset * 2
        pages = -(-length // mmap.PAGESIZE)
        memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        guard = ctypes.c_void_p(base + pages * mmap.PAGESIZE)
        assert libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        elements = (length - offset * 2) // 2
        start = pages * mmap.PAGESIZE - elements * 2
        view = np.frombuffer(memory, np.uint16, elements, start)
        if not isinstance(data, int):
            view[:] = data
        return memory, view, base + start

    def body(communicator: Communicator) -> Array:
        send_memory, _, send = at_the_end(inputs[communicator.rank])
        blocks = {"AllGather": ranks, "AllToAll": ranks, "Gather": ranks}.get(collective, 1)
        recv_memory, out, recv = at_the_end(blocks * count)
        communicator._core.run(COLLECTIVES.index(collective), send, recv, count, 9, 0, 0)
        result = out.copy()
        del send_memory, recv_memory
        return result

    results = pool.run_with(ranks, body)
    for rank, (values, tolerance) in enumerate(expected(case, inputs, ranks)):
        if len(values):
            assert (np.abs(decode(results[rank], case.element) - values) <= tolerance).all()


# --- Groups and point-to-point.


def test_types_in_one_group_do_not_mix(pool: Pool) -> None:
    def body(communicator: Communicator) -> list[Array]:
        arrays = [np.full(n, communicator.rank + 1, t) for n, t in ((5, "f2"), (70_000, "f4"), (3, "i8"), (999, "u1"))]
        with group():
            for each in arrays:
                communicator.all_reduce(each)
        return arrays

    for arrays in pool.run_with(3, body):
        for each in arrays:
            np.testing.assert_array_equal(each, 6)


def test_one_thread_drives_several_communicators_in_one_group() -> None:
    first, second = init_all(3), init_all(2)
    a, b = [np.full(1000, i + 1.0) for i in range(3)], [np.full(70_000, i + 1.0) for i in range(2)]
    with group():
        for rank, each in enumerate(second):
            each.all_reduce(b[rank])
        for rank, each in enumerate(first):
            each.all_reduce(a[rank])
    assert all((each == 6).all() for each in a) and all((each == 3).all() for each in b)
    for each in (*first, *second):
        each.destroy()


@pytest.mark.parametrize("size", [1, 1000, 3_000_000])
def test_grouped_sends_and_receives_never_wait_for_each_other(pool: Pool, size: int) -> None:
    """Every order of a group's calls, everybody to everybody, far more than the slots hold."""

    def body(communicator: Communicator) -> bool:
        rank, ranks = communicator.rank, communicator.ranks
        good = True
        for turn in range(3):
            out = [np.full(size, rank * 10 + peer + turn, np.float32) for peer in range(ranks)]
            into = [np.zeros(size, np.float32) for _ in range(ranks)]
            calls = [(True, peer) for peer in range(ranks)] + [(False, peer) for peer in range(ranks)]
            np.random.default_rng(rank + turn * 100).shuffle(calls)
            with group():
                for sends, peer in calls:
                    communicator.send(out[peer], peer) if sends else communicator.recv(into[peer], peer)
            good &= all((into[peer] == peer * 10 + rank + turn).all() for peer in range(ranks))
        return good

    assert pool.run_with(3, body) == [True] * 3


def test_messages_between_two_ranks_and_to_oneself_keep_their_order(pool: Pool) -> None:
    def body(communicator: Communicator) -> list[float]:
        rank, other = communicator.rank, 1 - communicator.rank
        sizes = [1, 50_000, 0, 3, 100_000]
        into = [np.zeros(n, np.float32) for n in sizes * 2]
        with group():
            for index, n in enumerate(sizes):
                communicator.send(np.full(n, index + 1, np.float32), other)
                communicator.send(np.full(n, (index + 1) * 10 + rank, np.float32), rank)
            for index in range(len(sizes)):
                communicator.recv(into[index + len(sizes)], rank)
                communicator.recv(into[index], other)
        return [float(each.mean()) if each.size else -1.0 for each in into]

    for rank, means in enumerate(pool.run_with(2, body)):
        assert means == [1, 2, -1, 4, 5, 10 + rank, 20 + rank, -1, 40 + rank, 50 + rank]


def test_a_ring_of_large_messages(pool: Pool) -> None:
    def body(communicator: Communicator) -> float:
        rank, ranks = communicator.rank, communicator.ranks
        mine, theirs = np.full(4_000_000, rank, np.float32), np.zeros(4_000_000, np.float32)
        with group():
            communicator.send(mine, (rank + 1) % ranks)
            communicator.recv(theirs, (rank - 1) % ranks)
        assert (theirs == theirs[0]).all()
        return float(theirs[0])

    assert pool.run_with(3, body) == [2.0, 0.0, 1.0]


def test_uneven_all_to_all_stays_in_step_with_empty_rows(pool: Pool) -> None:
    """A rank that has nothing to send or receive takes part all the same, so that the next call pairs rightly."""
    ranks = 3
    random = np.random.default_rng(0)
    tables = [random.integers(0, 4, (ranks, ranks)) * random.integers(0, 2, (ranks, 1)) for _ in range(100)]

    def body(communicator: Communicator) -> None:
        rank = communicator.rank
        for turn, table in enumerate(tables):
            send = np.concatenate([np.full(table[rank, to], rank * 10 + to, np.int32) for to in range(ranks)])
            recv = np.zeros(table[:, rank].sum(), np.int32)
            communicator.all_to_all_v(send, table[rank].tolist(), recv, table[:, rank].tolist())
            wanted = np.concatenate([np.full(table[of, rank], of * 10 + rank, np.int32) for of in range(ranks)])
            np.testing.assert_array_equal(recv, wanted)
            check = np.full(2, turn, np.int64)
            communicator.all_reduce(check)
            np.testing.assert_array_equal(check, turn * ranks)

    pool.run_with(ranks, body)


def test_the_first_error_of_a_group_is_returned_and_the_next_group_is_clean(pool: Pool) -> None:
    def body(communicator: Communicator) -> None:
        data = np.ones(4, np.float32)
        with pytest.raises(errors.InvalidArgument, match="root"), group():
            communicator._core.run(3, data.ctypes.data, data.ctypes.data, 4, FLOAT32, 0, 99)
        with group():
            communicator.all_reduce(data)
        np.testing.assert_array_equal(data, 2.0)

    pool.run_with(2, body)
    with pytest.raises(errors.InvalidUsage):
        _core.group_end()


def test_communicators_in_several_threads_run_at_once() -> None:
    """Opposite orders of two communicators on two ranks: each thread serves one, so nothing deadlocks."""
    ids = [create_unique_id() for _ in range(8)]
    failures: list[BaseException] = []

    def serve(rank: int, index: int) -> None:
        try:
            with Communicator.init(ids[index], 2, rank) as communicator:
                data = np.ones(1000, np.float32)
                for _ in range(20):
                    communicator.all_reduce(data, op="max")
                if index % 2:
                    with group():
                        communicator.send(data, 1 - rank)
                        communicator.recv(np.zeros_like(data), 1 - rank)
        except BaseException as error:
            failures.append(error)

    orders = [range(8), reversed(range(8))]
    threads = [threading.Thread(target=serve, args=(rank, i), daemon=True) for rank in (0, 1) for i in orders[rank]]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    assert not failures and not any(each.is_alive() for each in threads)


def test_one_communicator_from_two_threads(pool: Pool) -> None:
    """Calls of one communicator are taken one after the other, from whichever thread they come."""

    def body(communicator: Communicator) -> float:
        data = [np.ones(5000, np.float32) for _ in range(2)]
        threads = [
            threading.Thread(target=lambda each=each: [communicator.all_reduce(each, op="max") for _ in range(30)])
            for each in data
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join(100)
        return float(sum(each.sum() for each in data))

    assert pool.run_with(2, body) == [10000.0] * 2


# --- Split and shrink.


@pytest.mark.parametrize(
    ("colors", "keys", "members"),
    [
        ([0, -1, 0, -1], [0, 0, 0, 0], [[0, 2]]),
        ([-1, -1, -1, -1], [0, 0, 0, 0], []),
        ([0, 0, 0, 0], [5, 5, 5, 5], [[0, 1, 2, 3]]),
        ([0, 0, 0, 0], [3, 2, 1, INT_MIN], [[3, 2, 1, 0]]),
        ([7, 1, 7, 1], [1, 0, 0, -1], [[2, 0], [3, 1]]),
        ([0, 1, 2, 2**31 - 1], [0, 0, 0, 0], [[0], [1], [2], [3]]),
    ],
)
def test_split(pool: Pool, colors: list[int], keys: list[int], members: list[list[int]]) -> None:
    def body(parent: Communicator) -> list[int] | None:
        color = colors[parent.rank]
        child = parent.split(None if color < 0 else color, keys[parent.rank])
        if child is None:
            return None
        order = np.zeros(child.ranks, np.int32)
        child.all_gather(np.array([parent.rank], np.int32), order)
        assert order[child.rank] == parent.rank
        child.destroy()
        return [int(each) for each in order]

    results = pool.run_with(4, body)
    for rank, order in enumerate(results):
        assert order == next((each for each in members if rank in each), None)


def test_split_with_a_negative_color_is_refused(pool: Pool) -> None:
    def body(parent: Communicator) -> None:
        with pytest.raises(errors.InvalidArgument, match="-2"):
            parent._core.split(-2, 0, None)
        parent.barrier()

    pool.run_with(2, body)


def test_split_of_a_split_outlives_its_parents(pool: Pool) -> None:
    communicators = pool.join(4)

    def body(rank: int) -> float:
        first = communicators[rank].split(rank // 2)
        assert first is not None
        second = first.split(0, -first.rank)
        assert second is not None
        communicators[rank].destroy()
        first.destroy()
        data = np.full(3, float(rank))
        second.all_reduce(data)
        assert second.rank == 1 - rank % 2
        second.destroy()
        return float(data[0])

    assert pool.run(4, body) == [1.0, 1.0, 5.0, 5.0]


def test_init_destroy_init_split(pool: Pool) -> None:
    for communicator in pool.join(2):
        communicator.abort()
    communicators = pool.join(2)

    def body(rank: int) -> int:
        child = communicators[rank].split(rank)
        assert child is not None
        child.barrier()
        child.destroy()
        communicators[rank].destroy()
        return child.ranks

    assert pool.run(2, body) == [1, 1]


@pytest.mark.parametrize("excluded", [[0], [3], [1, 2]])
def test_shrink_of_living_ranks(pool: Pool, excluded: list[int]) -> None:
    communicators = pool.join(4)

    def body(rank: int) -> float:
        if rank in excluded:
            return -1.0
        with communicators[rank].shrink(excluded) as left:
            data = np.full(1000, rank + 1.0)
            left.all_reduce(data)
            return float(data[0])

    total = sum(rank + 1 for rank in range(4) if rank not in excluded)
    assert pool.run(4, body) == [-1.0 if rank in excluded else total for rank in range(4)]
    pool.run(4, lambda rank: communicators[rank].destroy())


# --- Ends.

LAST_WORDS = [order for n in (1, 2, 3) for order in itertools.product(["finalize", "destroy", "abort"], repeat=n)]


@pytest.mark.parametrize("order", LAST_WORDS, ids=["-".join(each) for each in LAST_WORDS])
def test_every_order_of_ends(pool: Pool, order: tuple[str, ...]) -> None:
    """None crashes or hangs; what comes after the end is InvalidUsage or InvalidArgument, or nothing."""
    communicators = pool.join(2)

    def body(rank: int) -> bool:
        communicator = communicators[rank]
        communicator.barrier()
        pool_errors = []
        for call in order:
            try:
                getattr(communicator, call)()
            except (errors.InvalidUsage, errors.InvalidArgument, errors.RemoteError) as error:
                pool_errors.append(error)
        with pytest.raises(errors.TheseusError):
            communicator.barrier()
        communicator.destroy()
        return not pool_errors or len(order) > 1

    assert pool.run(2, body) == [True, True]


def test_finalize_finishes_what_is_outstanding(pool: Pool) -> None:
    communicators = pool.join(2)

    def body(rank: int) -> float:
        data = [np.ones(50_000, np.float32) for _ in range(20)]
        works = [communicators[rank].all_reduce(each, async_op=True) for each in data]
        communicators[rank].finalize()
        assert all(work is not None and work.done() and work.exception() is None for work in works)
        communicators[rank].destroy()
        return float(sum(each.sum() for each in data))

    assert pool.run(2, body) == [2_000_000.0] * 2


def test_revoke_ends_a_call_on_all_ranks(pool: Pool) -> None:
    communicators = pool.join(3)

    def body(rank: int) -> str:
        if rank == 0:
            time.sleep(0.3)
            communicators[0].revoke()
        with pytest.raises(errors.TheseusError) as raised:
            communicators[rank].barrier()
        if rank == 0:
            with pytest.raises(errors.InvalidArgument):
                communicators[0].revoke()
        communicators[rank].destroy()
        return str(raised.value)

    assert all("revoked" in each for each in pool.run(3, body))


# --- One rank, and no blocking.


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_needs_nobody(pool: Pool, collective: str) -> None:
    for in_place in (False, True):
        case = Case(collective, "float32", 100, in_place=in_place)
        inputs = draw_inputs(case, 1)
        outcomes = pool.run_with(1, lambda each, case=case, own=inputs[0]: run_case(each, case, own))
        assert check_outcomes(case, outcomes, expected(case, inputs, 1)) == []


def test_a_communicator_that_does_not_block() -> None:
    unique_id = create_unique_id()
    ranks = [Communicator.init(unique_id, 2, rank, blocking=False) for rank in range(2)]

    def settle() -> None:
        deadline = time.monotonic() + 60
        while any(each.in_progress for each in ranks):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert [each.async_error for each in ranks] == [None, None]

    settle()
    data = [np.ones(100_000, np.float32) for _ in ranks]
    for each, own in zip(ranks, data, strict=True):
        each.all_reduce(own)
    settle()
    for own in data:
        np.testing.assert_array_equal(own, 2.0)
    with group():
        for each, own in zip(ranks, data, strict=True):
            each.all_reduce(own)
    settle()
    for own in data:
        np.testing.assert_array_equal(own, 4.0)
    for each in ranks:
        each.destroy()


def test_init_that_does_not_block_can_be_aborted() -> None:
    alone = Communicator.init(create_unique_id(), 2, 0, blocking=False)
    assert alone.in_progress
    alone.abort()


def test_a_timeout_is_set_in_the_environment_or_by_a_call(pool: Pool) -> None:
    with settings(THESEUS_TIMEOUT="0.5"):
        communicators = pool.join(2)
    with pytest.raises(errors.Timeout):
        communicators[0].barrier()
    for each in communicators:
        each.abort()
    communicators = pool.join(2)
    communicators[1].set_timeout(0.3)
    with pytest.raises(errors.Timeout):
        communicators[1].barrier()
    for each in communicators:
        each.abort()
