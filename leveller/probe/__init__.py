"""Which links a flow crosses."""

from leveller.probe.topology import Paths, TopologyFile

__all__ = ["Paths", "TopologyFile"]
