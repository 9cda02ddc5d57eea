"""The agents' probes find a NIC's state while nobody uses it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest

import theseus_py
from theseus_py.testbed import Testbed

_PROBING = Path(__file__).with_name("probing.py")


@contextmanager
def agents(bed: Testbed, folder: Path) -> Iterator[TextIO]:
    """Starts an agent on each host, and gives what host 0's prints."""
    shape = bed.shape
    addresses = [shape.address(host, nic) for host in range(shape.hosts) for nic in range(shape.nics)]
    variables = os.environ | {"PYTHONPATH": str(Path(theseus_py.__path__[0]).parent)}
    reading, writing = os.pipe()
    with open(reading) as lines, open(os.devnull, "w") as nowhere:
        for host in range(shape.hosts):
            command = [sys.executable, str(_PROBING), str(folder / str(host)), str(host), str(shape.nics), *addresses]
            bed.start(host, command, environment=variables, stdout=nowhere.fileno() if host else writing)
        os.close(writing)
        yield lines


def until_left(lines: TextIO, low: float, high: float) -> None:
    """Reads probes until one says that from `low` to `high` of the NIC are left: what was under way goes first."""
    seen = []
    for _ in range(20):
        rate, reference = map(float, lines.readline().split())
        seen.append(round(rate / reference, 3))
        if low <= seen[-1] <= high:
            return
    raise AssertionError(f"no probe between {low} and {high}: {seen}")


def test_a_probe_says_what_is_left_of_a_nic(bed: Testbed, tmp_path: Path) -> None:
    """A tenth, nothing, and all again, although no rank sends anything: at either end."""
    pytest.importorskip("theseus_py._core", reason="the native library is not built")
    with agents(bed, tmp_path) as lines:
        until_left(lines, 0.7, 1.4)
        for host in (0, 1):
            bed.cap(host, 0, 0.1)
            until_left(lines, 0.02, 0.2)
            bed.cap(host, 0, 0.0)
            until_left(lines, 0.0, 0.02)
            bed.cap(host, 0, 1.0)
            until_left(lines, 0.7, 1.4)
