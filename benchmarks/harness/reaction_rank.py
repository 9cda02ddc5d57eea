"""One rank of reaction.py: all-reduces without a pause, reporting whenever another schedule runs them."""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from theseus_py import Communicator, spawn


def main() -> None:
    """Entry point of a rank; it ends when its process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--until", type=Path, required=True, help="a file whose coming ends the run as well")
    given = parser.parse_args()
    data, out = np.ones(given.bytes // 4, np.float32), np.empty(given.bytes // 4, np.float32)
    go_on = np.ones(1, np.int32)
    with Communicator.from_env() as communicator:
        end = time.monotonic() + given.seconds
        before = ""
        took: list[int] = []  # ns, of the requests since the schedule changed
        while go_on[0]:
            at = time.monotonic_ns()
            communicator.all_reduce(data, out)
            lasted = time.monotonic_ns() - at
            # What was chosen for this request: nothing changes between two requests.
            chosen = communicator.explain("all_reduce", data.size).chosen
            if communicator.rank == 0:
                if chosen != before:
                    times = {"median_ns": statistics.median(took or [0]), "longest_ns": max(took, default=0)}
                    spawn.report("schedule", name=chosen, at=at, **times)
                    took.clear()
                before = chosen
                took.append(lasted)
                go_on[0] = time.monotonic() < end and not given.until.exists()
            communicator.broadcast(go_on, 0)


if __name__ == "__main__":
    main()
