"""What tests look at: flows through a testbed and their rates, and what is left of processes and namespaces."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from theseus_py.testbed import HostProcess, Testbed, Traffic

# A frame carries 1448 bytes of data and takes 1514 of the rate.
GOODPUT = 1448 / 1514
PATIENCE = 30.0
_FLOW = str(Path(__file__).with_name("flow.py"))


def flow(bed: Testbed, source: int, sink: int, nic: int, port: int, dscp: int = 0) -> tuple[HostProcess, HostProcess]:
    """Starts a flow that goes on; returns its sender and receiver."""
    receiver = bed.start(sink, [sys.executable, _FLOW, "recv", str(port)])
    sender = bed.start(source, [sys.executable, _FLOW, "send", bed.shape.address(sink, nic), str(port), str(dscp)])
    return sender, receiver


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something that must come."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE:.0f} s"
        time.sleep(0.02)


def until_it_flows(bed: Testbed, host: int, nic: int) -> None:
    """Waits until a NIC sends in earnest."""
    before = bed.bytes()[host][nic].sent
    until(lambda: bed.bytes()[host][nic].sent > before + 500_000, f"a flow out of host {host}, NIC {nic}")


def rates(bed: Testbed, seconds: float = 1.0) -> list[list[tuple[float, float]]]:
    """Returns for each host and NIC the bit/s of data sent and received, over a while."""
    first, begin = bed.bytes(), time.monotonic()
    time.sleep(seconds)
    second, end = bed.bytes(), time.monotonic()

    def of(before: Traffic, after: Traffic) -> tuple[float, float]:
        scale = 8 / (end - begin)
        return (after.sent - before.sent) * scale, (after.received - before.received) * scale

    return [[of(a, b) for a, b in zip(*hosts, strict=True)] for hosts in zip(first, second, strict=True)]


def reaches(measure: Callable[[], float], wanted: float, slack: float = 0.1) -> float:
    """Measures until the value is no more than `slack` below what is wanted: other work of a busy machine takes rate
    away, but nothing can give it. Returns the last value, whatever it is.
    """
    deadline = time.monotonic() + PATIENCE
    while (value := measure()) < wanted * (1 - slack) and time.monotonic() < deadline:
        pass
    return value


def processes_in(namespace: str) -> list[int]:
    """Returns the processes whose network namespace that is."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and os.readlink(entry / "ns/net") == namespace:
                found.append(int(entry.name))
    return found


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
