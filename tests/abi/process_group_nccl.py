"""One rank of PyTorch's own ProcessGroupNCCL over our libnccl.so.2 on the fake CUDA of fake_cuda/. Run by
test_process_group_nccl.py: CASE RANK RANKS STORE_FILE.

CUDA kernels do not run here, so tensors are made and checked on the CPU, and what would need a kernel is left out:
`Cuda.untouched` fails where a case launched one after all.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

PATIENCE = timedelta(seconds=60)
OURS = 23203
COUNTS = (1, 1000, 300_000)


class Cuda:
    """The fake CUDA runtime's own functions."""

    def __init__(self) -> None:
        """Find it: it is preloaded."""
        self.library = ctypes.CDLL(None)
        self.library.fake_cuda_launches.restype = ctypes.c_long

    @contextlib.contextmanager
    def untouched(self) -> Iterator[None]:
        """Fail where a kernel was launched: it did not run, so the results mean nothing."""
        before = self.library.fake_cuda_launches()
        yield
        assert self.library.fake_cuda_launches() == before, "a CUDA kernel was launched, which the fake does not run"

    def hold(self, held: bool) -> None:
        """Keep events that are recorded from now on from completing, as a kernel that does not end does; or let go."""
        self.library.fake_cuda_hold(int(held))


CUDA = Cuda()


class Rank:
    """This rank, and how its tensors are made and checked."""

    def __init__(self, rank: int, ranks: int, store: str) -> None:
        """Remember who this is; each rank has a device of its own."""
        self.rank, self.ranks, self.store = rank, ranks, store
        self.polled = os.environ.get("TORCH_NCCL_USE_COMM_NONBLOCKING") == "1"
        self.device = torch.device("cuda", rank)
        torch.cuda.set_device(self.device)

    def join(self, *, eager: bool = False, timeout: timedelta = PATIENCE) -> None:
        """Make the default group; eager ones have their communicator at once."""
        store = dist.FileStore(self.store, self.ranks)
        device = {"device_id": self.device} if eager else {}
        dist.init_process_group("nccl", store=store, rank=self.rank, world_size=self.ranks, timeout=timeout, **device)

    def values(self, rank: int, count: int, kind: torch.dtype = torch.float32, salt: int = 0) -> torch.Tensor:
        """What a rank puts in, on the CPU: small whole numbers, which every type holds exactly."""
        return ((torch.arange(count) * 7 + rank * 3 + salt) % 5 + 1).to(kind)

    def mine(self, count: int, kind: torch.dtype = torch.float32, salt: int = 0) -> torch.Tensor:
        """This rank's, on its device."""
        return self.values(self.rank, count, kind, salt).to(self.device)

    def all(self, count: int, kind: torch.dtype = torch.float32, salt: int = 0) -> torch.Tensor:
        """Every rank's, one a row, on the CPU."""
        return torch.stack([self.values(rank, count, kind, salt) for rank in range(self.ranks)])

    def room(self, count: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
        """Room for results on the device; what it holds is none of them."""
        return torch.empty(count, dtype=kind, device=self.device)


def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Fail unless equal."""
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)


# ---- Collectives


def reductions(me: Rank) -> None:
    for kind in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8):
        for count in COUNTS[:2]:
            rows = me.all(count, kind)
            expected = {
                dist.ReduceOp.SUM: rows.sum(0, dtype=kind),
                dist.ReduceOp.MAX: rows.amax(0),
                dist.ReduceOp.MIN: rows.amin(0),
                dist.ReduceOp.PRODUCT: rows.prod(0, dtype=kind),
            }
            for op, result in expected.items():
                buffer = me.mine(count, kind)
                dist.all_reduce(buffer, op)
                check(buffer, result)
    for count in COUNTS:
        buffer = me.mine(count)
        dist.all_reduce(buffer, dist.ReduceOp.AVG)
        torch.testing.assert_close(buffer.cpu(), me.all(count).mean(0))
        buffer = me.mine(count)
        scaled = dist._make_nccl_premul_sum(0.5)
        dist.all_reduce(buffer, scaled)
        check(buffer, me.all(count).sum(0) / 2)
        root = me.ranks - 1
        buffer = me.mine(count)
        dist.reduce(buffer, root)
        check(buffer, me.all(count).sum(0) if me.rank == root else me.values(me.rank, count))
        out = me.room(count)
        dist.reduce_scatter_single(out, me.mine(count * me.ranks))
        check(out, me.all(count * me.ranks).sum(0).view(me.ranks, count)[me.rank])
        out = me.room(count)
        dist.reduce_scatter(out, list(me.mine(count * me.ranks).view(me.ranks, count).unbind()))
        check(out, me.all(count * me.ranks).sum(0).view(me.ranks, count)[me.rank])


def movements(me: Rank) -> None:
    for count in COUNTS:
        rows, blocks = me.all(count), me.all(count * me.ranks).view(me.ranks, me.ranks, count)
        for root in range(me.ranks):
            buffer = me.mine(count)
            dist.broadcast(buffer, root)
            check(buffer, rows[root])
        out = me.room(count * me.ranks)
        dist.all_gather_single(out, me.mine(count))
        check(out, rows.flatten())
        parts = [me.room(count) for _ in range(me.ranks)]
        dist.all_gather(parts, me.mine(count))
        check(torch.stack([part.cpu() for part in parts]), rows)
        root = me.ranks - 1
        parts = [me.room(count) for _ in range(me.ranks)]
        dist.gather(me.mine(count), parts if me.rank == root else None, root)
        if me.rank == root:
            check(torch.stack([part.cpu() for part in parts]), rows)
        out = me.room(count)
        dist.scatter(
            out, list(me.mine(count * me.ranks).view(me.ranks, count).unbind()) if me.rank == root else None, root
        )
        check(out, blocks[root][me.rank])
        # PyTorch calls ncclAlltoAll without a thought for ncclInProgress, and so fails here with any NCCL.
        if not me.polled:
            out = me.room(count * me.ranks)
            dist.all_to_all_single(out, me.mine(count * me.ranks))
            check(out, blocks[:, me.rank].flatten())
        parts = [me.room(count) for _ in range(me.ranks)]
        dist.all_to_all(parts, list(me.mine(count * me.ranks).view(me.ranks, count).unbind()))
        check(torch.stack([part.cpu() for part in parts]), blocks[:, me.rank])


def uneven(me: Rank) -> None:
    """Lists whose parts differ in size, and splits: ProcessGroupNCCL makes groups of broadcasts or sends of them."""
    sizes = [10 * (rank + 1) for rank in range(me.ranks)]
    parts = [me.room(size) for size in sizes]
    dist.all_gather(parts, me.mine(sizes[me.rank]))
    for rank, part in enumerate(parts):
        check(part, me.values(rank, sizes[rank]))
    out = me.room(sizes[me.rank])
    dist.reduce_scatter(out, [me.values(me.rank, size).to(me.device) for size in sizes])
    check(out, torch.stack([me.values(rank, sizes[me.rank]) for rank in range(me.ranks)]).sum(0))
    # Rank r sends s + 1 elements to rank s.
    given = [rank + 1 for rank in range(me.ranks)]
    out = me.room((me.rank + 1) * me.ranks)
    dist.all_to_all_single(out, me.mine(sum(given)), [me.rank + 1] * me.ranks, given)
    expected = [me.values(rank, sum(given)).split(given)[me.rank] for rank in range(me.ranks)]
    check(out, torch.cat(expected))


def asynchronous(me: Rank) -> None:
    buffers = [me.mine(1000, salt=salt) for salt in range(20)]
    works = [dist.all_reduce(buffer, async_op=True) for buffer in buffers]
    for salt, (work, buffer) in enumerate(zip(works, buffers, strict=True)):
        work.wait()
        assert work.is_completed()
        check(buffer, me.all(1000, salt=salt).sum(0))
    future = dist.all_reduce(buffer := me.mine(10), async_op=True).get_future()
    check(future.wait()[0], me.all(10).sum(0))
    assert buffer is not None


def coalesced(me: Rank) -> None:
    buffers = [me.mine(count) for count in COUNTS]
    with dist._coalescing_manager(device=me.device, async_ops=True) as manager:
        for buffer in buffers:
            dist.all_reduce(buffer)
    manager.wait()
    for count, buffer in zip(COUNTS, buffers, strict=True):
        check(buffer, me.all(count).sum(0))
    rooms = [me.room(count * me.ranks) for count in COUNTS]
    with dist._coalescing_manager(device=me.device):
        for count, room in zip(COUNTS, rooms, strict=True):
            dist.all_gather_single(room, me.mine(count))
    for count, room in zip(COUNTS, rooms, strict=True):
        check(room, me.all(count).flatten())
    rooms = [me.room(count) for count in COUNTS]
    with dist._coalescing_manager(device=me.device):
        for count, room in zip(COUNTS, rooms, strict=True):
            dist.reduce_scatter_single(room, me.mine(count * me.ranks))
    for count, room in zip(COUNTS, rooms, strict=True):
        check(room, me.all(count * me.ranks).sum(0).view(me.ranks, count)[me.rank])


def point_to_point(me: Rank) -> None:
    after, before = (me.rank + 1) % me.ranks, (me.rank - 1) % me.ranks
    for count in COUNTS:
        out = me.room(count)
        if me.rank % 2 == 0:
            dist.send(me.mine(count), after)
            dist.recv(out, before)
        else:
            dist.recv(out, before)
            dist.send(me.mine(count), after)
        check(out, me.values(before, count))
        out = me.room(count)
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, me.mine(count, salt=1), after), dist.P2POp(dist.irecv, out, before)]
        ):
            work.wait()
        check(out, me.values(before, count, salt=1))


def groups(me: Rank) -> None:
    """Part of the ranks in a group of their own: with device_id through ncclCommSplit, else through a new unique id."""
    half = dist.new_group([rank for rank in range(me.ranks) if rank % 2 == 0])
    if me.rank % 2 == 0:
        buffer = me.mine(1000)
        dist.all_reduce(buffer, group=half)
        check(buffer, me.all(1000)[::2].sum(0))
    everybody = dist.new_group()
    buffer = me.mine(1000)
    dist.all_reduce(buffer, group=everybody)
    check(buffer, me.all(1000).sum(0))
    dist.destroy_process_group(everybody)


def loaded() -> int:
    """The version of the NCCL that PyTorch calls; torch.cuda.nccl.version() is what it was compiled with."""
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    return int(ctypes.CDLL(os.path.join(folder, "libtorch_cuda.so"))._ZN4c10d20getNcclVersionNumberEv())


def case_collectives(me: Rank, mode: str) -> None:
    assert loaded() == OURS, loaded()
    me.join(eager=mode != "lazy")
    with CUDA.untouched():
        for part in (reductions, movements, uneven, asynchronous, coalesced, point_to_point, groups):
            part(me)
    # These make zeros on the device first, with kernels; what they give does not depend on them.
    dist.barrier()
    gathered: list[Any] = [None] * me.ranks
    dist.all_gather_object(gathered, {"rank": me.rank})
    assert gathered == [{"rank": rank} for rank in range(me.ranks)]
    dist.destroy_process_group()
    # A second life in the same process.
    me.store += ".again"
    me.join()
    buffer = me.mine(10)
    dist.all_reduce(buffer)
    check(buffer, me.all(10).sum(0))
    dist.destroy_process_group()


# ---- Training


class OnCpu(torch.autograd.Function):
    """x W^T + b of tensors on the device, computed on the CPU: kernels do not run here."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.linear(x.cpu(), weight.cpu(), bias.cpu()).to(x.device)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, weight = (each.cpu() for each in ctx.saved_tensors)
        (gradient,) = (each.cpu() for each in gradients)
        device = ctx.saved_tensors[0].device
        return tuple(each.to(device) for each in (gradient @ weight, gradient.T @ x, gradient.sum(0)))


class Net(torch.nn.Module):
    """Three layers, so that DDP has several buckets."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = OnCpu.apply(x, layer.weight, layer.bias)
        return x


def average(group, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are text
    """DDP's default divides with a kernel; this leaves the division to NCCL."""
    work = dist.all_reduce(bucket.buffer(), dist.ReduceOp.AVG, group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def train(model: torch.nn.Module, parameters: list[torch.nn.Parameter], batches: list[torch.Tensor]) -> None:
    for batch in batches:
        # On the CPU from here: loss and update.
        loss = model(batch).cpu().square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.copy_(parameter.cpu() - 0.1 * parameter.grad.cpu())
                parameter.grad = None


def case_training(me: Rank) -> None:
    me.join(eager=True)
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(8 * me.ranks, 64, generator=generator) for _ in range(4)]
    alone = Net()
    train(alone, list(alone.parameters()), batches)
    net = Net().to(me.device)
    # init_sync would put the parameters into one tensor with a kernel; they are equal already.
    model = torch.nn.parallel.DistributedDataParallel(net, [me.rank], bucket_cap_mb=0.02, init_sync=False)
    model.register_comm_hook(None, average)
    with CUDA.untouched():
        train(model, list(net.parameters()), [batch.chunk(me.ranks)[me.rank].to(me.device) for batch in batches])
    for ours, expected in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), expected.detach())
    dist.destroy_process_group()


# ---- Failures


def exchange(me: Rank) -> None:
    """Send to the next rank and receive from the one before, in one batch."""
    after, before = (me.rank + 1) % me.ranks, (me.rank - 1) % me.ranks
    out = me.room(1000)
    both = [dist.P2POp(dist.isend, me.mine(1000), after), dist.P2POp(dist.irecv, out, before)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    check(out, me.values(before, 1000))


def fails(me: Rank, *words: str, what: str = "collective") -> None:
    """One all_reduce, or one batch of point-to-point calls, which raises an error that holds these words."""
    try:
        if what == "collective":
            dist.all_reduce(me.mine(1000))
        else:
            exchange(me)
        torch.cuda.synchronize()
    except dist.DistBackendError as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in: {error}"
        return
    raise AssertionError(f"{what} did not fail")


def used(me: Rank, **how: Any) -> Any:
    """Join and use the group once; return its NCCL backend."""
    me.join(**how)
    buffer = me.mine(10)
    dist.all_reduce(buffer)
    check(buffer, me.all(10).sum(0))
    return dist.group.WORLD._get_backend(me.device)


def leave() -> None:
    """End without PyTorch's farewell: after a failure it would wait for ranks that do not come."""
    sys.stdout.flush()
    os._exit(0)


def case_never_comes(me: Rank, what: str) -> None:
    """With THESEUS_TIMEOUT: the call itself gives up, in the caller's thread."""
    used(me, eager=what != "collective")
    if what != "collective":
        exchange(me)
    if me.rank == 0:
        fails(me, "NCCL error", "THESEUS_TIMEOUT", what=what)
    else:
        sys.stdin.read()
    leave()


def case_abort(me: Rank, what: str) -> None:
    """Another thread aborts the group while a call waits for a rank that does not come: the call returns."""
    backend = used(me, eager=what != "collective")
    if me.rank == 0:
        threading.Timer(0.5, backend.abort).start()
        fails(me, "NCCL error", what=what)
    else:
        sys.stdin.read()
    leave()


def case_watchdog_wait(me: Rank) -> None:
    """A kernel that does not end: PyTorch's watchdog aborts the communicator, and wait() raises."""
    used(me, timeout=timedelta(seconds=2))
    CUDA.hold(me.rank == 0)
    work = dist.all_reduce(me.mine(10), async_op=True)
    if me.rank == 1:
        sys.stdin.read()
        leave()
    try:
        work.wait()
    except dist.DistBackendError as error:
        assert "imeout" in str(error), error
    else:
        raise AssertionError("wait() did not raise")
    leave()


def case_watchdog_frees_a_waiting_call(me: Rank) -> None:
    """The same, while the caller's thread is inside the next call, for which rank 1 does not come."""
    used(me, timeout=timedelta(seconds=2))
    CUDA.hold(me.rank == 0)
    dist.all_reduce(me.mine(10), async_op=True)
    if me.rank == 0:
        fails(me, "NCCL error")
    else:
        sys.stdin.read()
    leave()


def case_killed(me: Rank) -> None:
    """The last rank is killed; the others are told that it was it."""
    used(me)
    if me.rank == me.ranks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    fails(me, "NCCL error", f"rank {me.ranks - 1}")
    leave()


def case_mismatch(me: Rank) -> None:
    """Different counts: an error that names both, not a hang."""
    used(me)
    try:
        dist.all_reduce(me.mine(1000 + me.rank))
    except dist.DistBackendError as error:
        assert "1000" in str(error) and "1001" in str(error), error
    else:
        raise AssertionError("all_reduce did not fail")
    leave()


def case_ring(me: Rank) -> None:
    """Pipeline training's pattern: batches of sends and receives between collectives, in an eager group and in a part
    of it, which is split off, ended, and leaves the whole as it was.
    """
    used(me, eager=True)
    pair = dist.new_group([0, 1])
    for salt in range(5):
        exchange(me)
        buffer = me.mine(1000, salt=salt)
        work = dist.all_reduce(buffer, async_op=True)
        exchange(me)
        work.wait()
        check(buffer, me.all(1000, salt=salt).sum(0))
        if me.rank < 2:
            out = me.room(100)
            both = [
                dist.P2POp(dist.isend, me.mine(100, salt=salt), 1 - me.rank, pair),
                dist.P2POp(dist.irecv, out, 1 - me.rank, pair),
            ]
            for each in dist.batch_isend_irecv(both):
                each.wait()
            check(out, me.values(1 - me.rank, 100, salt=salt))
    if me.rank < 2:
        dist.destroy_process_group(pair)
    exchange(me)
    dist.destroy_process_group()


def case_shrink(me: Rank) -> None:
    """PyTorch's shrink_group, through ncclCommShrink: the last rank leaves, the others go on."""
    used(me, eager=True)
    if me.rank == me.ranks - 1:
        sys.stdin.read()
        leave()
    dist.shrink_group([me.ranks - 1])
    buffer = me.mine(10)
    dist.all_reduce(buffer)
    check(buffer, me.all(10)[:-1].sum(0))
    leave()


def main() -> None:
    """Run one case and say so."""
    faulthandler.dump_traceback_later(120)  # a rank that hangs says where
    case, rank, ranks, store, *arguments = sys.argv[1:]
    begun = time.monotonic()
    globals()[f"case_{case}"](Rank(int(rank), int(ranks), store), *arguments)
    print(f"rank {rank}: {case} in {time.monotonic() - begun:.1f} s")


if __name__ == "__main__":
    main()
