"""Which flows meet: the contention graph, kept by links (paper section 4.2).

Two flows of different jobs contend where they share a link. The graph itself may have an edge for each pair; its
connected parts follow from the links alone, in time that grows with the sum of the paths' lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from leveller.core.model import Flow

__all__ = ["Contention", "links_of"]

#: What flows share whose paths nobody knows: each may meet each other one.
UNKNOWN = "?"


def links_of(flow: Flow) -> tuple[str, ...]:
    """Returns the links that a flow crosses; for one whose path is not known, the link of all such flows."""
    return flow.path or (UNKNOWN,)


class Contention:
    """The flows of a view by the links they cross. Flows are named by their place in the view."""

    def __init__(self, flows: Sequence[Flow], ranks: Mapping[str, int]) -> None:
        """`ranks`: of each job, a number of its own."""
        numbers: dict[str, int] = {}
        of_flow: list[int] = []
        of_link: list[int] = []
        for place, flow in enumerate(flows):
            for link in links_of(flow):
                of_flow.append(place)
                of_link.append(numbers.setdefault(link, len(numbers)))
        self.flows = len(flows)
        self.rank = np.array([ranks[flow.job] for flow in flows], dtype=np.int64)
        self._links = len(numbers)
        self._flow = np.array(of_flow, dtype=np.int64)
        self._link = np.array(of_link, dtype=np.int64)

    def parts(self, present: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Returns for each flow a number that is equal for the flows of one connected part, shape (flows,).

        `present` says which flows are there. A flow that meets no other job is a part of its own.
        """
        flow, link = self._meeting(present)
        labels = np.arange(self.flows)
        while True:
            lowest = np.full(self._links, self.flows)
            np.minimum.at(lowest, link, labels[flow])
            found = labels.copy()
            np.minimum.at(found, flow, lowest[link])
            found = found[found]  # a label is a flow of the part, whose own label may be lower already
            if np.array_equal(found, labels):
                return labels
            labels = found

    def _meeting(self, present: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The crossings of flows that are there and links on which several jobs meet."""
        keep = present[self._flow]
        flow, link = self._flow[keep], self._link[keep]
        lowest, highest = np.full(self._links, np.iinfo(np.int64).max), np.full(self._links, -1)
        np.minimum.at(lowest, link, self.rank[flow])
        np.maximum.at(highest, link, self.rank[flow])
        shared = (lowest < highest)[link]
        return flow[shared], link[shared]
