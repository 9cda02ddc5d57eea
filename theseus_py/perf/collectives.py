"""The shape of each collective: how many elements go in and out, where they lie in place, what bandwidth counts. Pure.

Sizes follow nccl-tests: the size of a row is that of the larger of the two buffers of a rank.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Elements of one call on one rank of `ranks`. `count` is the argument that NCCL's function takes."""

    count: int
    send: int
    receive: int
    # Where, in elements, the other buffer starts when both are one; None: the collective has no in-place form.
    send_offset: int | None = 0
    receive_offset: int | None = 0

    @property
    def largest(self) -> int:
        return max(self.send, self.receive)


@dataclass(frozen=True)
class CollectiveKind:
    """What tells one collective from another in a sweep."""

    name: str
    title: str  # as nccl-tests prints it
    reduces: bool = False
    rooted: bool = False
    in_place: bool = True

    def shape(self, elements: int, ranks: int, rank: int) -> Shape:
        """For a row of `elements` elements. Buffers exist on every rank, root or not, as in nccl-tests."""
        share = elements // ranks
        if self.name in ("all_gather", "gather"):
            return Shape(share, share, share * ranks, send_offset=share * rank)
        if self.name in ("reduce_scatter", "scatter"):
            return Shape(share, share * ranks, share, receive_offset=share * rank)
        if self.name == "alltoall":
            return Shape(share, share * ranks, share * ranks, None, None)
        if self.name == "sendrecv":
            return Shape(elements, elements, elements, None, None)
        if self.name == "barrier":
            return Shape(0, 0, 0)
        return Shape(elements, elements, elements)

    def bus_factor(self, ranks: int) -> float:
        """Bus bandwidth over algorithm bandwidth: the share of the data that has to cross a rank's link."""
        if self.name == "all_reduce":
            return 2 * (ranks - 1) / ranks
        if self.name in ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter"):
            return (ranks - 1) / ranks
        return 1.0


COLLECTIVES = {
    kind.name: kind
    for kind in (
        CollectiveKind("all_reduce", "AllReduce", reduces=True),
        CollectiveKind("all_gather", "AllGather"),
        CollectiveKind("reduce_scatter", "ReduceScatter", reduces=True),
        CollectiveKind("broadcast", "Broadcast", rooted=True),
        CollectiveKind("reduce", "Reduce", reduces=True, rooted=True),
        CollectiveKind("alltoall", "AlltoAll", in_place=False),
        CollectiveKind("gather", "Gather", rooted=True),
        CollectiveKind("scatter", "Scatter", rooted=True),
        CollectiveKind("sendrecv", "SendRecv", in_place=False),
        CollectiveKind("barrier", "Barrier", in_place=False),
    )
}
