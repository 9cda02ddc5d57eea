"""Cases that break a group: run them on ranks of their own."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def message_of(call: Any) -> str:
    """Return the text of the RuntimeError that `call` must raise."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("no error")


def case_missing_rank_is_named_by_monitored_barrier() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == size - 1:
        return
    text = message_of(lambda: dist.monitored_barrier(timeout=timedelta(seconds=1)))
    if rank == 0:
        assert f"Rank {size - 1} failed to pass monitoredBarrier" in text
    else:
        assert "rank 0" in text and f"Rank {size - 1} failed" in text


def case_no_time_for_monitored_barrier_is_an_error_at_once() -> None:
    if dist.get_rank() == 0:
        assert "timed out" in message_of(lambda: dist.monitored_barrier(timeout=timedelta(0)))
    else:
        time.sleep(0.2)


def case_all_missing_ranks_are_named_on_request() -> None:
    if dist.get_rank() == 0:
        barrier = lambda: dist.monitored_barrier(timeout=timedelta(seconds=0.5), wait_all_ranks=True)  # noqa: E731
        assert "Ranks 1, 2 failed" in message_of(barrier)


def case_wait_with_a_timeout_raises_and_the_work_goes_on() -> None:
    tensor = torch.ones(1)
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)
        text = message_of(lambda: work.wait(timedelta(seconds=0.2)))
        assert text
        assert not work.is_completed()
        dist.distributed_c10d._get_default_group().get_group_store().set("late", "now")
        work.wait()
    else:
        dist.distributed_c10d._get_default_group().get_group_store().get("late")
        dist.all_reduce(tensor)
    assert tensor.item() == dist.get_world_size()


def case_group_timeout_ends_a_call_that_nobody_joins() -> None:
    group = dist.new_group(timeout=timedelta(seconds=1))
    if dist.get_rank() == 0:
        begun = time.monotonic()
        assert message_of(lambda: dist.all_reduce(torch.ones(1), group=group))
        assert time.monotonic() - begun > 0.5
    else:
        # Alive but late is no error by itself; only the caller's limit is.
        time.sleep(3)


def case_mismatched_calls_raise_on_every_rank() -> None:
    tensor = torch.ones(4096 if dist.get_rank() == 0 else 4095)
    text = message_of(lambda: dist.all_reduce(tensor))
    assert "4096" in text and "4095" in text


def case_error_in_backward_is_a_runtime_error_with_our_text() -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    loss = model(torch.ones(2, 4)).sum()
    if dist.get_rank() == 1:
        import os

        os._exit(0)
    text = message_of(loss.backward)
    assert "rank 1" in text


def case_abort_frees_a_waiting_call() -> None:
    import threading

    group: Any = dist.group.WORLD
    if dist.get_rank() == 0:
        threading.Timer(0.5, group.abort).start()
        assert message_of(lambda: dist.all_reduce(torch.ones(1)))
    else:
        time.sleep(2)


def case_destroy_and_start_again(folder: str, times: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    for number in range(times):
        store = dist.FileStore(f"{folder}/again{number}", size)
        dist.init_process_group("cpu:theseus", store=store, rank=rank, world_size=size)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == size
        if number < times - 1:
            dist.destroy_process_group()
