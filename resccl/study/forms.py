"""Equations 3 to 5 for an algorithm: its busiest link, the tasks on it and their bubbles, put into cost.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resccl.compiler import analyse
from resccl.lang import Algorithm
from resccl.study import cost
from resccl.study.hardware import Hardware, messages_of
from resccl.study.schedule import Graph, link_loads, seconds_of, timeline
from resccl.topology import Topology

_MANY = 64


@dataclass(frozen=True)
class Times:
    """T_A, T_S and T_P in seconds (ResCCL, section 3)."""

    algorithm: float
    stage: float
    task: float


def closed_forms(
    algorithm: Algorithm, topology: Topology, size: float, hardware: Hardware | None = None, *, fold: bool = False
) -> Times:
    """Return the three times of a buffer of `size` bytes, by formula alone.

    Links are those of the compiler: pairs of ranks, and NICs each way; so what GPUs share inside a host is not seen.
    The bubbles are those of one micro-batch whose tasks have their links to themselves, level by level for T_A, in
    HPDS's order for T_P. T_S: each stage alone, z_k of it the number of stages that use the link.
    """
    costs = hardware or Hardware()
    message = messages_of(size, algorithm.chunks, costs)
    n = message.micro_batches
    levels = analyse(algorithm, topology, scheduling="algorithm_level", fold=fold)
    graph = Graph.of(levels)
    seconds = seconds_of(graph, costs, message.size)
    link = _busiest(link_loads(graph, seconds))
    order = levels.order.tolist()
    tasks, bubbles = _on_link(graph, order, seconds, link)
    whole = cost.algorithm_level(n, tasks, bubbles) + n * costs.barrier
    own = analyse(algorithm, topology, fold=fold).order.tolist()
    return Times(
        whole, _stages(graph, order, levels.stage, seconds, n, costs), _task_level(graph, own, seconds, n, link)
    )


def _busiest(loads: dict[int, float]) -> int:
    return max(loads, key=lambda link: (loads[link], -link))


def _on_link(
    graph: Graph, order: Sequence[int], seconds: NDArray[np.float64], link: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the tasks of a link in one micro-batch and the bubble before each; a last one of no time ends it all."""
    start, end = timeline(graph, order, seconds)
    mine = [task for task in order if link in graph.links[task]]
    before = np.concatenate([[0.0], end[mine]])
    after = np.concatenate([start[mine], [np.nanmax(end)]])
    return np.concatenate([seconds[mine], [0.0]]), np.maximum(after - before, 0.0)


def _stages(
    graph: Graph, order: Sequence[int], stage: NDArray[np.int32], seconds: NDArray[np.float64], n: int, costs: Hardware
) -> float:
    """Return T_S: the busiest link of each stage, beside the other stages that use it."""
    inside = {k: [t for t in order if stage[t] == k] for k in range(int(stage.max()) + 1)}
    users: dict[int, int] = {}
    loads: dict[int, dict[int, float]] = {}
    for k, tasks in inside.items():
        loads[k] = {}
        for task in tasks:
            for link in graph.links[task]:
                loads[k][link] = loads[k].get(link, 0.0) + float(seconds[task])
        for link in loads[k]:
            users[link] = users.get(link, 0) + 1
    slowest = 0.0
    for k, tasks in inside.items():
        link = max(loads[k], key=lambda each: (users[each] * loads[k][each], -each))
        mine = seconds[[t for t in tasks if link in graph.links[t]]]
        between = bool(graph.between_hosts[next(t for t in tasks if link in graph.links[t])])
        gamma = (costs.contention if between else costs.local_contention) * float(mine.max())
        slowest = max(slowest, cost.stage_level(n, [cost.Stage(mine, z=users[link])], gamma))
    return slowest


def _task_level(graph: Graph, order: Sequence[int], seconds: NDArray[np.float64], n: int, link: int) -> float:
    """Return T_P. What n micro-batches take grows evenly where n is large: by the tasks of the link and what bubbles
    are left; the rest is t_Load.
    """
    fewer, more = (float(timeline(graph, order, seconds, each)[1].max()) for each in (_MANY, 2 * _MANY))
    tasks = seconds[[task for task in order if link in graph.links[task]]]
    left = max(0.0, (more - fewer) / _MANY - float(tasks.sum()))
    load = max(0.0, fewer - _MANY * (float(tasks.sum()) + left))
    return cost.task_level(n, tasks, [left], load)
