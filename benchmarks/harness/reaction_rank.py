"""One rank of reaction.py: all-reduces without a pause, reporting whenever another schedule runs them."""

from __future__ import annotations

import argparse
import time

import numpy as np

from theseus_py import Communicator, spawn


def main() -> None:
    """Entry point of a rank; it ends when its process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    data, out = np.ones(given.bytes // 4, np.float32), np.empty(given.bytes // 4, np.float32)
    go_on = np.ones(1, np.int32)
    with Communicator.from_env() as communicator:
        end = time.monotonic() + given.seconds
        before = ""
        while go_on[0]:
            at = time.monotonic_ns()
            communicator.all_reduce(data, out)
            # What was chosen for this request: nothing changes between two requests.
            chosen = communicator.explain("all_reduce", data.size).chosen
            if communicator.rank == 0:
                if chosen != before:
                    spawn.report("schedule", name=chosen, at=at)
                before = chosen
                go_on[0] = time.monotonic() < end
            communicator.broadcast(go_on, 0)


if __name__ == "__main__":
    main()
