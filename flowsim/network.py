"""Networks: links, executors, and the flows and tasks on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowsim import _core
from flowsim.live import Live
from flowsim.result import Result, Timeline

#: Rows of ids, one an activity: a sequence of sequences, or an array of shape (activities, most) padded with -1.
Rows = Sequence[Sequence[int]] | NDArray[np.integer]


@dataclass(frozen=True)
class Flow:
    """Moves `size` bytes over all links of `path` at once.

    path: link ids, each once; empty for a flow that takes its latency only
    priority: 0 (first) to 255. A flow gets what flows of lower numbers leave
    weight: its share among flows of its priority, above 0
    start: not before, in seconds
    latency: seconds between its start and its first byte
    after: ids of activities that must have finished
    """

    path: Sequence[int]
    size: float
    priority: int = 0
    weight: float = 1.0
    start: float = 0.0
    latency: float = 0.0
    after: Sequence[int] = ()


@dataclass(frozen=True)
class Task:
    """Holds an executor for `duration` seconds; without an executor it runs beside any others.

    Of the tasks that could start, an executor takes the lowest `priority`, then the one that has been ready for
    longest, then the lowest id. `start` and `after` are as for flows.
    """

    duration: float
    executor: int | None = None
    priority: int = 0
    start: float = 0.0
    after: Sequence[int] = ()


class Network:
    """Links, executors and activities (flows and tasks), each known by the number that adding it returned.

    Every method raises ValueError naming the thing at fault, and then adds nothing.
    """

    def __init__(self) -> None:
        self._core = _core.Network()

    @property
    def links(self) -> int:
        """The number of links."""
        return self._core.links

    @property
    def executors(self) -> int:
        """The number of executors."""
        return self._core.executors

    @property
    def activities(self) -> int:
        """The number of flows and tasks; their ids count from 0 in the order of adding."""
        return self._core.activities

    def add_link(self, capacity: float, contention: float = 0.0) -> int:
        """Add a link of `capacity` bytes a second and return its id.

        With n flows on it the link is worth capacity / (1 + contention * (n - 1)): what sharing costs, ResCCL's
        gamma L(z) (section 3). A flow counts while it has bytes left, whatever its rate.
        """
        return self._core.add_link(capacity, contention)

    def add_links(self, count: int, capacity: float, contention: float = 0.0) -> NDArray[np.int32]:
        """Add `count` equal links and return their ids, shape (count,)."""
        return np.array([self._core.add_link(capacity, contention) for _ in range(count)], dtype=np.int32)

    def add_executor(self) -> int:
        """Add an executor, which runs one task at a time, and return its id."""
        return self._core.add_executor()

    def add(self, activity: Flow | Task) -> int:
        """Add a flow or a task and return its id. What it comes after must have been added."""
        if isinstance(activity, Flow):
            return self._core.add_flow(
                activity.path,
                activity.size,
                activity.priority,
                activity.weight,
                activity.start,
                activity.latency,
                activity.after,
            )
        executor = -1 if activity.executor is None else activity.executor
        return self._core.add_task(activity.duration, executor, activity.priority, activity.start, activity.after)

    def add_flows(
        self,
        paths: Rows,
        sizes: ArrayLike,
        *,
        priority: ArrayLike = 0,
        weight: ArrayLike = 1.0,
        start: ArrayLike = 0.0,
        latency: ArrayLike = 0.0,
        after: Rows | None = None,
    ) -> NDArray[np.int32]:
        """Add many flows at once and return their ids, shape (flows,).

        `sizes` and the keywords are one value for all or one a flow; what they mean stands at `Flow`.
        """
        path_ends, links = _flatten(paths, "paths")
        count = len(path_ends) - 1
        after_ends, before = _flatten(after, "after") if after is not None else _no_rows(count)
        first = self._core.add_flows(
            path_ends,
            links,
            _numbers(sizes, count, "sizes"),
            _ids(priority, count, "priority"),
            _numbers(weight, count, "weight"),
            _numbers(start, count, "start"),
            _numbers(latency, count, "latency"),
            after_ends,
            before,
        )
        return np.arange(first, first + count, dtype=np.int32)

    def add_tasks(
        self,
        durations: ArrayLike,
        *,
        executor: ArrayLike = -1,
        priority: ArrayLike = 0,
        start: ArrayLike = 0.0,
        after: Rows | None = None,
    ) -> NDArray[np.int32]:
        """Add many tasks at once and return their ids, shape (tasks,).

        The keywords are one value for all or one a task; what they mean stands at `Task`. Executor -1 is none.
        """
        lengths = np.atleast_1d(np.asarray(durations, dtype=np.float64))
        count = len(lengths)
        after_ends, before = _flatten(after, "after") if after is not None else _no_rows(count)
        first = self._core.add_tasks(
            lengths,
            _ids(executor, count, "executor"),
            _ids(priority, count, "priority"),
            _numbers(start, count, "start"),
            after_ends,
            before,
        )
        return np.arange(first, first + count, dtype=np.int32)

    def add_dependency(self, before: int, after: int) -> None:
        """Let activity `after` start only when `before` has finished; both must have been added.

        A cycle is found by `run`.
        """
        self._core.add_dependency(before, after)

    def change_capacity(self, link: int, time: float, capacity: float) -> None:
        """From `time` on, let a link have another capacity; 0 stops what crosses it."""
        self._core.change_capacity(link, time, capacity)

    def live(self) -> Live:
        """Return the flows of this network, as it is now, to be started and steered from outside (flowsim.Live)."""
        return Live(_core.Live(self._core))

    def run(self, until: float = math.inf, timeline: bool = False) -> Result:
        """Simulate from time 0 to the end, or to `until`; the network stays as it is and can be run again.

        Equal networks give equal bits. Events within 1e-12 of each other, relatively, happen at one instant; shares are
        fair to 1e-9. `timeline` keeps every change of a rate. Raises ValueError for dependencies that form a cycle, and
        for a flow that is starved: that could never finish, as a link gives it nothing and nothing will change.
        """
        found = self._core.run(until, timeline)
        return Result(
            start=found["start"],
            finish=found["finish"],
            moved=found["moved"],
            link_bytes=found["link_bytes"],
            link_busy=found["link_busy"],
            link_offered=found["link_offered"],
            executor_busy=found["executor_busy"],
            end=found["end"],
            instants=found["instants"],
            rate_changes=found["rate_changes"],
            timeline=Timeline(*found["timeline"]) if timeline else None,
        )


def _flatten(rows: Rows, name: str) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return (ends, values): row i is values[ends[i]:ends[i + 1]]."""
    if isinstance(rows, np.ndarray):
        if rows.ndim != 2:
            raise ValueError(f"{name}: an array must have shape (activities, most), padded with -1; got {rows.shape}")
        present = rows != -1
        lengths = present.sum(axis=1)
        values = _narrow(rows[present], name)
    else:
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        none = np.zeros(0, dtype=np.int64)
        values = _narrow(np.concatenate([none, *(np.asarray(row, dtype=np.int64) for row in rows)]), name)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), values


def _no_rows(count: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    return np.zeros(count + 1, dtype=np.int64), np.zeros(0, dtype=np.int32)


def _narrow(values: ArrayLike, name: str) -> NDArray[np.int32]:
    wide = np.asarray(values)
    narrow = wide.astype(np.int32)
    if not np.array_equal(wide, narrow):
        raise ValueError(f"{name}: {wide[wide != narrow].flat[0]} is no whole number of 32 bits")
    return narrow


def _numbers(value: ArrayLike, count: int, name: str) -> NDArray[np.float64]:
    return np.broadcast_to(_one_or_each(value, count, name).astype(np.float64), (count,))


def _ids(value: ArrayLike, count: int, name: str) -> NDArray[np.int32]:
    return np.broadcast_to(_narrow(_one_or_each(value, count, name), name), (count,))


def _one_or_each(value: ArrayLike, count: int, name: str) -> NDArray[Any]:
    given = np.asarray(value)
    if given.ndim > 1 or (given.ndim == 1 and len(given) != count):
        raise ValueError(f"{name}: one value, or one for each of the {count} activities; got shape {given.shape}")
    return given
