"""Lowest progress rate first, in K levels by pruning the contention graph (paper section 4.2, Figures 6 and 7)."""

from __future__ import annotations

import numpy as np

from leveller.core.contention import Contention
from leveller.core.model import ClusterView, JobView, Levels

__all__ = ["LowestRateFirst", "order_of", "prune"]


def order_of(view: ClusterView) -> list[str]:
    """Returns the jobs that have flows, the first to be served first.

    A job that is profiled comes before all others. Then counts the rate over the weight; one that is not known counts
    as 0, so that a job is not held back before it can be told how it does. Ties go by name.
    """

    def place(name: str) -> tuple[bool, float, str]:
        job = view.jobs.get(name) or JobView(name)
        return not job.profiling, (job.rate or 0.0) / job.weight, name

    return sorted({flow.job for flow in view.flows}, key=place)


def prune(view: ClusterView, order: list[str], count: int) -> Levels:
    """Returns `count` levels for jobs served in `order`.

    In each connected part of the contention graph the flows of the first job take the highest level that is left and
    leave the graph, which may fall into more parts; when one level is left, all that remain take it. So flows that
    never meet do not use up each other's levels, and a profiled job is alone at the top wherever it meets others.
    """
    if count < 1:
        raise ValueError(f"there is at least 1 level, not {count}")
    ranks = {job: rank for rank, job in enumerate(order)}
    contention = Contention(view.flows, ranks)
    level = np.zeros(contention.flows, dtype=np.int64)
    present = np.ones(contention.flows, dtype=np.bool_)
    for highest in range(count - 1, 0, -1):
        if not present.any():
            break
        part = contention.parts(present)
        first = np.full(contention.flows, len(order))
        np.minimum.at(first, part[present], contention.rank[present])
        taken = present & (contention.rank == first[part])
        level[taken] = highest
        present &= ~taken
    return Levels(count, {flow.id: int(each) for flow, each in zip(view.flows, level, strict=True)})


class LowestRateFirst:
    """LEVELLER's policy: strict priority to the job that is furthest behind. At least half of the best (Theorem 1)."""

    name = "lowest-rate-first"

    def __init__(self, levels: int = 6) -> None:
        if levels < 1:
            raise ValueError(f"there is at least 1 level, not {levels}")
        self._levels = levels

    def levels(self, view: ClusterView) -> Levels:
        """Returns levels by the rates of `view` alone."""
        return prune(view, order_of(view), self._levels)
