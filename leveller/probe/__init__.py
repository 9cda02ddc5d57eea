"""Which links a flow crosses."""

from leveller.probe.prober import ProbedPaths
from leveller.probe.topology import Paths, TopologyFile

__all__ = ["Paths", "ProbedPaths", "TopologyFile"]
