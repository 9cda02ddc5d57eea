"""The ranks of one process of a sweep. `theseus perf` starts one process a rank, or one for several, with main()."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from theseus_py import launch
from theseus_py.perf.options import SweepOptions
from theseus_py.perf.report import RankPlace, Row
from theseus_py.perf.sweep import row_count, run_sweep
from theseus_py.spawn import die_with_parent, end_with, report

if TYPE_CHECKING:
    from theseus_py.communicator import Communicator


def gpu_of(local_rank: int) -> int | None:
    """The GPU of this host's rank `local_rank`: one each, then round again; None: host memory.

    Ranks of several processes on one GPU take turns there, milliseconds each; threads of one process run together.
    """
    from theseus_py import device

    gpus = device.count()
    return local_rank % gpus if gpus else None


def run_process(
    options: SweepOptions,
    on_start: Callable[[list[RankPlace], int], None],
    on_row: Callable[[Row], None],
) -> None:
    """Joins the launch's processes and sweeps, with `options.threads` ranks in each of them.

    On rank 0, `on_start` gets all places and the number of rows to come, and `on_row` the rows.
    """
    from theseus_py.communicator import Communicator, create_unique_id

    place = launch.discover(os.environ)
    unique_id = launch.exchange_unique_id(place, create_unique_id)
    errors: list[BaseException] = []

    def run_thread(thread: int) -> None:
        rank = place.rank * options.threads + thread
        try:
            with Communicator.init(
                unique_id,
                place.ranks * options.threads,
                rank,
                name="theseus perf",
                device=gpu_of(place.local_rank * options.threads + thread),
            ) as communicator:
                sweep_on(communicator, options, on_start, on_row)
        except BaseException as error:
            errors.append(error)  # the first: what the others say is its effect

    threads = [threading.Thread(target=run_thread, args=(thread,)) for thread in range(1, options.threads)]
    for each in threads:
        each.start()
    run_thread(0)
    for each in threads:
        each.join()
    if errors:
        raise errors[0]


def sweep_on(
    communicator: Communicator,
    options: SweepOptions,
    on_start: Callable[[list[RankPlace], int], None],
    on_row: Callable[[Row], None],
) -> None:
    """Sweeps as one rank of a communicator."""
    from theseus_py.perf.endpoint import CommunicatorEndpoint

    endpoint = CommunicatorEndpoint(communicator)
    host = os.environ.get("THESEUS_HOST") or socket.gethostname()
    mine = RankPlace(**{"rank": endpoint.rank, "pid": os.getpid(), "host": host[:64], **endpoint.memory.describe()})
    texts = endpoint.gather_text(json.dumps(dataclasses.asdict(mine)))
    if endpoint.rank == 0:
        on_start([RankPlace(**json.loads(text)) for text in texts], row_count(options, endpoint.ranks))
    for row in run_sweep(options, endpoint):
        if endpoint.rank == 0:
            on_row(row)


def main() -> None:
    """Entry point of a spawned process: reports rows to its parent, and an error as one sentence."""
    die_with_parent()
    try:
        run_process(
            SweepOptions(**json.loads(sys.argv[1])),
            lambda places, rows: report("start", places=[dataclasses.asdict(place) for place in places], rows=rows),
            lambda row: report("row", row=dataclasses.asdict(row)),
        )
    except Exception as error:
        end_with(error)
