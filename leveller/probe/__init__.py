"""Which links a flow crosses."""

from leveller.probe.prober import ProbedPaths
from leveller.probe.search import Limits
from leveller.probe.topology import Paths, TopologyFile

__all__ = ["Limits", "Paths", "ProbedPaths", "TopologyFile"]
