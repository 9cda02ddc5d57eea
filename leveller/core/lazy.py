"""Levels that change now and then: re-ranking at every event costs more than it brings (paper section 3.2)."""

from __future__ import annotations

from leveller.core.model import ClusterView, LevelPolicy, Levels

__all__ = ["Lazy"]


class Lazy:
    """Asks `policy` once in `period` seconds, and keeps its levels in between. A job loses at most a period by that
    (Corollary 1).

    At once asks who sees another set of flows, or of profiled jobs: new flows have no level to keep.
    """

    def __init__(self, policy: LevelPolicy, period: float) -> None:
        if not period >= 0:
            raise ValueError(f"a period is not below 0 seconds: {period:g}")
        self._policy = policy
        self._period = period
        self._asked: float | None = None
        self._seen: object = None
        self._levels = Levels(1, {})

    @property
    def name(self) -> str:
        """As the policy's."""
        return self._policy.name

    def levels(self, view: ClusterView) -> Levels:
        """Returns the kept levels, or new ones where it is time."""
        seen = (
            frozenset((flow.id, flow.path) for flow in view.flows),
            frozenset(job.id for job in view.jobs.values() if job.profiling),
        )
        if self._asked is None or view.now >= self._asked + self._period or seen != self._seen:
            self._levels = self._policy.levels(view)
            self._asked, self._seen = view.now, seen
        return self._levels
