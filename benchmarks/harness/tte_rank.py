"""One rank of tte.py: collectives of a few shapes in turns, timed inside the library from call to first instruction."""

from __future__ import annotations

import argparse
import base64
import time

import numpy as np

from theseus_py import Communicator, spawn

# (collective, elements): what a training job repeats, small and large.
SHAPES = [("all_reduce", count) for count in (2, 64, 512, 4096)] + [("all_gather", count) for count in (2, 64, 512)]


class Calls:
    """The calls of every shape, on buffers made once."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        longest = max(count for _, count in SHAPES)
        self._send = np.ones(longest, np.float32)
        self._recv = np.zeros(longest * communicator.ranks, np.float32)

    def run(self, index: int) -> None:
        collective, count = SHAPES[index % len(SHAPES)]
        if collective == "all_reduce":
            self._communicator.all_reduce(self._send[:count], self._recv[:count])
        else:
            self._communicator.all_gather(self._send[:count], self._recv[: count * self._communicator.ranks])


def run_requests(communicator: Communicator, requests: int) -> None:
    """Times `requests` calls, and reports what the library recorded."""
    calls = Calls(communicator)
    core = communicator._core
    core.record_tte(requests)
    for index in range(requests):
        calls.run(index)
    wall, cpu, events = (base64.b64encode(part).decode() for part in core.take_tte())
    core.record_tte(0)
    spawn.report("tte", wall=wall, cpu=cpu, events=events, state=communicator.context_state())


def run_varied(communicator: Communicator, requests: int) -> None:
    """Times calls that are all of a length not seen before, so that each is selected anew."""
    data = np.ones(requests + 1, np.float32)
    core = communicator._core
    core.record_tte(requests)
    for count in range(1, requests + 1):
        communicator.all_reduce(data[:count], data[:count])
    wall, cpu, events = (base64.b64encode(part).decode() for part in core.take_tte())
    core.record_tte(0)
    spawn.report("varied", wall=wall, cpu=cpu, events=events)


def run_switches(communicator: Communicator, switches: int) -> None:
    """Runs until the context has changed `switches` times; reports the first request after each change.

    The parent changes it when it hears of the change before. All ranks see a change before the same request, so all
    leave together.
    """
    calls = Calls(communicator)
    core = communicator._core
    epoch = _epoch(communicator)
    for number in range(switches):
        spawn.report("ready", number=number)
        core.record_tte(1_000_000)
        # Every shape has run since the last change: what is new afterwards comes from the change alone.
        while _epoch(communicator) == epoch:
            calls.run(0)
        epoch = _epoch(communicator)
        wall, cpu, events = core.take_tte()
        samples = np.frombuffer(wall, np.uint32)
        # The change was installed in the last request, which also ran under it first.
        spawn.report("switch", wall=int(samples[-1]), cpu=int(np.frombuffer(cpu, np.uint32)[-1]), events=events[-1])


def _epoch(communicator: Communicator) -> int:
    state = communicator.context_state()
    assert state is not None
    return state["epoch"]


def main() -> None:
    """Entry point of a rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--position", type=int, required=True, help="of the log, to be installed before it begins")
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--varied", type=int, default=0)
    parser.add_argument("--switches", type=int, default=0)
    given = parser.parse_args()
    with Communicator.from_env() as communicator:
        calls = Calls(communicator)
        # Without adaptation there is no state, and nothing to wait for.
        while (communicator.context_state() or {"installed": given.position})["installed"] < given.position:
            calls.run(0)
            time.sleep(0.0005)
        for index in range(len(SHAPES)):
            calls.run(index)
        if given.requests:
            run_requests(communicator, given.requests)
        if given.varied:
            run_varied(communicator, given.varied)
        if given.switches:
            run_switches(communicator, given.switches)
        communicator.barrier()


if __name__ == "__main__":
    main()
