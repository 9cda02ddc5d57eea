"""Kernels of the built-in algorithms: which there are, and what each may take of the hardware."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, product

from resccl import _core as resccl
from theseus_py import _core

RANKS = (2, 4, 8)
REDUCTIONS = ("sum", "prod", "max", "min")
TYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64",
    "float16", "float32", "float64", "bfloat16", "float8_e4m3", "float8_e5m2",
)  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """A kernel's text, and what it is for."""

    name: str
    text: str
    headers: Mapping[str, str]
    type: str
    reduction: str
    low_latency: bool
    scales: bool


def plans() -> Iterator[tuple[str, int, bytes]]:
    """Return name, ranks and plan of every built-in algorithm, compiled as the runtime does for ranks on one host."""
    for name, _, collectives in resccl.built_in_names():
        for collective, ranks in product(collectives, RANKS):
            topology = {"host_of_rank": [0] * ranks, "rails": 1}
            algorithm = resccl.built_in(name, collective, topology)
            plan = resccl.compile(
                algorithm, topology, allocation="state_based_apart", fuse=algorithm["chunks"] == 1
            )  # fmt: skip
            yield f"{collective} by {name}, {ranks} ranks", ranks, plan


def plan_kernel(plan: bytes, rank: int, name: str, type_: str, reduction: str, low_latency: bool) -> Kernel | None:
    """Return the kernel of a rank's part; None where the plan is too large and the interpreting kernel does it."""
    made = _core.plan_kernel(plan, rank, type_, reduction, low_latency)
    if made is None:
        return None
    protocol = "LL" if low_latency else "Simple"
    full = f"{name}, rank {rank}: {type_} {reduction} {protocol}"
    return Kernel(full, made.text, made.headers, type_, reduction, low_latency, scales=False)


def plan_kernels(every: bool) -> Iterator[Kernel]:
    """Return generated kernels of all plans, types and reductions in turn.

    `every`: of each rank, under both protocols; else one a plan, ranks and protocols in turn.
    """
    pairs = cycle(product(TYPES, REDUCTIONS))
    protocols = cycle([False, True])
    for index, (name, ranks, plan) in enumerate(plans()):
        chosen = (
            list(product(range(ranks), (False, True)))
            if every
            else [(index % ranks, next(protocols))]
        )  # fmt: skip
        for rank, low_latency in chosen:
            type_, reduction = next(pairs)
            kernel = plan_kernel(plan, rank, name, type_, reduction, low_latency)
            if kernel is not None:
                yield kernel


def interpreting_kernels() -> Iterator[Kernel]:
    """Return the kernel that interprets plans, for every type, reduction and protocol; all scale their input."""
    for type_, reduction, low_latency in product(TYPES, REDUCTIONS, (False, True)):
        made = _core.interpreting_kernel(type_, reduction, low_latency)
        name = f"interpret {type_} {reduction} {'LL' if low_latency else 'Simple'}"
        yield Kernel(name, made.text, made.headers, type_, reduction, low_latency, scales=True)
