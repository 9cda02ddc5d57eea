"""Runs a placed program once on symbolic values, out of place: what every instruction moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from resccl.formats.common import FormatError
from resccl.formats.program import Event, Instruction, Program, Run
from resccl.formats.spaces import Place

V = TypeVar("V")


@dataclass
class Algebra(Generic[V]):
    """What values are: `leaf(rank, input index)`, `combine(left, right)`, `message(value, sender, receiver)`."""

    leaf: Callable[[int, int], V]
    combine: Callable[[V, V, str], V]
    message: Callable[[V, Event, Event], V]


@dataclass
class Trace(Generic[V]):
    """`memory` at the end; `results` of each instruction; `operands` of each: own old value, then what it read."""

    memory: dict[tuple[int, Place], V] = field(default_factory=dict)
    results: dict[Event, V] = field(default_factory=dict)
    operands: dict[Event, list[V]] = field(default_factory=dict)


def evaluate(program: Program, run: Run, algebra: Algebra[V]) -> Trace[V]:
    """Runs `program` in the order of `run`. Raises FormatError where it reads what nothing has written."""
    trace: Trace[V] = Trace()
    for event in run.order:
        instruction = program.at(event)
        if instruction.opcode != "Nop":
            _execute(program, run, algebra, trace, event, instruction)
    return trace


def _execute(
    program: Program, run: Run, algebra: Algebra[V], trace: Trace[V], event: Event, instruction: Instruction
) -> None:
    rank = event[0]
    where = program.describe(event)
    read: list[V] = []
    for place in reversed(instruction.reads()):
        value = trace.memory.get((rank, place))
        if place[0] == "input":
            value = algebra.leaf(rank, place[1])
        if value is None:
            raise FormatError(f"{where} reads {place[0]}[{place[1]}], which nothing has written")
        read.append(value)
    arrived = [algebra.message(trace.results[s], s, event) for s in run.senders.get(event, ())]
    if instruction.opcode == "Fold":
        local = read[0] if read else None
        waiting = iter(arrived)
        operands = [local if c < 0 else next(waiting) for c in instruction.fold]
    elif instruction.recv_is_left:
        operands = [*arrived, *read]
    else:
        operands = [*read, *arrived]
    known = [o for o in operands if o is not None]
    result = known[0]
    for operand in known[1:]:
        result = algebra.combine(result, operand, where)
    trace.operands[event] = known
    trace.results[event] = result
    if instruction.dst is not None:
        trace.memory[rank, instruction.dst] = result
