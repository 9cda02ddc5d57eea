"""What this host's ranks sent, summed over their processes: what an agent tells the leader's every 20 ms."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from theseus_py import _core
from theseus_py.errors import TheseusError

__all__ = ["FlowSums"]


class _Process:
    """One rank's process: its page, and what its flows had counted when it was last read."""

    def __init__(self, descriptor: int) -> None:
        self.page = _core.FlowPage(descriptor)
        self.identity = str(self.page.head()["identity"])
        self.seen: dict[tuple[str, int], tuple[int, int, int]] = {}


class FlowSums:
    """Bytes acknowledged while data waited to go, for how long it did, and bytes that first aid sent over another rail,
    by destination and rail; ever growing. And how many connections it keeps away now.

    Flows of several processes share a NIC: their bytes add up, and their time is that of the one that waited longest.
    """

    def __init__(self) -> None:
        self._processes: dict[int, _Process | None] = {}
        self._sums: dict[tuple[str, int], list[int]] = {}
        self._suspect: dict[tuple[str, int], int] = {}
        self._rates: list[int] = []
        self.identity = ""

    def read(self, pages: Iterable[tuple[int, int]]) -> None:
        """Takes in what has been counted since the last call. `pages`: process id and descriptor of ranks' pages."""
        added: dict[tuple[str, int], list[int]] = {}
        self._suspect = {}
        present = set()
        for pid, descriptor in pages:
            present.add(pid)
            process = self._process(pid, descriptor)
            if process is None:
                continue
            self.identity = process.identity
            for row in process.page.read():
                flow = (str(row["identity"]), int(row["rail"]))
                moved, waited = int(row["backlogged_bytes"]), int(row["backlogged_ns"])
                rescued = int(row["rescued_bytes"])
                moved_before, waited_before, rescued_before = process.seen.get(flow, (0, 0, 0))
                process.seen[flow] = (moved, waited, rescued)
                sums = added.setdefault(flow, [0, 0, 0])
                sums[0] += max(0, moved - moved_before)
                sums[1] = max(sums[1], waited - waited_before)
                sums[2] += max(0, rescued - rescued_before)
                if row["suspect"]:
                    self._suspect[flow] = self._suspect.get(flow, 0) + int(row["suspect"])
        for pid in self._processes.keys() - present:
            del self._processes[pid]
        for flow, more in added.items():
            sums = self._sums.setdefault(flow, [0, 0, 0])
            for number, value in enumerate(more):
                sums[number] += value

    def _process(self, pid: int, descriptor: int) -> _Process | None:
        if pid not in self._processes:
            try:
                process = _Process(descriptor)
                self._rates = [int(rate) for rate in process.page.head()["rates"]] or self._rates
            except TheseusError:
                process = None  # of another build: its flows stay unknown
            self._processes[pid] = process
        return self._processes[pid]

    def rows(self) -> dict[str, Any]:
        """Returns the sums for another agent, with the time at which they hold (this host's clock, ns)."""
        return {
            "identity": self.identity,
            "at": time.monotonic_ns(),
            "ranks": len(self._processes),
            "rates": self._rates,
            "flows": [[*flow, *sums, self._suspect.get(flow, 0)] for flow, sums in self._sums.items()],
        }
