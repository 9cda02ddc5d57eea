"""Cases that run on every rank: each collective of torch.distributed against what it must give.

Inputs differ in every element and on every rank, so that a wrong order, stride or rank shows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

NUMBERS = [
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


def data(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = 1
    for extent in shape:
        count *= extent
    return (torch.arange(count) % 7 + rank + 1).reshape(shape).to(dtype)


def everyone(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([data(rank, *shape, dtype=dtype) for rank in range(dist.get_world_size())])


def me() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected.to(got.dtype), rtol=1e-2 if got.dtype.itemsize < 4 else 1e-6, atol=0)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in a column of a wider matrix."""
    wide = torch.full((*tensor.shape, 2), -1, dtype=tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


def case_all_reduce_every_type_and_reduction() -> None:
    rank, _ = me()
    for dtype in NUMBERS:
        rows = everyone(5, dtype=dtype)
        wide = rows.to(torch.float64)
        expected = {
            dist.ReduceOp.SUM: wide.sum(0),
            dist.ReduceOp.PRODUCT: rows.prod(0, dtype=dtype) if not dtype.is_floating_point else wide.prod(0),
            dist.ReduceOp.MAX: wide.amax(0),
            dist.ReduceOp.MIN: wide.amin(0),
            dist.ReduceOp.AVG: wide.mean(0) if dtype.is_floating_point else (wide.sum(0) / len(rows)).trunc(),
        }
        for op, result in expected.items():
            tensor = data(rank, 5, dtype=dtype)
            dist.all_reduce(tensor, op)
            same(tensor, result)


def case_all_reduce_large() -> None:
    rank, _ = me()
    tensor = data(rank, 300, 1001)
    dist.all_reduce(tensor)
    same(tensor, everyone(300, 1001).sum(0))


def case_bitwise_reductions() -> None:
    rank, size = me()
    for dtype in (torch.int64, torch.uint8, torch.bool):
        rows = everyone(6, dtype=torch.int64) % 5
        rows = rows.to(dtype) if dtype != torch.bool else rows > 2
        for op, function in (
            (dist.ReduceOp.BAND, torch.bitwise_and),
            (dist.ReduceOp.BOR, torch.bitwise_or),
            (dist.ReduceOp.BXOR, torch.bitwise_xor),
        ):
            expected = rows[0]
            for row in rows[1:]:
                expected = function(expected, row)
            tensor = rows[rank].clone()
            dist.all_reduce(tensor, op)
            assert torch.equal(tensor, expected)
            rooted = rows[rank].clone()
            dist.reduce(rooted, size - 1, op)
            assert torch.equal(rooted, expected if rank == size - 1 else rows[rank])
    refuses(lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND), "integer or bool")


def refuses(call: Any, *words: str) -> None:
    try:
        call()
    except (RuntimeError, ValueError, TypeError) as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error}"
        return
    raise AssertionError(f"not refused; expected {words}")


def case_premul_sum() -> None:
    rank, _ = me()
    from torch._C._distributed_c10d import _make_nccl_premul_sum

    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        tensor = data(rank, 4, dtype=dtype)
        dist.all_reduce(tensor, _make_nccl_premul_sum(0.5))
        same(tensor, everyone(4).sum(0) * 0.5)


def case_bool_stays_0_and_1() -> None:
    rank, size = me()
    rows = torch.arange(size * 4).reshape(size, 4) % 3 == 0
    for op, expected in (
        (dist.ReduceOp.SUM, rows.any(0)),
        (dist.ReduceOp.MAX, rows.any(0)),
        (dist.ReduceOp.PRODUCT, rows.all(0)),
        (dist.ReduceOp.MIN, rows.all(0)),
    ):
        tensor = rows[rank].clone()
        dist.all_reduce(tensor, op)
        assert torch.equal(tensor, expected)
        assert set(tensor.view(torch.uint8).tolist()) <= {0, 1}
    refuses(lambda: dist.all_reduce(rows[rank].clone(), dist.ReduceOp.AVG), "bool")


def case_complex_is_summed_and_moved() -> None:
    rank, size = me()
    for dtype in (torch.complex64, torch.complex128):
        mine = torch.complex(data(rank, 3).double(), -data(rank, 3).double()).to(dtype)
        rows = [torch.complex(data(r, 3).double(), -data(r, 3).double()).to(dtype) for r in range(size)]
        total = mine.clone()
        dist.all_reduce(total)
        assert torch.equal(total, torch.stack(rows).sum(0))
        gathered = [torch.zeros(3, dtype=dtype) for _ in range(size)]
        dist.all_gather(gathered, mine)
        assert torch.equal(torch.stack(gathered), torch.stack(rows))
        rooted = mine.clone()
        dist.reduce(rooted, 0)
        assert torch.equal(rooted, torch.stack(rows).sum(0) if rank == 0 else mine)
        for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
            refuses(lambda op=op, mine=mine: dist.all_reduce(mine.clone(), op), "complex")
            refuses(lambda op=op, mine=mine: dist.reduce(mine.clone(), 0, op), "complex")
    # A conjugate exists in the tensor's flags only, not in its memory.
    lazy = torch.tensor([1 + 2j, 3 - 1j]).conj()
    gathered = [torch.zeros(2, dtype=lazy.dtype) for _ in range(size)]
    dist.gather(lazy, gathered if rank == 0 else None, dst=0)
    if rank == 0:
        assert gathered[0].tolist() == [1 - 2j, 3 + 1j]
    negative = torch.tensor([1 + 2j, 3 - 1j]).conj().imag
    assert negative.is_neg()
    dist.all_reduce(negative)
    assert negative.tolist() == [-2.0 * size, 1.0 * size]


def case_non_contiguous_tensors_are_right() -> None:
    rank, size = me()
    tensor = strided(data(rank, 3, 4))
    dist.all_reduce(tensor)
    same(tensor, everyone(3, 4).sum(0))
    transposed = data(rank, 3, 4).t()
    dist.all_reduce(transposed)
    same(transposed, everyone(3, 4).sum(0).t())
    tensor = strided(data(rank, 5))
    dist.broadcast(tensor, size - 1)
    same(tensor, data(size - 1, 5))
    outputs = [strided(torch.zeros(5)) for _ in range(size)]
    dist.all_gather(outputs, strided(data(rank, 5)))
    same(torch.stack(outputs), everyone(5))
    output = strided(torch.zeros(size * 2))
    dist.all_gather_single(output, strided(data(rank, 2)))
    same(output, everyone(2).reshape(-1))
    output = strided(torch.zeros(2))
    dist.reduce_scatter_single(output, strided(data(rank, 2 * size)))
    same(output, everyone(2 * size).sum(0)[2 * rank : 2 * rank + 2])
    output = strided(torch.zeros(2))
    dist.reduce_scatter(output, [strided(data(rank + i, 2)) for i in range(size)])
    same(output, sum(data(r + rank, 2) for r in range(size)))
    output = strided(torch.zeros(2 * size))
    dist.all_to_all_single(output, strided(data(rank, 2 * size)))
    same(output, everyone(2 * size)[:, 2 * rank : 2 * rank + 2].reshape(-1))
    output = strided(torch.zeros(3))
    dist.scatter(output, [strided(data(i, 3)) for i in range(size)] if rank == 0 else None, src=0)
    same(output, data(rank, 3))
    outputs = [strided(torch.zeros(3)) for _ in range(size)]
    dist.gather(strided(data(rank, 3)), outputs if rank == 0 else None, dst=0)
    if rank == 0:
        same(torch.stack(outputs), everyone(3))
    tensor = strided(data(rank, 3))
    dist.reduce(tensor, 0)
    same(tensor, everyone(3).sum(0) if rank == 0 else data(rank, 3))
    work = dist.all_reduce(tensor := strided(data(rank, 3)), async_op=True)
    work.wait()
    same(tensor, everyone(3).sum(0))
    refuses(lambda: dist.all_reduce(torch.ones(1).expand(4)), "expanded")
    refuses(lambda: dist.all_gather([torch.ones(1).expand(4)] * size, torch.ones(4)), "expanded")


def case_zero_elements() -> None:
    rank, size = me()
    for shape in ((0,), (1, 0, 2)):
        empty = torch.empty(shape)
        many = [torch.empty(shape) for _ in range(size)]
        dist.all_reduce(empty)
        dist.broadcast(empty, 0)
        dist.reduce(empty, 0)
        dist.all_gather(many, empty)
        dist.all_gather_single(torch.empty(0), torch.empty(0))
        dist.reduce_scatter(empty, many)
        dist.reduce_scatter_single(torch.empty(0), torch.empty(0))
        dist.all_to_all_single(torch.empty(0), torch.empty(0))
        dist.all_to_all(many, [torch.empty(shape) for _ in range(size)])
        dist.gather(empty, many if rank == 0 else None, dst=0)
        dist.scatter(empty, many if rank == 0 else None, src=0)
    dist.barrier()


def case_broadcast_reduce_gather_scatter_from_every_root() -> None:
    rank, size = me()
    for root in range(size):
        for dtype in (torch.float32, torch.int16, torch.bool, torch.float8_e4m3fn):
            tensor = data(rank, 3).to(dtype)
            dist.broadcast(tensor, root)
            assert torch.equal(tensor.float(), data(root, 3).to(dtype).float())
        tensor = data(rank, 3)
        dist.reduce(tensor, root, dist.ReduceOp.MAX)
        same(tensor, everyone(3).amax(0) if rank == root else data(rank, 3))
        outputs = [torch.zeros(3) for _ in range(size)] if rank == root else None
        dist.gather(data(rank, 3), outputs, dst=root)
        if outputs is not None:
            same(torch.stack(outputs), everyone(3))
        output = torch.zeros(3)
        dist.scatter(output, list(everyone(3) + root) if rank == root else None, src=root)
        same(output, data(rank, 3) + root)


def case_all_gather_forms() -> None:
    rank, size = me()
    outputs = [torch.zeros(2, 3) for _ in range(size)]
    dist.all_gather(outputs, data(rank, 2, 3))
    same(torch.stack(outputs), everyone(2, 3))
    output = torch.zeros(size * 2, 3)
    dist.all_gather_single(output, data(rank, 2, 3))
    same(output, everyone(2, 3).reshape(-1, 3))
    uneven = [torch.zeros(416 + 60 * peer) for peer in range(size)]
    dist.all_gather(uneven, data(rank, 416 + 60 * rank))
    for peer in range(size):
        same(uneven[peer], data(peer, 416 + 60 * peer))
    with_nothing = [torch.zeros(peer) for peer in range(size)]
    dist.all_gather(with_nothing, data(rank, rank))
    for peer in range(size):
        same(with_nothing[peer], data(peer, peer))
    refuses(lambda: dist.all_gather_single(torch.zeros(size * 2 + 1), torch.zeros(2)), str(size * 2 + 1))
    refuses(lambda: dist.all_gather([torch.zeros(2)] * (size + 1), torch.zeros(2)), f"{size + 1} outputs")


def case_reduce_scatter_forms_honour_the_reduction() -> None:
    rank, size = me()
    for op, combine in (
        (dist.ReduceOp.SUM, lambda rows: rows.sum(0)),
        (dist.ReduceOp.MAX, lambda rows: rows.amax(0)),
        (dist.ReduceOp.MIN, lambda rows: rows.amin(0)),
        (dist.ReduceOp.AVG, lambda rows: rows.mean(0)),
        (dist.ReduceOp.PRODUCT, lambda rows: rows.prod(0)),
    ):
        output = torch.zeros(3)
        dist.reduce_scatter(output, [data(rank + 2 * i, 3) for i in range(size)], op)
        same(output, combine(torch.stack([data(r + 2 * rank, 3) for r in range(size)])))
        output = torch.zeros(3)
        dist.reduce_scatter_single(output, data(rank, 3 * size), op)
        same(output, combine(everyone(3 * size))[3 * rank : 3 * rank + 3])
        output = torch.zeros(1 + rank)
        dist.reduce_scatter(output, [data(rank + i, 1 + i) for i in range(size)], op)
        same(output, combine(torch.stack([data(r + rank, 1 + rank) for r in range(size)])))
    output = torch.zeros(2, dtype=torch.int64)
    dist.reduce_scatter(output, [data(rank + i, 2, dtype=torch.int64) for i in range(size)], dist.ReduceOp.BOR)
    expected = torch.zeros(2, dtype=torch.int64)
    for peer in range(size):
        expected |= data(peer + rank, 2, dtype=torch.int64)
    assert torch.equal(output, expected)


def case_all_to_all_single_with_uneven_splits() -> None:
    rank, size = me()
    # From i to j go i + j rows, and nothing where that is a multiple of 3.
    rows = [[(i + j) if (i + j) % 3 else 0 for j in range(size)] for i in range(size)]
    for repetition in range(20):
        sent, received = rows[rank], [rows[peer][rank] for peer in range(size)]
        source = torch.cat([torch.full((n, 2), 100.0 * rank + peer + repetition) for peer, n in enumerate(sent)])
        output = torch.zeros(sum(received), 2)
        dist.all_to_all_single(output, source, received, sent)
        expected = [torch.full((n, 2), 100.0 * peer + rank + repetition) for peer, n in enumerate(received)]
        same(output, torch.cat(expected))
        check = torch.ones(1)
        dist.all_reduce(check)
        assert check.item() == size
    refuses(lambda: dist.all_to_all_single(torch.zeros(size), torch.zeros(size), [1] * size, [2] * size), "add up")


def case_a_rank_without_rows_stays_in_step() -> None:
    rank, size = me()
    if size != 2:
        return
    for _ in range(100):
        output = torch.zeros(1 if rank == 0 else 0)
        source = torch.tensor([7.0]) if rank == 0 else torch.zeros(0)
        splits = [1, 0] if rank == 0 else [0, 0]
        dist.all_to_all_single(output, source, splits, splits)
        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total)
        assert total.item() == 3.0


def case_all_to_all_lists() -> None:
    rank, size = me()
    sources = [data(rank, 1 + (rank + peer) % 3) + 10 * peer for peer in range(size)]
    outputs = [torch.zeros(1 + (rank + peer) % 3) for peer in range(size)]
    dist.all_to_all(outputs, sources)
    for peer in range(size):
        same(outputs[peer], data(peer, 1 + (rank + peer) % 3) + 10 * rank)


def case_coalesced_forms() -> None:
    rank, size = me()
    tensors = [data(rank, 3), data(rank + 1, 2, 2)]
    dist.all_reduce_coalesced(tensors)
    same(tensors[0], everyone(3).sum(0))
    same(tensors[1], (everyone(2, 2) + 1).sum(0))
    outputs = [[torch.zeros(3), torch.zeros(1)] for _ in range(size)]
    dist.all_gather_coalesced(outputs, [data(rank, 3), data(rank, 1)])
    for peer in range(size):
        same(outputs[peer][0], data(peer, 3))
        same(outputs[peer][1], data(peer, 1))
    first, second = data(rank, 3), data(rank, 4)
    with dist._coalescing_manager():
        dist.all_reduce(first)
        dist.all_reduce(second)
    same(first, everyone(3).sum(0))
    same(second, everyone(4).sum(0))
    gathered = [torch.zeros(size * 2), torch.zeros(size * 3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_gather_single(gathered[0], data(rank, 2))
        dist.all_gather_single(gathered[1], data(rank, 3))
    manager.wait()
    same(gathered[0], everyone(2).reshape(-1))
    same(gathered[1], everyone(3).reshape(-1))


def case_async_works() -> None:
    rank, size = me()
    tensors = [data(rank + i, 1000) for i in range(10)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for i, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        assert work.wait() is not False
        assert work.is_completed() and work.is_success()
        same(tensor, (everyone(1000) + i).sum(0))
    tensor = data(rank, 3)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    same(doubled.wait(), everyone(3).sum(0) * 2)
    # A handle that is dropped still does its work.
    dropped = strided(data(rank, 1000))
    dist.all_reduce(dropped, async_op=True)
    after = torch.ones(1)
    dist.all_reduce(after)
    assert after.item() == size
    dist.barrier(async_op=True).wait()


def case_send_and_recv_in_any_order() -> None:
    rank, size = me()
    if size == 1:
        return
    count = 1 << 18
    right, left = (rank + 1) % size, (rank - 1) % size
    for order in range(2):
        got = torch.zeros(count)
        mine = torch.full((count,), rank + 1.0 + order)
        calls = [lambda m=mine: dist.isend(m, right), lambda g=got: dist.irecv(g, left)]
        works = [call() for call in (calls if (rank + order) % 2 else reversed(calls))]
        for work in works:
            work.wait()
        same(got, torch.full((count,), left + 1.0 + order))
    # Everybody sends first, and only then receives.
    got = strided(torch.zeros(5))
    work = dist.isend(strided(data(rank, 5)), right)
    dist.recv(got, left)
    work.wait()
    same(got, data(left, 5))
    # Several messages keep their order; a batch does not depend on how it is ordered.
    got_list = [torch.zeros(2) for _ in range(3)]
    operations = [dist.P2POp(dist.irecv, tensor, left) for tensor in got_list]
    operations += [dist.P2POp(dist.isend, data(rank, 2) + i, right) for i in range(3)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for i, tensor in enumerate(got_list):
        same(tensor, data(left, 2) + i)
    # Collectives and messages do not wait for each other.
    work = dist.irecv(torch.zeros(3), left) if rank == 0 else None
    check = torch.ones(1)
    dist.all_reduce(check)
    if rank == size - 1:
        dist.send(data(rank, 3), 0)
    if work is not None:
        work.wait()


def case_messages_to_oneself() -> None:
    rank, _ = me()
    got = torch.zeros(3)
    receive = dist.irecv(got, rank)
    dist.isend(data(rank, 3), rank).wait()
    receive.wait()
    same(got, data(rank, 3))


def case_any_source_is_refused_or_right() -> None:
    rank, size = me()
    if size == 2:
        if rank == 0:
            dist.send(data(0, 3), 1)
        else:
            got = torch.zeros(3)
            assert dist.recv(got) == 0
            same(got, data(0, 3))
    else:
        refuses(lambda: dist.recv(torch.zeros(3)), "source")


def case_objects() -> None:
    rank, size = me()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    assert gathered == [{"rank": peer, "text": "x" * peer} for peer in range(size)]
    objects = [rank, "from", {"root": rank}]
    dist.broadcast_object_list(objects, src=size - 1)
    assert objects == [size - 1, "from", {"root": size - 1}]
    collected: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object((rank, "g"), collected, dst=0)
    assert collected == ([(peer, "g") for peer in range(size)] if rank == 0 else None)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [{"to": peer} for peer in range(size)] if rank == 0 else None, src=0)
    assert mine == [{"to": rank}]
    if size > 1:
        peer_objects: list[Any] = ["hello", rank] if rank == 0 else [None, None]
        if rank == 0:
            dist.send_object_list(peer_objects, 1)
        elif rank == 1:
            dist.recv_object_list(peer_objects, 0)
            assert peer_objects == ["hello", 0]


def case_new_groups() -> None:
    rank, size = me()
    evens = dist.new_group(list(range(0, size, 2)))
    everybody = dist.new_group()
    reversed_ranks = dist.new_group(list(reversed(range(size))))
    if rank % 2 == 0:
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=evens)
        assert tensor.item() == sum(range(0, size, 2))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=everybody)
    assert tensor.item() == size
    tensor = torch.tensor([float(rank)])
    dist.broadcast(tensor, src=size - 1, group=reversed_ranks)
    assert tensor.item() == size - 1
    assert dist.get_backend(everybody) == "theseus"
    for group in (everybody, reversed_ranks):
        dist.destroy_process_group(group)
    if rank % 2 == 0:
        dist.destroy_process_group(evens)


def case_split_group() -> None:
    rank, size = me()
    group: Any = dist.group.WORLD
    lower, upper = list(range((size + 1) // 2)), list(range((size + 1) // 2, size))
    ranks = lower if rank in lower else upper
    part = group.split_group(ranks)
    tensor = torch.tensor([float(rank)])
    part.allreduce(tensor).wait()
    assert tensor.item() == sum(ranks)
    assert (part.rank(), part.size()) == (ranks.index(rank), len(ranks))
    part.shutdown()
    nobody = group.split_group([0])
    assert (nobody is None) == (rank != 0)
    if nobody is not None:
        nobody.shutdown()


def case_functional_collectives() -> None:
    rank, size = me()
    from torch.distributed import _functional_collectives as functional

    group: Any = dist.group.WORLD
    same(functional.all_reduce(data(rank, 4), "sum", group) + 0, everyone(4).sum(0))
    same(functional.all_gather_tensor(data(rank, 2, 3), 0, group) + 0, everyone(2, 3).reshape(-1, 3))
    got = functional.reduce_scatter_tensor(data(rank, 2 * size), "sum", 0, group) + 0
    same(got, everyone(2 * size).sum(0)[2 * rank : 2 * rank + 2])
    got = functional.all_to_all_single(data(rank, 2 * size), None, None, group) + 0
    same(got, everyone(2 * size)[:, 2 * rank : 2 * rank + 2].reshape(-1))
    same(functional.broadcast(data(rank, 3), size - 1, group) + 0, data(size - 1, 3))
    pair = functional.all_reduce_coalesced([data(rank, 2), data(rank, 3)], "max", group)
    same(pair[1] + 0, everyone(3).amax(0))
    pair = functional.all_gather_into_tensor_coalesced([data(rank, 2), data(rank, 3)], group)
    same(pair[1] + 0, everyone(3).reshape(-1))
    inputs = [data(rank, size), data(rank, 2 * size)]
    pair = functional.reduce_scatter_tensor_coalesced(inputs, "sum", [0, 0], group)
    same(pair[1] + 0, everyone(2 * size).sum(0)[2 * rank : 2 * rank + 2])


def case_direct_calls_of_the_group() -> None:
    rank, size = me()
    group: Any = dist.group.WORLD
    tensor = data(rank, 3)
    group.allreduce(tensor, dist.ReduceOp.MAX).wait()
    same(tensor, everyone(3).amax(0))
    tensor = data(rank, 3)
    group.broadcast(tensor, size - 1).wait()
    same(tensor, data(size - 1, 3))
    outputs = [torch.zeros(3) for _ in range(size)]
    group.allgather(outputs, data(rank, 3)).wait()
    same(torch.stack(outputs), everyone(3))
    group.barrier().wait()
    assert group.name() == "theseus"
    assert group._get_backend_name() == "theseus"


def case_bad_tensors_are_refused_on_the_spot() -> None:
    _, size = me()
    refuses(lambda: dist.all_reduce(torch.ones(2, dtype=torch.int16)), "int16")
    refuses(lambda: dist.all_reduce(torch.eye(2).to_sparse()))
    refuses(lambda: dist.all_reduce(torch.ones(2, device="meta")), "meta")
    refuses(lambda: dist.broadcast(torch.ones(2), size), str(size))
    refuses(lambda: dist.all_to_all_single(torch.zeros(size + 1), torch.zeros(size)))
    refuses(lambda: dist.reduce_scatter_single(torch.zeros(2), torch.zeros(2 * size + 1)), str(2 * size + 1))


def case_barriers() -> None:
    dist.barrier()
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=__import__("datetime").timedelta(seconds=30), wait_all_ranks=True)
