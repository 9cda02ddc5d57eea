"""Runs a sweep on this rank: for every size, data in, timed iterations, data checked. Every rank runs the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from theseus_py.perf.collectives import COLLECTIVES, CollectiveKind
from theseus_py.perf.memory import Memory
from theseus_py.perf.options import SweepOptions
from theseus_py.perf.report import Row, Timing
from theseus_py.perf.values import ELEMENT_TYPES, ElementType, Problem


@dataclass(frozen=True)
class Call:
    """One collective call of this rank. `root` is a rank even where it means nothing.

    The buffers are the endpoint's memory's, of `element.storage`.
    """

    kind: CollectiveKind
    send: Any
    receive: Any
    element: ElementType
    operation: str
    root: int


class Endpoint(Protocol):
    """What a sweep needs of a communicator."""

    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    @property
    def memory(self) -> Memory:
        """Where buffers have to be."""

    def prepare(self, call: Call) -> Callable[[], None]:
        """What runs the call, as often as wanted; the receive buffer holds the result when `memory` has settled."""

    def barrier(self) -> None: ...

    def total(self, values: list[float]) -> list[float]:
        """The sum of each value over all ranks, on every rank."""


def run_sweep(options: SweepOptions, endpoint: Endpoint) -> Iterator[Row]:
    """Yields a row as soon as it is measured; times are the mean over the ranks. ValueError: no such root."""
    kind = COLLECTIVES[options.collective]
    for type_name in options.element_types():
        element = ELEMENT_TYPES[type_name]
        for operation in options.operations():
            for root in options.roots(endpoint.ranks):
                for size in options.sizes():
                    problem = Problem(kind, element, operation, endpoint.ranks, root, size // element.bytes)
                    yield _measure_row(options, endpoint, problem)


def row_count(options: SweepOptions, ranks: int) -> int:
    """How many rows run_sweep yields."""
    forms = len(options.element_types()) * len(options.operations()) * len(options.roots(ranks))
    return forms * len(options.sizes())


def _measure_row(options: SweepOptions, endpoint: Endpoint, problem: Problem) -> Row:
    shape = problem.shape(endpoint.rank)
    return Row(
        size=shape.largest * problem.element.bytes,
        count=shape.count,
        type=problem.element.name,
        operation=problem.operation,
        root=problem.root,
        out_of_place=measure(options, endpoint, problem, in_place=False),
        in_place=measure(options, endpoint, problem, in_place=True) if problem.kind.in_place else None,
    )


def _buffers(memory: Memory, problem: Problem, rank: int, in_place: bool) -> tuple[Any, Any]:
    """The send and the receive buffer; in place, both are parts of one."""
    shape = problem.shape(rank)
    storage = problem.element.storage
    if not in_place:
        return memory.zeros(shape.send, storage), memory.zeros(shape.receive, storage)
    whole = memory.zeros(shape.largest, storage)
    send_at, receive_at = shape.send_offset or 0, shape.receive_offset or 0
    return whole[send_at : send_at + shape.send], whole[receive_at : receive_at + shape.receive]


def measure(options: SweepOptions, endpoint: Endpoint, problem: Problem, in_place: bool) -> Timing:
    """Times and checks one form of one row; collective over the ranks. Of `options`, the iterations count.

    On a GPU the calls are queued one after another, and the time is that of the stream.
    """
    memory = endpoint.memory
    memory.reuse()
    send, receive = _buffers(memory, problem, endpoint.rank, in_place)
    memory.write(send, problem.input(endpoint.rank))
    call = Call(problem.kind, send, receive, problem.element, problem.operation, max(problem.root, 0))
    run = endpoint.prepare(call)
    for _ in range(options.warmup):
        run()
    memory.settle()
    endpoint.barrier()
    start = time.perf_counter()
    for _ in range(options.iterations):
        run()
    memory.settle()
    seconds = (time.perf_counter() - start) / options.iterations
    wrong = sum(_check(endpoint, problem, call, run, in_place) for _ in range(options.check))
    mean, all_wrong = endpoint.total([seconds / endpoint.ranks, float(wrong)])
    bytes_moved = problem.shape(endpoint.rank).largest * problem.element.bytes
    return Timing.of(
        bytes_moved, mean, problem.kind.bus_factor(endpoint.ranks), int(all_wrong) if options.check else None
    )


def _check(endpoint: Endpoint, problem: Problem, call: Call, run: Callable[[], None], in_place: bool) -> int:
    """Runs once more on fresh data; returns the wrong elements of this rank's receive buffer."""
    memory = endpoint.memory
    if not in_place:
        memory.spoil(call.receive)
    memory.write(call.send, problem.input(endpoint.rank))
    endpoint.barrier()
    run()
    return problem.wrong(endpoint.rank, memory.read(call.receive))
