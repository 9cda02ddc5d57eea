"""The native engine (csrc/bindings/flowsim). Use flowsim.Network instead; nothing here is stable."""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

class _Outcome(TypedDict):
    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    moved: NDArray[np.float64]
    link_bytes: NDArray[np.float64]
    link_busy: NDArray[np.float64]
    link_offered: NDArray[np.float64]
    executor_busy: NDArray[np.float64]
    timeline: tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.float64]]
    end: float
    instants: int
    rate_changes: int

class Network:
    def __init__(self) -> None: ...
    @property
    def links(self) -> int: ...
    @property
    def executors(self) -> int: ...
    @property
    def activities(self) -> int: ...
    def add_link(self, capacity: float, contention: float, /) -> int: ...
    def add_executor(self) -> int: ...
    def add_flow(
        self,
        path: Sequence[int],
        size: float,
        priority: int,
        weight: float,
        start: float,
        latency: float,
        after: Sequence[int],
        /,
    ) -> int: ...
    def add_task(self, duration: float, executor: int, priority: int, start: float, after: Sequence[int], /) -> int: ...
    # Rows of different length are (ends, values): row i is values[ends[i]:ends[i + 1]].
    def add_flows(
        self,
        path_ends: NDArray[np.int64],
        paths: NDArray[np.int32],
        sizes: NDArray[np.float64],
        priorities: NDArray[np.int32],
        weights: NDArray[np.float64],
        starts: NDArray[np.float64],
        latencies: NDArray[np.float64],
        after_ends: NDArray[np.int64],
        after: NDArray[np.int32],
        /,
    ) -> int: ...
    def add_tasks(
        self,
        durations: NDArray[np.float64],
        executors: NDArray[np.int32],
        priorities: NDArray[np.int32],
        starts: NDArray[np.float64],
        after_ends: NDArray[np.int64],
        after: NDArray[np.int32],
        /,
    ) -> int: ...
    def add_dependency(self, before: int, after: int, /) -> None: ...
    def change_capacity(self, link: int, time: float, capacity: float, /) -> None: ...
    def run(self, until: float, timeline: bool, /) -> _Outcome: ...

class Live:
    def __init__(self, network: Network, /) -> None: ...
    @property
    def now(self) -> float: ...
    def start(self, flow: int, bytes: float, /) -> None: ...
    def set_priority(self, flow: int, priority: int, /) -> None: ...
    def set_capacity(self, link: int, capacity: float, /) -> None: ...
    def next(self) -> float: ...
    def advance(self, time: float, /) -> list[int]: ...
    def rate(self, flow: int, /) -> float: ...
    def left(self, flow: int, /) -> float: ...
