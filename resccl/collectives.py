"""How the data of each collective is cut into chunks, and who holds what at the start and at the end.

The table at the head of csrc/schedule/algorithm.h, as functions over arrays of ranks and chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

COLLECTIVES = (
    "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AllToAll", "Gather", "Scatter",
)  # fmt: skip
REDUCING = frozenset({"AllReduce", "ReduceScatter", "Reduce"})
ROOTED = frozenset({"Broadcast", "Reduce", "Gather", "Scatter"})
_BLOCK_A_RANK = frozenset({"AllGather", "ReduceScatter", "Gather", "Scatter"})


@dataclass(frozen=True)
class ChunkSpace:
    """The data space of a collective: `chunks` chunks over `ranks` ranks."""

    collective: str
    ranks: int
    chunks: int
    root: int = 0

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise ValueError(f"there is no collective '{self.collective}'; there are {', '.join(COLLECTIVES)}")
        if not 1 <= self.ranks <= 1 << 15:
            raise ValueError(f"an algorithm has 1 to 32768 ranks, not {self.ranks}")
        if not 0 <= self.root < self.ranks:
            raise ValueError(f"root {self.root} is not among the ranks 0 to {self.ranks - 1}")
        if not 1 <= self.chunks < 1 << 31 or self.chunks % self.blocks != 0:
            raise ValueError(
                f"{self.chunks} chunks: {self.collective} over {self.ranks} ranks needs a multiple of {self.blocks}"
            )

    @property
    def blocks(self) -> int:
        """Into how many equal blocks the collective cuts its data."""
        if self.collective in _BLOCK_A_RANK:
            return self.ranks
        return self.ranks**2 if self.collective == "AllToAll" else 1

    @property
    def per_block(self) -> int:
        return self.chunks // self.blocks

    @property
    def reducing(self) -> bool:
        return self.collective in REDUCING

    def owner(self, chunk: Integers) -> Integers:
        """Return the rank that each chunk comes from; -1 where all contribute."""
        if self.reducing:
            return np.full_like(chunk, -1)
        if self.collective in ("Broadcast", "Scatter"):
            return np.full_like(chunk, self.root)
        block = chunk // self.per_block
        return block // self.ranks if self.collective == "AllToAll" else block

    def target(self, chunk: Integers) -> Integers:
        """Return the rank whose output each chunk belongs to; -1 where it belongs to all."""
        if self.collective in ("Reduce", "Gather"):
            return np.full_like(chunk, self.root)
        if self.collective in ("ReduceScatter", "Scatter"):
            return chunk // self.per_block
        if self.collective == "AllToAll":
            return chunk // self.per_block % self.ranks
        return np.full_like(chunk, -1)

    def holds_at_first(self, rank: Integers, chunk: Integers) -> NDArray[np.bool_]:
        """Return whether each rank holds the chunk beside it before anything moves."""
        owner = self.owner(chunk)
        return np.asarray((owner < 0) | (owner == rank))
