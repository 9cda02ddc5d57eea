"""One rank of agreement.py: small requests in a steady beat, so that agreements follow each other."""

from __future__ import annotations

import argparse
import time

import numpy as np

from theseus_py import Communicator, spawn


def main() -> None:
    """Entry point of a rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--agreements", type=int, required=True)
    given = parser.parse_args()
    data = np.ones(2, np.float32)
    with Communicator.from_env() as communicator:
        first = communicator.context_state()
        assert first is not None
        # Requests take longer than an agreement is ahead of, so each has its own: the machine is what is timed.
        while True:
            communicator.all_reduce(data, data)
            state = communicator.context_state()
            assert state is not None
            if state["agreements"] - first["agreements"] >= given.agreements:
                break
            time.sleep(0.11)
        count = state["agreements"] - first["agreements"]
        spawn.report(
            "agreements",
            latency=(state["agreement_ns"] - first["agreement_ns"]) / count / 1e9,
            messages=(state["messages"] - first["messages"]) / count,
        )
        communicator.barrier()


if __name__ == "__main__":
    main()
