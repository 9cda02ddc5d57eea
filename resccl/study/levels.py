"""One algorithm at every granularity, and which to take for a size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from resccl.compiler import Allocation, Loop, Scheduling, compile
from resccl.lang import Algorithm
from resccl.plan import Plan
from resccl.study.hardware import Hardware, messages_of
from resccl.study.schedule import improved_algorithm
from resccl.study.simulate import Outcome, simulate
from resccl.topology import Topology

Level = Literal["algorithm", "stage", "task", "wide", "round_robin", "few", "many"]
LEVELS: tuple[Level, ...] = ("algorithm", "stage", "task", "wide", "round_robin", "few", "many")

_OPTIONS: dict[Level, tuple[Scheduling, Allocation, Loop]] = {
    "algorithm": ("algorithm_level", "per_connection", "micro_batches"),
    "stage": ("stage_level", "per_connection_and_stage", "micro_batches"),
    "task": ("hpds", "state_based_even", "sub_pipelines"),
    "wide": ("hpds", "per_connection", "sub_pipelines"),
    "round_robin": ("round_robin", "state_based_even", "sub_pipelines"),
    "few": ("hpds", "per_connection", "sub_pipelines"),
    "many": ("hpds", "per_connection", "sub_pipelines"),
}
_IMPROVED_FOR: dict[Level, int] = {"few": 1, "many": 32}
_SIZES = tuple(1 << power for power in range(10, 20))
_BATCHES = (2, 3, 4, 6, 8, 16)


def compile_level(
    algorithm: Algorithm, topology: Topology, level: Level, hardware: Hardware | None = None, *, verify: bool = False
) -> Plan:
    """Compile an algorithm as a granularity would run it; reductions as the paper has them, one operand at a time.

    algorithm: its steps, one TB for each end of a connection.
    stage: stages side by side, one TB for each connection and stage (as MSCCL).
    task: HPDS; connections that are never active together share a TB, which repeats a sub-pipeline for all of n. All
        ranks have as many TBs as the one that needs most, and those of one NIC begin in turn (staggered).
    wide: as task, one TB for each end of a connection.
    round_robin: as task, with sub-pipelines formed by turns of the chunks.
    few, many: as wide, with the best sub-pipelines that we know for 1, and for 32 micro-batches (schedule.py).
    """
    if level not in LEVELS:
        raise ValueError(f"there is no level '{level}'; there are {', '.join(LEVELS)}")
    scheduling, allocation, loop = _OPTIONS[level]
    if level in _IMPROVED_FOR:
        improved = improved_algorithm(algorithm, topology, hardware or Hardware(), _IMPROVED_FOR[level])
        if improved is not None:
            algorithm, scheduling = improved, "algorithm_level"
    return compile(
        algorithm,
        topology,
        scheduling=scheduling,
        allocation=allocation,
        loop=loop,
        fold=False,
        stagger=loop == "sub_pipelines",
        verify=verify,
    )


def simulate_level(
    plan: Plan, level: Level, topology: Topology, size: float, hardware: Hardware, chunks: int
) -> Outcome:
    """Simulate a plan of compile_level. Algorithm level ends each micro-batch on all ranks before the next begins."""
    message = messages_of(size, chunks, hardware)
    if level != "algorithm":
        return simulate(plan, topology, size, hardware)
    n = message.micro_batches
    one = simulate(plan, topology, size / n, hardware, micro_batches=1)
    seconds = n * (one.seconds + hardware.barrier)
    return Outcome(
        seconds, n, one.message, one.network_use, one.local_use, one.link_use, one.busiest, one.blocks, one.events
    )


@dataclass
class Study:
    """An algorithm on a machine, compiled once for each level that is asked for, and simulated once for each size."""

    algorithm: Algorithm
    topology: Topology
    hardware: Hardware = field(default_factory=Hardware)
    _plans: dict[Level, Plan] = field(default_factory=dict)
    _outcomes: dict[tuple[Level, float], Outcome] = field(default_factory=dict)

    def plan(self, level: Level) -> Plan:
        if level not in self._plans:
            self._plans[level] = compile_level(self.algorithm, self.topology, level, self.hardware)
        return self._plans[level]

    def outcome(self, level: Level, size: float) -> Outcome:
        """Return what simulating `size` bytes (resccl.study.simulate) gives."""
        key = (level, size)
        if key not in self._outcomes:
            chunks = self.algorithm.chunks
            self._outcomes[key] = simulate_level(self.plan(level), level, self.topology, size, self.hardware, chunks)
        return self._outcomes[key]

    def seconds(self, level: Level, size: float) -> float:
        return self.outcome(level, size).seconds


@dataclass(frozen=True)
class LevelModel:
    """The cost of a level as equations 3 to 5 have it, t_Load + n (m (alpha + c beta) + B), with measured constants.

    messages, first: bytes of a message, and the seconds of one micro-batch of such messages
    batches, many: micro-batches of the largest messages, and their seconds
    """

    chunks: int
    hardware: Hardware
    messages: tuple[float, ...]
    first: tuple[float, ...]
    batches: tuple[int, ...]
    many: tuple[float, ...]

    def seconds(self, size: float) -> float:
        """Return the predicted seconds for `size` bytes."""
        message = messages_of(size, self.chunks, self.hardware)
        one = float(np.interp(message.size, self.messages, self.first))
        if message.size < self.messages[0]:  # alpha stays, c beta shrinks; below the samples alpha is nearly all
            one = self.first[0]
        n = message.micro_batches
        whole = float(np.interp(n, self.batches, self.many))
        if n > self.batches[-1]:
            slope = (self.many[-1] - self.many[-2]) / (self.batches[-1] - self.batches[-2])
            whole = self.many[-1] + slope * (n - self.batches[-1])
        return one * whole / self.first[-1]


def calibrate(study: Study, level: Level, batches: Sequence[int] = _BATCHES) -> LevelModel:
    """Return the model of a level, from a few short simulations."""
    chunks, chunk = study.algorithm.chunks, study.hardware.chunk
    messages = (*(size for size in _SIZES if size < chunk), chunk)
    first = tuple(study.seconds(level, float(size * chunks)) for size in messages)
    many = tuple(study.seconds(level, float(n * chunk * chunks)) for n in batches)
    sizes = tuple(float(size) for size in messages)
    return LevelModel(chunks, study.hardware, sizes, first, (1, *batches), (first[-1], *many))


def choose_level(size: float, models: Mapping[Level, LevelModel]) -> Level:
    """Return the level that is predicted to be fastest for `size` bytes; the first of equals."""
    if not models:
        raise ValueError("there is no level to choose from")
    return min(models, key=lambda level: models[level].seconds(size))
