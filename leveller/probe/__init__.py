"""Which links a flow crosses."""

from leveller.probe.paths import PathProbe, ProbeRefused
from leveller.probe.search import Limits
from leveller.probe.topology import Paths, TopologyFile

__all__ = ["Limits", "PathProbe", "Paths", "ProbeRefused", "TopologyFile"]
