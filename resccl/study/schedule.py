"""Sub-pipelines in plain Python: the paper's HPDS, one that goes by critical paths, and what an order of tasks costs.

For studies of small graphs; what plans are compiled with is csrc/compiler. A `TaskGraph` is what `resccl.analyse`
returns, or anything that has its arrays.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from resccl.compiler import Analysis, analyse
from resccl.lang import Algorithm
from resccl.study.hardware import Hardware
from resccl.topology import Topology

Priority = Literal["paper", "critical", "best"]


class TaskGraph(Protocol):
    """Tasks 0 to tasks - 1, numbered so that none depends on a later one, and the chunk of each."""

    @property
    def tasks(self) -> int: ...
    @property
    def between_hosts(self) -> NDArray[np.bool_]: ...
    def predecessors_of(self, task: int) -> NDArray[np.int32]: ...
    def links_of(self, task: int) -> NDArray[np.int32]: ...
    def chunk_of(self, task: int) -> int: ...


@dataclass(frozen=True)
class Graph:
    """A task graph of one's own: each task's chunk, what it depends on, its links, and if it leaves a host."""

    chunks: Sequence[int]
    predecessors: Sequence[Sequence[int]]
    links: Sequence[Sequence[int]]
    leaves_host: Sequence[bool] | None = None

    @property
    def tasks(self) -> int:
        return len(self.chunks)

    @property
    def between_hosts(self) -> NDArray[np.bool_]:
        return np.array(self.leaves_host if self.leaves_host is not None else [False] * self.tasks, dtype=np.bool_)

    def predecessors_of(self, task: int) -> NDArray[np.int32]:
        return np.array(self.predecessors[task], dtype=np.int32)

    def links_of(self, task: int) -> NDArray[np.int32]:
        return np.array(self.links[task], dtype=np.int32)

    def chunk_of(self, task: int) -> int:
        return self.chunks[task]

    @classmethod
    def of(cls, analysis: Analysis) -> Graph:
        """Return the tasks of an algorithm."""
        every = range(analysis.tasks)
        return cls(
            [int(analysis.transfers[analysis.first_transfer[t], 3]) for t in every],
            [analysis.predecessors_of(t).tolist() for t in every],
            [analysis.links_of(t).tolist() for t in every],
            analysis.between_hosts.tolist(),
        )


@dataclass(frozen=True)
class Pipeline:
    """`sub_pipeline[t]` of task t, and `order`: all tasks, along which sub-pipelines never fall."""

    sub_pipeline: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def count(self) -> int:
        return max(self.sub_pipeline, default=-1) + 1


def seconds_of(graph: TaskGraph, hardware: Hardware, size: float | None = None) -> NDArray[np.float64]:
    """Return alpha + c beta of each task, shape (tasks,), for messages of `size` bytes (hardware.chunk)."""
    c = float(hardware.chunk if size is None else size)
    inside, between = hardware.message_time(c, False), hardware.message_time(c, True)
    return np.where(graph.between_hosts, between, inside)


def schedule(
    graph: TaskGraph, priority: Priority = "paper", seconds: NDArray[np.float64] | None = None, n: int = 1
) -> Pipeline:
    """Return sub-pipelines in which no link has two tasks.

    "paper": HPDS (ResCCL, section 3.2). Chunks less used first; a task may join the sub-pipeline of what it depends on,
    unless it stays inside a host and that one leaves it. So the first chunk takes a whole chain of links, one after the
    other, and whoever needs one of them waits, however long the way still before it.
    "critical": list scheduling in time, for n micro-batches. A link that falls idle takes, of the tasks that could
    start, the one with the longest way still before it, by `seconds` (shape (tasks,), default 1 each). A sub-pipeline
    comes after those of what its tasks depend on and of what their links did before.
    "best": of "paper" and "critical", for 1 and for n micro-batches, the one with the least makespan for n.
    """
    lengths = np.ones(graph.tasks) if seconds is None else seconds
    if priority == "paper":
        return _Hpds(graph).run()
    if priority == "critical":
        return _by_critical_path(graph, lengths, n)
    if priority == "best":
        found = [_Hpds(graph).run(), *(_by_critical_path(graph, lengths, each) for each in sorted({1, n}))]
        return min(found, key=lambda pipeline: makespan(graph, pipeline.order, lengths, n))
    raise ValueError(f"there is no priority '{priority}'; there are paper, critical and best")


def longest_ways(graph: TaskGraph, seconds: NDArray[np.float64], n: int = 1) -> NDArray[np.float64]:
    """Return, for each task, the seconds from its start to the end of all that depends on it, shape (tasks,).

    Each task goes on for n micro-batches, and what depends on it follows one behind.
    """
    ways = n * np.array(seconds, dtype=np.float64)
    for task in range(graph.tasks - 1, -1, -1):
        for before in graph.predecessors_of(task).tolist():
            ways[before] = max(ways[before], seconds[before] + ways[task])
    return ways


def _successors(graph: TaskGraph) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(graph.tasks)]
    for task in range(graph.tasks):
        for before in graph.predecessors_of(task).tolist():
            found[before].append(task)
    return found


def _by_critical_path(graph: TaskGraph, seconds: NDArray[np.float64], n: int) -> Pipeline:
    """Go from instant to instant; at each, start what can start, longest way first."""
    ways, successors = longest_ways(graph, seconds, n), _successors(graph)
    links = [graph.links_of(task).tolist() for task in range(graph.tasks)]
    pending = [len(graph.predecessors_of(task)) for task in range(graph.tasks)]
    place = [0] * graph.tasks
    start = [0.0] * graph.tasks
    least_end = [0.0] * graph.tasks  # one micro-batch behind what it depends on
    free: dict[int, tuple[float, int]] = {}  # when a link is idle again, and the sub-pipeline that it may join then
    turns = [(0.0, -float(ways[task]), task) for task in range(graph.tasks) if pending[task] == 0]
    heapq.heapify(turns)
    while turns:
        now, way, task = heapq.heappop(turns)
        idle_at = max([now, *(free[link][0] for link in links[task] if link in free)])
        if idle_at > now:  # a link was taken since: it has its turn again when that is idle
            heapq.heappush(turns, (idle_at, way, task))
            continue
        start[task] = now
        place[task] = max([place[task], *(free[link][1] for link in links[task] if link in free)])
        own = float(seconds[task])
        end = max(now + n * own, least_end[task])
        free.update((link, (end, place[task] + 1)) for link in links[task])
        for after in successors[task]:
            place[after] = max(place[after], place[task] + 1)
            start[after] = max(start[after], now + own)
            least_end[after] = max(least_end[after], end + float(seconds[after]))
            pending[after] -= 1
            if pending[after] == 0:
                heapq.heappush(turns, (start[after], -float(ways[after]), after))
    if any(pending):
        raise ValueError("the dependencies of the tasks form a cycle")
    order = sorted(range(graph.tasks), key=lambda task: (place[task], start[task], task))
    return Pipeline(tuple(place), tuple(order))


class _Hpds:
    def __init__(self, graph: TaskGraph) -> None:
        tasks = range(graph.tasks)
        self.links = [graph.links_of(t).tolist() for t in tasks]
        self.chunk = [graph.chunk_of(t) for t in tasks]
        self.leaves_host: list[bool] = graph.between_hosts.tolist()
        self.use: dict[int, int] = {}
        self.pending = [len(graph.predecessors_of(t)) for t in tasks]
        self.successors = _successors(graph)
        self.sub_pipeline = [-1] * graph.tasks
        self.order: list[int] = []

    def run(self) -> Pipeline:
        ready = [task for task, pending in enumerate(self.pending) if pending == 0]
        now = 0
        while ready:
            ready = self._fill(ready, now)
            now += 1
        if len(self.order) < len(self.pending):
            raise ValueError("the dependencies of the tasks form a cycle")
        return Pipeline(tuple(self.sub_pipeline), tuple(self.order))

    def _key(self, task: int) -> tuple[int, int]:
        return self.use.get(self.chunk[task], 0), task

    def _fill(self, ready: list[int], now: int) -> list[int]:
        """Fill a sub-pipeline from what is ready, and return what is ready for the next one."""
        turns = [self._key(task) for task in ready]
        heapq.heapify(turns)
        busy: set[int] = set()
        later: list[int] = []
        used: set[int] = set()
        barred: set[int] = set()
        while turns:
            _, task = heapq.heappop(turns)
            if not busy.isdisjoint(self.links[task]):
                later.append(task)
                continue
            busy.update(self.links[task])
            used.add(self.chunk[task])
            self.sub_pipeline[task] = now
            self.order.append(task)
            for after in self.successors[task]:
                if self.leaves_host[task] and not self.leaves_host[after]:
                    barred.add(after)
                self.pending[after] -= 1
                if self.pending[after] > 0:
                    continue
                if after in barred:
                    later.append(after)
                else:
                    heapq.heappush(turns, self._key(after))
        for chunk in used:
            self.use[chunk] = self.use.get(chunk, 0) + 1
        return later


def timeline(
    graph: TaskGraph, order: Sequence[int], seconds: NDArray[np.float64], n: int = 1
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return start and end of each task for n micro-batches, each link serving its tasks in `order`.

    A task has its links to itself from its first micro-batch to its last, and follows what it depends on one
    micro-batch behind (ResCCL, section 3.2: task level). ValueError: `order` puts a task before what it depends on.
    """
    if n < 1:
        raise ValueError(f"there is at least one micro-batch, not {n}")
    start, end = np.full(graph.tasks, np.nan), np.full(graph.tasks, np.nan)
    free: dict[int, float] = {}
    for task in order:
        before = graph.predecessors_of(task).tolist()
        if any(np.isnan(end[p]) for p in before):
            raise ValueError(f"task {task} comes before one that it depends on")
        links, own = graph.links_of(task).tolist(), float(seconds[task])
        start[task] = max(
            [0.0, *(free.get(link, 0.0) for link in links), *(float(start[p] + seconds[p]) for p in before)]
        )
        end[task] = max([float(start[task]) + n * own, *(float(end[p]) + own for p in before)])
        free.update((link, float(end[task])) for link in links)
    return start, end


def makespan(graph: TaskGraph, order: Sequence[int], seconds: NDArray[np.float64], n: int = 1) -> float:
    """Return when the last task ends; see `timeline`."""
    return float(timeline(graph, order, seconds, n)[1].max()) if graph.tasks else 0.0


def link_loads(graph: TaskGraph, seconds: NDArray[np.float64]) -> dict[int, float]:
    """Return the seconds that each link is needed for in one micro-batch: no schedule is faster than the largest."""
    loads: dict[int, float] = {}
    for task in range(graph.tasks):
        for link in graph.links_of(task).tolist():
            loads[link] = loads.get(link, 0.0) + float(seconds[task])
    return loads


def improved_algorithm(algorithm: Algorithm, topology: Topology, hardware: Hardware, n: int = 1) -> Algorithm | None:
    """Return the algorithm with the sub-pipelines of the priority "best" for n micro-batches as its steps.

    Compiled with scheduling="algorithm_level" and fold=False it then goes in just these. None where the paper's are
    the best: a sub-pipeline of them may hold a task and what depends on it, which no step can.
    """
    analysis = analyse(algorithm, topology, fold=False)
    graph = Graph.of(analysis)
    pipeline = schedule(graph, "best", seconds_of(graph, hardware), n)
    if pipeline == schedule(graph, "paper"):
        return None
    rows = analysis.transfers.copy()
    rows[:, 2] = np.repeat(np.array(pipeline.sub_pipeline, dtype=np.int32), np.diff(analysis.first_transfer))
    fields: dict[str, Any] = {**algorithm.to_dict(), "transfers": rows}
    return Algorithm.from_dict(fields)
