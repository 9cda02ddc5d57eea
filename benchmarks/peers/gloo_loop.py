"""The loop of loop.h on torch.distributed's gloo, with the same commands and answers.

Started once per rank as `python gloo_loop.py FOLDER LARGEST_BYTES`; THESEUS_BENCH_RANK and THESEUS_BENCH_RANKS name
the rank, and the rendezvous is a file in FOLDER.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist


class Ranks:
    """This rank's buffers, and the five collectives on them."""

    def __init__(self, rank: int, ranks: int, largest: int) -> None:
        self.rank = rank
        self.ranks = ranks
        floats = max(largest // 4, ranks)
        self.buffer = torch.ones(floats)
        self.output = torch.ones(floats)

    def call(self, collective: str, size: int) -> tuple[Callable[[], object], int]:
        """The call for a size in bytes, and the floats of the buffer that it touches."""
        floats = max(size // 4, 1)
        block = max(size // 4 // self.ranks, 1)
        mine = slice(self.rank * block, (self.rank + 1) * block)
        part = self.buffer[: block * self.ranks]
        if collective == "allreduce":
            whole = self.buffer[:floats]
            return lambda: dist.all_reduce(whole), floats
        if collective == "broadcast":
            whole = self.buffer[:floats]
            return lambda: dist.broadcast(whole, 0), floats
        if collective == "allgather":
            own = self.buffer[mine]
            return lambda: dist.all_gather_into_tensor(part, own), block * self.ranks
        if collective == "reduce_scatter":
            # gloo's reduce_scatter refuses an output that overlaps the input, so the output is a buffer of its own.
            scattered = self.output[:block]
            return lambda: dist.reduce_scatter_tensor(scattered, part), block * self.ranks
        if collective == "alltoall":
            received = self.output[: block * self.ranks]
            return lambda: dist.all_to_all_single(received, part), block * self.ranks
        raise ValueError(f"unknown collective {collective}")

    def sample(self, rank: int, floats: int) -> torch.Tensor:
        """What a rank puts in: the same small whole numbers as in loop.c."""
        return (torch.arange(floats) % 977 + (rank + 1) * 3).float()

    def wrong(self, collective: str, size: int) -> int:
        """Run once on known data; the number of wrong elements on this rank."""
        call, floats = self.call(collective, size)
        self.buffer[:floats] = self.sample(self.rank, floats)
        dist.barrier()
        call()
        block = floats // self.ranks
        mine = slice(self.rank * block, (self.rank + 1) * block)
        total = sum((self.sample(rank, floats) for rank in range(self.ranks)), torch.zeros(floats))
        if collective == "allreduce":
            got, expected = self.buffer[:floats], total
        elif collective == "broadcast":
            got, expected = self.buffer[:floats], self.sample(0, floats)
        elif collective == "reduce_scatter":
            got, expected = self.output[:block], total[mine]
        elif collective == "allgather":
            blocks = [self.sample(rank, floats)[rank * block : (rank + 1) * block] for rank in range(self.ranks)]
            got, expected = self.buffer[:floats], torch.cat(blocks)
        else:
            got = self.output[:floats]
            expected = torch.cat([self.sample(rank, floats)[mine] for rank in range(self.ranks)])
        return int((got != expected).sum())


def maximum(value: float) -> float:
    """The largest value over the ranks."""
    word = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(word, op=dist.ReduceOp.MAX)
    return float(word[0])


def kept_waiting() -> float:
    """Seconds for which this thread was ready to run and something else had the processor."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0


def timed(ranks: Ranks, collective: str, size: int, iterations: int) -> str:
    """Seconds per call, the slowest rank's, after a fifth as many calls to warm up; and the share of them lost."""
    call, _ = ranks.call(collective, size)
    dist.barrier()
    for _ in range(min(iterations // 5 + 1, 1000)):
        call()
    dist.barrier()
    waited = kept_waiting()
    begin = time.monotonic()
    for _ in range(iterations):
        call()
    whole = time.monotonic() - begin
    share = maximum((kept_waiting() - waited) / whole)
    return f"{maximum(whole / iterations):.9e} {share:.4f}"


def go_ahead() -> None:
    """Put this rank before the other work of a busy machine, as loop.c does it."""
    if "THESEUS_BENCH_AHEAD" in os.environ:
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text("-20")
        os.setpriority(os.PRIO_PROCESS, 0, -15)


def main() -> None:
    """Serve batches until "quit" or the end of the FIFO."""
    go_ahead()
    folder = Path(sys.argv[1])
    rank, count = int(os.environ["THESEUS_BENCH_RANK"]), int(os.environ["THESEUS_BENCH_RANKS"])
    torch.set_num_threads(1)
    backend = os.environ.get("THESEUS_BENCH_TORCH_BACKEND", "gloo")
    dist.init_process_group(backend, init_method=f"file://{folder / 'store'}", rank=rank, world_size=count)
    ranks = Ranks(rank, count, int(sys.argv[2]))
    with open(folder / f"command.{rank}") as commands, open(folder / "result", "r+b", buffering=0) as results:
        if rank == 0:
            results.write(f"ready {count}\n".encode())
        while (line := commands.readline()) and not line.startswith("quit"):
            collective, size, iterations, mode = line.split()
            if mode == "check":
                wrong = maximum(ranks.wrong(collective, int(size)))
                answer = "ok 0 0" if wrong == 0 else f"error wrong result: {line.strip()}"
            else:
                answer = f"ok {timed(ranks, collective, int(size), int(iterations))}"
            if rank == 0:
                results.write(f"{answer}\n".encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
