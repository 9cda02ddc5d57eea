"""A barrier over the store that says who is missing; it works when the network between ranks does not."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from typing import Any

_LONGEST = 365 * 86400.0


def monitored_barrier(store: Any, rank: int, size: int, number: int, timeout: float, wait_all_ranks: bool) -> None:
    """Wait for all ranks at the `number`-th barrier of a group, at most `timeout` seconds (negative: for ever).

    Rank 0 raises RuntimeError with the first rank, or all ranks, that did not come; the ranks that came are told.
    """
    limit = timeout if timeout > 0 else _LONGEST
    prefix = f"theseus/monitored_barrier/{number}"
    if rank == 0:
        _watch(store, size, prefix, limit, wait_all_ranks)
    else:
        _report(store, rank, prefix, limit)


def _watch(store: Any, size: int, prefix: str, limit: float, wait_all_ranks: bool) -> None:
    deadline = time.monotonic() + limit
    missing: list[int] = []
    for peer in range(1, size):
        left = max(0.001, deadline - time.monotonic())
        try:
            store.wait([f"{prefix}/{peer}"], timedelta(seconds=left))
        except RuntimeError:
            missing.append(peer)
            if not wait_all_ranks:
                break
    if missing:
        who = f"Rank {missing[0]}" if len(missing) == 1 else f"Ranks {', '.join(map(str, missing))}"
        message = f"{who} failed to pass monitoredBarrier in {round(limit * 1000)} ms"
        store.set(f"{prefix}/end", f"error:{message}")
        raise RuntimeError(f"[Rank 0]: {message}")
    store.set(f"{prefix}/end", "ok")
    for peer in range(1, size):
        # Not every store can delete, and a key left over does no harm.
        with contextlib.suppress(RuntimeError):
            store.delete_key(f"{prefix}/{peer}")


def _report(store: Any, rank: int, prefix: str, limit: float) -> None:
    store.set(f"{prefix}/{rank}", "here")
    # Rank 0 may come as late as the limit allows, and then waits as long again for the others.
    try:
        store.wait([f"{prefix}/end"], timedelta(seconds=min(2 * limit, _LONGEST)))
        answer = store.get(f"{prefix}/end").decode()
    except RuntimeError as error:
        raise RuntimeError(
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
            f"rank 0. Please check rank 0 logs for faulty rank. ({error})"
        ) from error
    if answer != "ok":
        raise RuntimeError(
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
            f"rank 0. Please check rank 0 logs for faulty rank. Rank 0 said: {answer.removeprefix('error:')}"
        )
