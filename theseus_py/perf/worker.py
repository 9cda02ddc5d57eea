"""One rank of a sweep. `theseus perf` starts one process a rank with main()."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import sys
from collections.abc import Callable

from theseus_py.perf.options import SweepOptions
from theseus_py.perf.report import RankPlace, Row
from theseus_py.perf.sweep import row_count, run_sweep
from theseus_py.spawn import die_with_parent, end_with, report


def run_rank(
    options: SweepOptions,
    on_start: Callable[[list[RankPlace], int], None],
    on_row: Callable[[Row], None],
) -> None:
    """Joins the launch's ranks and sweeps. On rank 0, `on_start` gets all places and the number of rows to come."""
    from theseus_py.communicator import Communicator
    from theseus_py.perf.endpoint import CommunicatorEndpoint

    with Communicator.from_env(name="theseus perf") as communicator:
        endpoint = CommunicatorEndpoint(communicator)
        host = os.environ.get("THESEUS_HOST") or socket.gethostname()
        texts = endpoint.gather_text(f"{os.getpid()} {host}")
        if endpoint.rank == 0:
            places = [RankPlace(rank, int(text.split()[0]), text.split()[1]) for rank, text in enumerate(texts)]
            on_start(places, row_count(options, endpoint.ranks))
        for row in run_sweep(options, endpoint):
            if endpoint.rank == 0:
                on_row(row)


def main() -> None:
    """Entry point of a spawned rank: reports rows to its parent, and an error as one sentence."""
    die_with_parent()
    try:
        run_rank(
            SweepOptions(**json.loads(sys.argv[1])),
            lambda places, rows: report("start", places=[dataclasses.asdict(place) for place in places], rows=rows),
            lambda row: report("row", row=dataclasses.asdict(row)),
        )
    except Exception as error:
        end_with(error)
