"""From batches to ratios: pure functions, so that the rule of comparison can be tested by itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

LEVEL = 0.95


@dataclass(frozen=True)
class Batch:
    """One measured batch: seconds per call of one library in one cell, in one round, under one placement."""

    library: str
    collective: str
    size: int
    round: int
    seconds: float
    placement: str
    kept_waiting: float = 0.0
    flag_latency: float = 0.0


@dataclass(frozen=True)
class Cell:
    """The outcome of one cell: medians of the odd rounds for ours and for the peer that was best on the even rounds."""

    collective: str
    size: int
    ours: float
    best_peer: str
    theirs: float

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return self.theirs / self.ours


def medians(batches: Iterable[Batch]) -> dict[str, float]:
    """The median seconds of each library in the batches given."""
    times: dict[str, list[float]] = {}
    for batch in batches:
        times.setdefault(batch.library, []).append(batch.seconds)
    return {library: median(values) for library, values in times.items()}


def compare(batches: Sequence[Batch], ours: str, peers: Iterable[str]) -> Cell | None:
    """Judge one cell. The peer is picked on even rounds and compared on odd ones, so that luck in the picking does not
    count. None if there are too few batches of ours or of any peer.
    """
    picking = medians(batch for batch in batches if batch.round % 2 == 0)
    judging = medians(batch for batch in batches if batch.round % 2 == 1)
    candidates = [peer for peer in peers if peer in picking and peer in judging]
    if not candidates or ours not in judging:
        return None
    best = min(candidates, key=lambda peer: picking[peer])
    first = batches[0]
    return Cell(first.collective, first.size, judging[ours], best, judging[best])


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean; NaN of nothing."""
    return math.exp(sum(math.log(value) for value in values) / len(values)) if values else math.nan


def standing(ratio: float) -> str:
    """In words: "ahead", "level" (from 0.95 to 1.05) or "behind"."""
    if ratio < LEVEL:
        return "behind"
    return "level" if ratio <= 1 / LEVEL else "ahead"
