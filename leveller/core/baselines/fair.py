"""Flow-fair sharing: what TCP and DCQCN do when nobody intervenes."""

from __future__ import annotations

from leveller.core.model import ClusterView, Levels

__all__ = ["FairShare"]


class FairShare:
    """One level for all; profiled jobs are not profiled, as nothing depends on it."""

    name = "fair"

    def levels(self, view: ClusterView) -> Levels:
        """Returns level 0 for every flow."""
        return Levels(1, {flow.id: 0 for flow in view.flows})
