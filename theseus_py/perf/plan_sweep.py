"""A sweep of one plan: which counts, in which form; every row timed and checked. Runs on every rank alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from theseus_py.perf.collectives import COLLECTIVES, CollectiveKind
from theseus_py.perf.options import OPERATIONS, SweepOptions
from theseus_py.perf.report import Timing
from theseus_py.perf.sweep import Endpoint, measure
from theseus_py.perf.values import ELEMENT_TYPES, Problem

FORMS = ("out of place", "in place")


@dataclass(frozen=True)
class PlanOptions:
    """One run of `theseus sched run`. `sizes` are bytes of the larger buffer of a rank, as nccl-tests counts them."""

    sizes: tuple[int, ...]
    element_type: str = "float"
    operation: str = "sum"
    forms: tuple[str, ...] = FORMS
    iterations: int = 5
    warmup: int = 1

    def __post_init__(self) -> None:
        if self.element_type not in ELEMENT_TYPES:
            raise ValueError(f"unknown data type '{self.element_type}': choose one of {', '.join(ELEMENT_TYPES)}")
        if self.operation not in OPERATIONS:
            raise ValueError(f"unknown operation '{self.operation}': choose one of {', '.join(OPERATIONS)}")
        if self.iterations < 1:
            raise ValueError(f"the number of iterations (-n) must be at least 1, not {self.iterations}")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> PlanOptions:
        return PlanOptions(**{**values, "sizes": tuple(values["sizes"]), "forms": tuple(values["forms"])})


@dataclass(frozen=True)
class PlanRow:
    """One line of the table. `count` is the argument that NCCL's function takes."""

    size: int
    count: int
    form: str
    timing: Timing


def kind_of(collective: str) -> CollectiveKind:
    """The shape of the collective that a plan calls "AllReduce", "AllToAll"... ValueError: there is none."""
    for kind in COLLECTIVES.values():
        if kind.title.lower() == collective.lower():
            return kind
    raise ValueError(f"there is no collective '{collective}' to run")


def counts_of(sizes: tuple[int, ...], element_bytes: int, shares: int, chunks: int) -> list[int]:
    """Elements of a block for each size: a count that divides into `chunks` equal ones where it can, and the next one.

    `shares`: blocks of the larger buffer. The next one does not divide, unless there is but one chunk.
    """
    counts: list[int] = []
    for size in sizes:
        count = max(1, size // (element_bytes * shares))
        even = count - count % chunks
        counts += [even or count, (even or count) + 1]
    return list(dict.fromkeys(counts))


def forms_of(wanted: tuple[str, ...], in_place: bool, out_of_place: bool, chosen: bool) -> list[str]:
    """The forms to run: those wanted that the plan is right for. ValueError where one was `chosen` and it is not."""
    right = {"in place": in_place, "out of place": out_of_place}
    forms = [form for form in wanted if right[form]]
    if not forms or (chosen and len(forms) < len(wanted)):
        raise ValueError(f"the plan is not right {' or '.join(form for form in wanted if not right[form])}")
    return forms


def run_plan_sweep(
    options: PlanOptions, endpoint: Endpoint, collective: str, root: int, chunks: int, forms: list[str]
) -> Iterator[PlanRow]:
    """Yields a row as soon as it is measured; times are the mean over the ranks."""
    kind = kind_of(collective)
    element = ELEMENT_TYPES[options.element_type]
    operation = options.operation if kind.reduces else "none"
    shares = 1 if kind.name in ("all_reduce", "broadcast", "reduce") else endpoint.ranks
    timing = SweepOptions(kind.name, iterations=options.iterations, warmup=options.warmup)
    for count in counts_of(options.sizes, element.bytes, shares, chunks):
        problem = Problem(kind, element, operation, endpoint.ranks, root if kind.rooted else -1, count * shares)
        for form in forms:
            measured = measure(timing, endpoint, problem, in_place=form == "in place")
            yield PlanRow(problem.shape(endpoint.rank).largest * element.bytes, count, form, measured)
