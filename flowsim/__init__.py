"""Fluid network simulation: flows that share links, tasks that occupy executors, and what waits for what.

A flow moves its bytes over all links of its path at once, at a rate that follows from who else is there: strict
priority between classes, weighted max-min fairness inside one. Time jumps from event to event, so a run costs by the
number of flows, not by the number of bytes.

    net = flowsim.Network()
    link, gpu = net.add_link(100e9), net.add_executor()
    compute = net.add(flowsim.Task(2e-3, executor=gpu))
    send = net.add(flowsim.Flow([link], 1e9, after=[compute]))
    result = net.run()
    result.finish[send], result.link_utilisation[link]

Where the next step depends on the last one, `net.live()` gives flows that are started, and given other priorities, one
event after the other. `flowsim.topology` builds stars, fat trees and clusters of GPU servers.
"""

from __future__ import annotations

from flowsim.live import Live
from flowsim.network import Flow, Network, Task
from flowsim.result import Result, Timeline
from flowsim.topology import Cluster, FatTree, Star, cluster, fat_tree, star

__all__ = [
    "Cluster",
    "FatTree",
    "Flow",
    "Live",
    "Network",
    "Result",
    "Star",
    "Task",
    "Timeline",
    "cluster",
    "fat_tree",
    "star",
]
