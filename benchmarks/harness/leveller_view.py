"""A seeded cluster for measuring policies: jobs whose flows cross a fat-tree."""

from __future__ import annotations

import itertools
from random import Random

from leveller.core.model import ClusterView, Flow, JobView

__all__ = ["fat_tree_view"]


def fat_tree_view(jobs: int = 1000, flows: int = 20_000, arity: int = 16, seed: int = 0) -> ClusterView:
    """Rings of random hosts of a fat-tree of `arity`-port switches, ECMP by chance; every job has a rate and times."""
    random = Random(seed)
    half = arity // 2
    hosts = arity * half * half
    views: dict[str, JobView] = {}
    made: list[Flow] = []
    for number in range(jobs):
        name = f"job{number:05}"
        size = max(2, flows // jobs + (number < flows % jobs))
        compute, communicate = random.uniform(0.1, 2.0), random.uniform(0.1, 2.0)
        views[name] = JobView(
            name, random.random(), 1.0, compute + communicate, compute, communicate, random.choice((8, 64, 512))
        )
        members = [random.randrange(hosts) for _ in range(size)]
        for at in range(size):
            source, target = members[at], members[(at + 1) % size]
            if source == target:
                target = (target + 1) % hosts
            made.append(Flow((name, at), name, _path(source, target, half, random)))
    return ClusterView(0.0, views, made)


def _path(source: int, target: int, half: int, random: Random) -> tuple[str, ...]:
    edge, far_edge = source // half, target // half
    pod, far_pod = edge // half, far_edge // half
    up, core = random.randrange(half), random.randrange(half)
    nodes = [f"host{source}", f"edge{edge}"]
    if edge != far_edge:
        nodes.append(f"aggregate{pod}.{up}")
        if pod != far_pod:
            nodes += [f"core{up}.{core}", f"aggregate{far_pod}.{up}"]
        nodes.append(f"edge{far_edge}")
    nodes.append(f"host{target}")
    return tuple(f"{a}>{b}" for a, b in itertools.pairwise(nodes))
