"""Interleaved rounds: every library runs a batch in every cell of every round, in an order that changes."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness.machine import Probe, near_latency, placement
from benchmarks.harness.server import LoopError, LoopServer, Timing
from benchmarks.harness.verdict import Batch

Cell = tuple[str, int]

# A batch that waited for processors by this share of its time more than the library's best batch of the cell.
DISTURBED_SHARE = 0.05

# A library this many times slower than the best of a cell is not measured there, if one call also takes as long as
# this many batches.
HOPELESS = 20
HOPELESS_BATCHES = 5


@dataclass(frozen=True)
class Contender:
    """Something that can be timed: `batch(collective, size, iterations)` is one measurement."""

    name: str
    batch: Callable[[str, int, int], Timing]
    check: Callable[[str, int], None]
    covers: Callable[[str], bool] = lambda collective: True


def from_server(server: LoopServer, collectives: Sequence[str]) -> Contender:
    """A contender whose batches run on a started library, in the collectives named."""
    return Contender(server.name, server.batch, server.check, lambda collective: collective in collectives)


def seconds_per_call(contender: Contender, cell: Cell, seconds: float) -> float:
    """A first estimate, good enough to size batches of `seconds`. Checks one call's result first. Raises LoopError."""
    contender.check(*cell)
    per_call = contender.batch(*cell, 1).seconds
    if per_call < seconds / 20:
        per_call = contender.batch(*cell, max(2, min(2000, int(seconds / 10 / per_call)))).seconds
    if per_call > HOPELESS_BATCHES * seconds:
        # Before a verdict by this: it may have been other work of the machine.
        per_call = min(per_call, *(contender.batch(*cell, 1).seconds for _ in range(2)))
    return per_call


class Rounds:
    """Runs and keeps the batches. A contender that fails is left out from then on, and named in `failed`;
    (contender, cell) pairs not worth measuring are in `hopeless`.

    `seconds` is the length of a batch. With more ranks than processors, `oversubscribed`, ranks are always in each
    other's way, and batches are not judged by that.
    """

    def __init__(
        self,
        contenders: Sequence[Contender],
        cells: Sequence[Cell],
        probe: Probe,
        seconds: float,
        oversubscribed: bool,
    ) -> None:
        self._contenders = list(contenders)
        self._cells = list(cells)
        self._probe = probe
        self._seconds = seconds
        self._oversubscribed = oversubscribed
        self._order = random.Random(1)
        self._estimates: dict[tuple[str, Cell], float] = {}
        self._iterations: dict[tuple[str, Cell], int] = {}
        self._latencies: list[tuple[float, float]] = []
        self._raw: list[tuple[str, Cell, int, Timing]] = []
        self.failed: dict[str, str] = {}
        self.hopeless: list[tuple[str, Cell]] = []

    def calibrate(self) -> None:
        """Check every contender in every cell, and size its batches. Hopeless ones are left out of a cell."""
        for contender in list(self._contenders):
            for cell in self._cells:
                if contender.covers(cell[0]):
                    self._guard(contender, lambda who=contender, at=cell: self._estimate(who, at))  # type: ignore[misc]
        for (name, cell), seconds in self._estimates.items():
            best = min(other for (_, where), other in self._estimates.items() if where == cell)
            if seconds > HOPELESS_BATCHES * self._seconds and seconds > HOPELESS * best:
                self.hopeless.append((name, cell))
            else:
                self._iterations[name, cell] = max(1, min(500_000, int(self._seconds / seconds)))

    def run(self, rounds: int, progress: bool) -> None:
        """Run a number of rounds, saying so on standard error if asked."""
        for number in range(rounds):
            for cell in self._cells:
                order = [contender for contender in self._contenders if (contender.name, cell) in self._iterations]
                self._order.shuffle(order)
                for contender in order:
                    self._guard(
                        contender,
                        lambda who=contender, at=cell, n=number: self._measure(who, at, n),  # type: ignore[misc]
                    )
            if progress:
                print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)
        if progress:
            print(file=sys.stderr)

    @property
    def has_batches(self) -> bool:
        """True if anything was measured."""
        return bool(self._raw)

    @property
    def near_latency(self) -> float:
        """The flag latency that counts as near in this run, in seconds."""
        return near_latency([latency for pair in self._latencies for latency in pair])

    def batches(self) -> list[Batch]:
        """All batches, each with what the probes around it showed, or "disturbed" if other work was in its way."""
        near = self.near_latency
        usual: dict[tuple[str, Cell], float] = {}
        for name, cell, _, timing in self._raw:
            usual[name, cell] = min(timing.kept_waiting, usual.get((name, cell), 1.0))
        batches = []
        for (name, cell, number, timing), (before, after) in zip(self._raw, self._latencies, strict=True):
            alone = self._oversubscribed or timing.kept_waiting <= usual[name, cell] + DISTURBED_SHARE
            where = placement(before, after, near) if alone else "disturbed"
            batches.append(Batch(name, *cell, number, timing.seconds, where, timing.kept_waiting, before))
        return batches

    def _estimate(self, contender: Contender, cell: Cell) -> None:
        self._estimates[contender.name, cell] = seconds_per_call(contender, cell, self._seconds)

    def _measure(self, contender: Contender, cell: Cell, number: int) -> None:
        before = self._probe.flag_latency()
        timing = contender.batch(*cell, self._iterations[contender.name, cell])
        after = self._probe.flag_latency()
        self._raw.append((contender.name, cell, number, timing))
        self._latencies.append((before, after))

    def _guard(self, contender: Contender, action: Callable[[], None]) -> None:
        if contender.name in self.failed:
            return
        try:
            action()
        except LoopError as error:
            self.failed[contender.name] = str(error)
            self._contenders.remove(contender)


def by_cell(batches: Sequence[Batch]) -> Mapping[Cell, list[Batch]]:
    """The batches of each cell, cells in the order of their first batch."""
    cells: dict[Cell, list[Batch]] = {}
    for batch in batches:
        cells.setdefault((batch.collective, batch.size), []).append(batch)
    return cells
