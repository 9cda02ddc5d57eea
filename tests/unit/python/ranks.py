"""Ranks as threads of the test's own process: every native call lets other threads run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from theseus_py import Communicator, create_unique_id

Result = TypeVar("Result")


def run_ranks(ranks: int, body: Callable[[Communicator], Result], timeout: float = 60.0) -> list[Result]:
    """Run `body(communicator)` as each of `ranks` ranks; return the results by rank, or raise the first error."""
    unique_id = create_unique_id()
    results: list[Result | None] = [None] * ranks
    errors: list[BaseException | None] = [None] * ranks

    def rank_main(rank: int) -> None:
        try:
            with Communicator.init(unique_id, ranks, rank) as communicator:
                results[rank] = body(communicator)
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=rank_main, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for rank, thread in enumerate(threads):
        thread.join(timeout)
        if thread.is_alive():
            known = [error for error in errors if error is not None]
            raise AssertionError(f"rank {rank} of {ranks} is still running after {timeout} s; errors so far: {known}")
    for error in errors:
        if error is not None:
            raise error
    return results  # type: ignore[return-value]
