"""Thread blocks per rank, as the paper's Table 3 has them: MSCCL's allocation next to ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from resccl import synth
from resccl.compiler import compile
from resccl.examples import hm
from resccl.lang import Algorithm
from resccl.plan import Plan
from resccl.topology import Topology

SHAPES = ((2, 4), (2, 8), (4, 4), (4, 8))
"""Hosts and GPUs of a host: the paper's Topo1 to Topo4."""
SIZE = 128 << 20
"""Bytes of the collective whose idle shares are simulated."""
ALGORITHMS: dict[str, Callable[[int, int, int], Algorithm]] = {
    "expert AllReduce": hm.all_reduce,
    "expert AllGather": hm.all_gather,
    "synthesised AllReduce": synth.all_reduce,
    "synthesised AllGather": synth.all_gather,
}
"""Each takes hosts, GPUs of a host, and rails."""


def rails_of(gpus: int) -> int:
    """Return how many NICs a host of the paper has: one for two GPUs."""
    return max(gpus // 2, 1)


@dataclass(frozen=True)
class Count:
    """The most TBs that a rank has. `idle` is the share of their lifetime spent waiting; None: not simulated."""

    thread_blocks: int
    idle: float | None = None

    def __str__(self) -> str:
        return str(self.thread_blocks) if self.idle is None else f"{self.thread_blocks} · {self.idle:.1%}"


def count_msccl(algorithm: Algorithm, topology: Topology, idle: bool = False) -> Count:
    """MSCCL's allocation: a TB for each connection and stage, and no instruction that receives from several."""
    plan = compile(
        algorithm, topology, scheduling="stage_level", allocation="per_connection_and_stage", fold=False, verify=False
    )
    return _counted(plan, topology, idle)


def count_resccl(algorithm: Algorithm, topology: Topology, idle: bool = False) -> Count:
    """HPDS and state-based allocation as the paper has them (sections 3.2 and 3.3), a TB repeating its primitive."""
    return _counted(compile(algorithm, topology, loop="sub_pipelines", fold=False, verify=False), topology, idle)


def count_ours(algorithm: Algorithm, topology: Topology, idle: bool = False) -> Count:
    """Our scheduling, and one instruction for all that is reduced in a step; proven."""
    plan = compile(algorithm, topology, scheduling="hpds_improved", loop="sub_pipelines")
    return _counted(plan, topology, idle)


COUNTS: dict[str, Callable[[Algorithm, Topology, bool], Count]] = {
    "MSCCL": count_msccl,
    "ResCCL": count_resccl,
    "ours": count_ours,
}


def _counted(plan: Plan, topology: Topology, idle: bool) -> Count:
    if not idle:
        return Count(plan.thread_blocks)
    from resccl.study import idle_shares

    return Count(plan.thread_blocks, float(idle_shares(plan, topology, SIZE).mean()))
