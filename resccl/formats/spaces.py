"""Where the chunks of a collective lie in each rank's buffers: csrc/schedule/places.h for Python."""

from __future__ import annotations

from dataclasses import dataclass

from resccl.collectives import REDUCING, ROOTED

Place = tuple[str, int]
"""(buffer, index): buffer is "input", "output" or "scratch"."""


@dataclass(frozen=True)
class Space:
    """The data space of a collective whose blocks are cut into `pieces` chunks (Plan::chunks_per_block)."""

    collective: str
    ranks: int
    root: int
    pieces: int

    @property
    def chunks(self) -> int:
        """Number of chunks of the whole space."""
        if self.collective == "AllToAll":
            return self.ranks * self.ranks * self.pieces
        wide = self.collective in ("AllGather", "Gather", "ReduceScatter", "Scatter")
        return (self.ranks if wide else 1) * self.pieces

    def _blocks(self, many: bool, only_root: bool, rank: int) -> int:
        if only_root and rank != self.root:
            return 0
        return (self.ranks if many else 1) * self.pieces

    def inputs(self, rank: int) -> int:
        """Chunks of `rank`'s input."""
        many = self.collective in ("ReduceScatter", "Scatter", "AllToAll")
        return self._blocks(many, self.collective in ("Broadcast", "Scatter"), rank)

    def outputs(self, rank: int) -> int:
        """Chunks of `rank`'s output."""
        many = self.collective in ("AllGather", "Gather", "AllToAll")
        return self._blocks(many, self.collective in ("Reduce", "Gather"), rank)

    def chunk_at(self, rank: int, place: Place) -> int:
        """Which chunk lies at `place` (input or output) of `rank`."""
        buffer, index = place
        if self.collective in ("AllGather", "Gather"):
            return rank * self.pieces + index if buffer == "input" else index
        if self.collective in ("ReduceScatter", "Scatter"):
            return index if buffer == "input" else rank * self.pieces + index
        if self.collective == "AllToAll":
            block, piece = divmod(index, self.pieces)
            pair = rank * self.ranks + block if buffer == "input" else block * self.ranks + rank
            return pair * self.pieces + piece
        return index

    def contributors(self, chunk: int) -> int:
        """Bit mask of the ranks whose contribution the finished chunk holds."""
        if self.collective in REDUCING:
            return (1 << self.ranks) - 1
        if self.collective in ROOTED and self.collective != "Gather":
            return 1 << self.root
        block = chunk // self.pieces
        return 1 << (block // self.ranks if self.collective == "AllToAll" else block)

    def output_twin(self, rank: int, index: int) -> int | None:
        """The output index that is the same memory as input `index` when called in place; None if there is none."""
        twin = index
        if self.collective in ("AllGather", "Gather"):
            twin = rank * self.pieces + index
        elif self.collective in ("ReduceScatter", "Scatter"):
            twin = index - rank * self.pieces
        return twin if 0 <= twin < self.outputs(rank) else None

    def canonical(self, rank: int, place: Place) -> Place:
        """One name for both names that a place has in place; AllToAll has no such form."""
        if place[0] != "input" or self.collective == "AllToAll":
            return place
        twin = self.output_twin(rank, place[1])
        return place if twin is None else ("output", twin)


def too_many_chunks(space: Space, accesses: int) -> bool:
    """Whether so few reads and writes of chunks cannot possibly have to do with all chunks of the buffers.

    A right schedule reads each input chunk and writes each output chunk somewhere, except each rank's own part; so a
    small file with a large number in it is found out before anything of that size is made.
    """
    cells = sum(space.inputs(r) + space.outputs(r) for r in range(space.ranks))
    return cells > 4 * accesses + (1 << 16)


def pieces_for(collective: str, ranks: int, chunks: int) -> int | None:
    """Pieces a block where `chunks` is what a loop covers (MSCCL's nchunksperloop); None where they do not divide."""
    wide = collective in ("AllGather", "Gather", "ReduceScatter", "Scatter", "AllToAll")
    blocks = ranks if wide else 1
    return chunks // blocks if chunks > 0 and chunks % blocks == 0 else None
