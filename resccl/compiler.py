"""From algorithms to plans: csrc/compiler, called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from resccl import _core
from resccl.check import find_fault
from resccl.errors import AlgorithmError, VerificationError
from resccl.lang import Algorithm
from resccl.plan import Plan
from resccl.topology import Topology, topology_of

Scheduling = Literal["hpds", "hpds_improved", "round_robin", "algorithm_level", "stage_level", "per_connection"]
Allocation = Literal[
    "state_based", "state_based_even", "state_based_apart", "per_connection_and_stage", "per_connection"
]
Loop = Literal["micro_batches", "sub_pipelines"]

_TRANSFER = re.compile(r"transfer (\d+) -> (\d+) of chunk (\d+) at step (\d+)")


def compile(
    algorithm: Algorithm,
    topology: Topology | str | Sequence[int],
    *,
    scheduling: Scheduling = "hpds",
    allocation: Allocation = "state_based",
    loop: Loop = "micro_batches",
    fold: bool = True,
    fuse: bool = False,
    stagger: bool = False,
    verify: bool = True,
) -> Plan:
    """Compile an algorithm for a topology (`2x8`: two hosts of eight ranks), and prove the plan.

    `scheduling` forms the sub-pipelines, `allocation` the thread blocks (ResCCL, sections 3.2 and 3.3), `loop` is the
    order in which a TB runs its instructions over micro-batches, `fold` combines what arrives in one step in a fixed
    order, `fuse` passes chunks on between hosts in one instruction, and `stagger` keeps ranks that share a NIC from
    sending in step. AlgorithmError names the line of the program that made a wrong transfer.
    """
    where = topology_of(topology, algorithm.ranks)
    try:
        plan = Plan(
            _core.compile(
                algorithm.to_dict(),
                where.to_dict(),
                scheduling=scheduling,
                allocation=allocation,
                loop=loop,
                fold=fold,
                fuse=fuse,
                stagger=stagger,
            )
        )
        if verify:
            plan.verify(any_count=True)
    except VerificationError:
        algorithm.check()
        raise
    except ValueError as error:
        _blame_line(algorithm, error)
        raise
    return plan


def _blame_line(algorithm: Algorithm, error: ValueError) -> None:
    """Raise AlgorithmError where the algorithm is at fault and its line is known."""
    fault = find_fault(algorithm.space, algorithm.transfers)
    if fault is not None:
        algorithm.raise_fault(fault)
    named = _TRANSFER.search(str(error))
    if named is None:
        return
    src, dst, chunk, step = (int(number) for number in named.groups())
    rows = algorithm.transfers
    same = (rows[:, 0] == src) & (rows[:, 1] == dst) & (rows[:, 2] == step) & (rows[:, 3] == chunk)
    if same.any():
        file, line = algorithm.line_of(int(np.argmax(same)))
        raise AlgorithmError(str(error), file, line) from error


def built_in(name: str, collective: str, topology: Topology | str, root: int = 0) -> Algorithm:
    """Return a built-in algorithm (`ring`, `hierarchical`, ...). ValueError lists those that make the collective."""
    where = Topology.parse(topology) if isinstance(topology, str) else topology
    return Algorithm.from_dict(_core.built_in(name, collective, where.to_dict(), root))


def built_in_names() -> list[tuple[str, str, list[str]]]:
    """Return name, summary and collectives of each built-in algorithm."""
    return _core.built_in_names()


@dataclass(frozen=True)
class Analysis:
    """What the compiler makes of an algorithm before it allocates thread blocks.

    A *task* is a transfer, or those that one Fold takes together, or an exchange. Ragged rows are in CSR form: those of
    task t are `x[first_x[t]:first_x[t + 1]]`.
    """

    transfers: NDArray[np.int32]  # (n, 6), task by task: src, dst, step, chunk, op, rail
    first_transfer: NDArray[np.int32]
    predecessors: NDArray[np.int32]  # tasks: data dependencies, only inside a chunk
    first_predecessor: NDArray[np.int32]
    links: NDArray[
        np.int32
    ]  # (k, 4): kind (0 pair of ranks, 1 egress, 2 ingress), from, to, rail; -1 where it has none
    link_ids: NDArray[np.int32]  # indices into `links`
    first_link: NDArray[np.int32]
    between_hosts: NDArray[np.bool_]  # of each task
    stage: NDArray[np.int32]  # of each task
    sub_pipeline: NDArray[np.int32]  # of each task
    order: NDArray[np.int32]  # tasks, as the sub-pipelines have them

    @property
    def tasks(self) -> int:
        return len(self.between_hosts)

    @property
    def sub_pipelines(self) -> int:
        return int(self.sub_pipeline.max()) + 1 if self.tasks else 0

    def transfers_of(self, task: int) -> NDArray[np.int32]:
        return self.transfers[self.first_transfer[task] : self.first_transfer[task + 1]]

    def predecessors_of(self, task: int) -> NDArray[np.int32]:
        return self.predecessors[self.first_predecessor[task] : self.first_predecessor[task + 1]]

    def links_of(self, task: int) -> NDArray[np.int32]:
        return self.link_ids[self.first_link[task] : self.first_link[task + 1]]

    def link_name(self, link: int) -> str:
        """Return `0>1` for a pair of ranks, `host 0 rail 1 out` or `in` for a NIC."""
        kind, source, target, rail = (int(value) for value in self.links[link])
        if kind == 0:
            return f"{source}>{target}"
        return f"host {source if kind == 1 else target} rail {rail} {'out' if kind == 1 else 'in'}"


def analyse(
    algorithm: Algorithm,
    topology: Topology | str | Sequence[int],
    *,
    scheduling: Scheduling = "hpds",
    fold: bool = True,
) -> Analysis:
    """Return the tasks of an algorithm, their dependencies and links, and the sub-pipelines that `scheduling` forms."""
    where = topology_of(topology, algorithm.ranks)
    try:
        return Analysis(**_core.analyse(algorithm.to_dict(), where.to_dict(), scheduling=scheduling, fold=fold))
    except ValueError as error:
        _blame_line(algorithm, error)
        raise
