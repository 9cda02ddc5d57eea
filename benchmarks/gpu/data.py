"""What goes into a collective on GPUs and what must come out, for buffers too large to compute whole on the host.

Each rank's values repeat with a prime period, so that no schedule moves chunks of a multiple of it: a chunk in the
wrong place shows. They are small integers, exact in float32 whatever the order of a reduction. Results are compared
whole up to 4 MB, and beyond that in windows: both ends, and places between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from theseus_py import device
from theseus_py.perf.collectives import COLLECTIVES, Shape

PERIOD = 16_381
_WHOLE = 1 << 20  # elements
_WINDOW = 1 << 14
_WINDOWS = 16
Floats = npt.NDArray[np.float32]


def pattern_of(rank: int) -> Floats:
    """One period of a rank's values."""
    index = np.arange(PERIOD, dtype=np.uint64)
    mixed = (index + np.uint64(rank * 1_000_003 + 1)) * np.uint64(0x9E3779B97F4A7C15)
    values: Floats = ((mixed >> np.uint64(33)) % np.uint64(101)).astype(np.float32) - 50
    return values


@dataclass(frozen=True)
class Case:
    """A collective of float32 over `ranks`, for a row of `elements` (see CollectiveKind.shape)."""

    collective: str
    ranks: int
    elements: int
    root: int = 0

    def shape(self, rank: int) -> Shape:
        return COLLECTIVES[self.collective].shape(self.elements, self.ranks, rank)

    @property
    def bytes(self) -> int:
        """Of the larger buffer of a rank, as nccl-tests counts them."""
        return self.shape(0).largest * 4

    @property
    def bus_factor(self) -> float:
        return COLLECTIVES[self.collective].bus_factor(self.ranks)

    def receives(self, rank: int) -> bool:
        return self.collective not in ("reduce", "gather") or rank == self.root

    def expected(self, rank: int, index: npt.NDArray[np.int64]) -> Floats:
        """What elements `index` of the receive buffer of `rank` must be."""
        share = self.elements // self.ranks
        patterns = [pattern_of(each) for each in range(self.ranks)]
        if self.collective in ("all_reduce", "reduce", "reduce_scatter"):
            first = rank * share if self.collective == "reduce_scatter" else 0
            total: Floats = np.sum([pattern[(first + index) % PERIOD] for pattern in patterns], axis=0)
            return total
        if self.collective in ("broadcast", "scatter"):
            first = rank * share if self.collective == "scatter" else 0
            return patterns[self.root][(first + index) % PERIOD]
        if self.collective == "sendrecv":
            return patterns[(rank - 1) % self.ranks][index % PERIOD]
        first = rank * share if self.collective == "alltoall" else 0
        return np.stack(patterns)[index // share, (first + index % share) % PERIOD]


def fill(buffer: device.Array, rank: int, stream: device.Stream) -> None:
    """Write a rank's values: one piece from the host, which copies of itself on the device then double."""
    piece = min(buffer.size, PERIOD * 64)
    buffer[:piece].copy_from(np.resize(pattern_of(rank), piece), stream)
    driver = device.driver()
    while piece < buffer.size:
        more = min(piece, buffer.size - piece)
        driver.copy(buffer.device, buffer[piece : piece + more].address, buffer.address, more * 4, stream.handle)
        piece += more


def wrong_elements(case: Case, rank: int, buffer: device.Array, stream: device.Stream) -> int:
    """How many of those elements of a receive buffer that are looked at are wrong."""
    if not case.receives(rank) or buffer.size == 0:
        return 0
    if buffer.size <= _WHOLE:
        starts, length = np.array([0]), buffer.size
    else:
        length = _WINDOW
        starts = np.linspace(0, buffer.size - length, _WINDOWS, dtype=np.int64)
    wrong = 0
    for start in starts.tolist():
        found = buffer[start : start + length].numpy(stream)
        wrong += int(np.count_nonzero(found != case.expected(rank, np.arange(start, start + length))))
    return wrong
