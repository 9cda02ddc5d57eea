"""Makes all ranks reduce a chunk in one order, so that all end with the same bits.

Schedules in which several ranks reduce the same chunk themselves (one-shot all-reduce: everybody gets everything)
start from their own value, so their float results differ in the last bits. Sums may be reordered: here the operands of
a thread block's run of local reductions are taken in the order of their lowest contributing rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from resccl.collectives import REDUCING
from resccl.formats.common import FormatError
from resccl.formats.program import Event, Instruction, Program, Run, rebuilt, run
from resccl.formats.spaces import Place
from resccl.formats.symbolic import Algebra, Trace, evaluate

_Value = tuple[int, int]  # (contributing ranks as a bit mask, number of the expression)


def same_order_everywhere(program: Program, order: Run) -> Run:
    """Reorders reductions where ranks differ, and notes it. Returns an order for the program as it is then."""
    if program.space.collective not in REDUCING:
        return order
    trace = _expressions(program, order)
    if _agrees(program, trace):
        return order
    _sort_pairs(program, trace)
    _sort_runs(program, order, trace)
    order = run(program)
    if _agrees(program, _expressions(program, order)):
        program.notes.append("ranks reduced the same chunks in different orders; now all in that of the lowest rank")
    else:
        program.notes.append("ranks reduce the same chunks in different orders: float results may differ in last bits")
    return order


def _expressions(program: Program, order: Run) -> Trace[_Value]:
    numbers: dict[tuple[int, int], int] = {}

    def combine(left: _Value, right: _Value, where: str) -> _Value:
        if left[0] & right[0]:
            raise FormatError(f"{where} counts the contribution of rank {_lowest(left[0] & right[0])} twice")
        return (left[0] | right[0], numbers.setdefault((left[1], right[1]), len(numbers) + program.space.ranks))

    return evaluate(program, order, Algebra(lambda r, index: (1 << r, r), combine, lambda value, s, e: value))


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _agrees(program: Program, trace: Trace[_Value]) -> bool:
    known: dict[int, int] = {}
    space = program.space
    for r in range(space.ranks):
        for index in range(space.outputs(r)):
            value = trace.memory.get((r, ("output", index)))
            if value is not None and known.setdefault(space.chunk_at(r, ("output", index)), value[1]) != value[1]:
                return False
    return True


def _sort_pairs(program: Program, trace: Trace[_Value]) -> None:
    """Which side of a reduction an arriving value stands on, and where in a fold."""
    for event, instruction in program.events():
        if instruction.opcode.startswith("RecvReduce"):
            local, arrived = trace.operands[event] if not instruction.recv_is_left else trace.operands[event][::-1]
            instruction.recv_is_left = _lowest(arrived[0]) < _lowest(local[0])
        elif instruction.opcode == "Fold":
            lowest = [_lowest(mask) for mask, _ in trace.operands[event]]
            instruction.fold = [c for _, c in sorted(zip(lowest, instruction.fold, strict=True))]


@dataclass
class _Chain:
    """Instructions [begin, end) of a thread block that reduce scratch chunks into one place, one after another.

    `operands` are (lowest rank, place), the old value of the destination first.
    """

    begin: int
    end: int
    operands: list[tuple[int, Place]]


def _sort_runs(program: Program, order: Run, trace: Trace[_Value]) -> None:
    reads: Counter[tuple[int, Place]] = Counter()
    for event, instruction in program.events():
        reads.update((event[0], p) for p in instruction.reads())
    for r, rank in enumerate(program.ranks):
        awaited = {(t, s) for block in rank.thread_blocks for i in block for t, s, _ in i.dependencies}
        chains: dict[tuple[int, int], _Chain] = {}
        inside: set[tuple[int, int]] = set()
        for t, block in enumerate(rank.thread_blocks):
            for chain in _chains(r, t, block, awaited, trace):
                first = min(chain.operands)[1]
                # The first operand's place collects the sum, so nobody else may want what it holds.
                if first[0] == "scratch" and chain.operands[0][1] != first and reads[r, first] == 1:
                    chains[t, chain.begin] = chain
                    inside.update((t, s) for s in range(chain.begin + 1, chain.end))
        if not chains:
            continue

        def rewrite(
            t: int,
            s: int,
            i: Instruction,
            blocks: list[list[Instruction]] = rank.thread_blocks,
            chains: dict[tuple[int, int], _Chain] = chains,
            inside: set[tuple[int, int]] = inside,
        ) -> list[Instruction]:
            chain = chains.get((t, s))
            if chain is not None:
                return _sorted(blocks[t], chain)
            return [] if (t, s) in inside else [i]

        rank.thread_blocks = rebuilt(rank.thread_blocks, rewrite)


def _chains(
    r: int, t: int, block: list[Instruction], awaited: set[tuple[int, int]], trace: Trace[_Value]
) -> Iterator[_Chain]:
    s = 0
    while s < len(block):
        begin = s
        target = block[s].dst
        operands: list[tuple[int, Place]] = []
        if block[s].opcode == "Copy" and (t, s) not in awaited and block[s].src is not None:
            operands.append(_operand(trace, (r, t, s), 0, block[s].src))
            s += 1
        while s < len(block) and block[s].opcode == "Reduce" and block[s].dst == target and target is not None:
            source = block[s].src
            if not operands:
                operands.append(_operand(trace, (r, t, s), 0, target))
            if source is None or source[0] != "scratch":
                break
            operands.append(_operand(trace, (r, t, s), 1, source))
            s += 1
            if (t, s - 1) in awaited:
                break
        if len(operands) > 1 and block[s - 1].opcode == "Reduce":
            yield _Chain(begin, s, operands)
        s = max(s, begin + 1)


def _operand(trace: Trace[_Value], event: Event, which: int, place: Place | None) -> tuple[int, Place]:
    assert place is not None
    return (_lowest(trace.operands[event][which][0]), place)


def _sorted(block: list[Instruction], chain: _Chain) -> list[Instruction]:
    """The same sum, collected in the place of its first operand, then copied to where it belongs."""
    old = block[chain.begin : chain.end]
    operands = [p for _, p in sorted(chain.operands)]
    target = old[-1].dst
    new = [Instruction("Reduce", src=p, dst=operands[0], where=old[-1].where) for p in operands[1:]]
    new.append(Instruction("Copy", src=operands[0], dst=target, where=old[-1].where))
    for instruction in new:
        instruction.sub_pipeline = old[0].sub_pipeline
    new[0].dependencies = list(dict.fromkeys(d for i in old for d in i.dependencies))
    return new
