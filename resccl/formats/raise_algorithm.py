"""From a plan back to an algorithm: each message becomes a transfer, so that another scheduler can compile it.

An algorithm knows one version of a chunk a rank; a transfer sends what all transfers of smaller steps left there, and
replaces (copy) or adds to (reduce) what the receiver has. So the values that a rank uses of a chunk, by sending or by
ending with them, must form a line: each is the one before plus what arrived since, or starts over from something that
arrived. Steps follow from that: what is in a value arrives before the value is sent, what is not arrives no earlier.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from resccl.collectives import REDUCING
from resccl.formats.common import FormatError
from resccl.formats.program import Event, Program, Stuck, from_plan, run
from resccl.formats.symbolic import Algebra, evaluate

_OWN = -1  # the atom of a value that stands for the rank's own input


@dataclass(slots=True)
class _Value:
    """A value at a rank: which chunk, whose contributions (a bit mask), and its atoms: _OWN, or numbers of messages."""

    chunk: int
    ranks: int
    atoms: frozenset[int]


@dataclass(slots=True)
class _Message:
    source: int
    target: int
    value: _Value
    wanted: bool = False


@dataclass
class _Line:
    """What a rank does with a chunk: the values that it uses, in order, and which messages send each."""

    values: list[_Value] = field(default_factory=list)
    sends: list[list[int]] = field(default_factory=list)
    last: int | None = None  # the value that the rank ends with, where it has to end with one


def raise_algorithm(plan: dict[str, Any]) -> dict[str, Any]:
    """The algorithm dict that the whole plan dict `plan` carries out (both as resccl._core has them).

    Raises FormatError where an algorithm cannot say the same, naming rank and chunk: a rank that forwards a value
    while keeping another one of the same chunk for later, say. Messages that no output needs are left out.
    """
    program = from_plan(plan)
    space = program.space
    try:
        order = run(program)
    except Stuck as stuck:
        raise FormatError(f"plan '{program.name}' would wait for ever: {stuck.circle}") from None
    messages = _Messages(program)
    trace = evaluate(program, order, Algebra(messages.leaf, messages.combine, messages.arrive))
    ends = []
    for r in range(space.ranks):
        for index in range(space.outputs(r)):
            chunk = space.chunk_at(r, ("output", index))
            value = trace.memory.get((r, ("output", index)))
            if value is None or value.chunk != chunk or value.ranks != space.contributors(chunk):
                raise FormatError(f"plan '{program.name}': rank {r} ends without the right value of chunk {chunk}")
            ends.append((r, value))
    messages.keep([value for _, value in ends])
    lines: dict[tuple[int, int], _Line] = defaultdict(_Line)
    for number, message in enumerate(messages.found):
        if message.wanted:
            _use(lines[message.source, message.value.chunk], message.value, number)
    for r, value in ends:
        _use(lines[r, value.chunk], value, None)
    steps = _Steps(program, messages.found)
    for (rank, chunk), line in lines.items():
        steps.add(rank, chunk, line)
    rails = {c.rail for rank in program.ranks for c in rank.connections}
    rows = steps.rows(messages.rails if len(rails) > 1 else [-1] * len(messages.found))
    return {
        "name": program.name,
        "collective": space.collective,
        "ranks": space.ranks,
        "chunks": space.chunks,
        "root": space.root,
        "transfers": np.asarray(rows, dtype=np.int32).reshape(-1, 6),
    }


class _Messages:
    """The algebra of values, which numbers the messages as they arrive."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.found: list[_Message] = []
        self.rails: list[int] = []

    def leaf(self, rank: int, index: int) -> _Value:
        return _Value(self.program.space.chunk_at(rank, ("input", index)), 1 << rank, frozenset((_OWN,)))

    def combine(self, left: _Value, right: _Value, where: str) -> _Value:
        if left.chunk != right.chunk:
            raise FormatError(f"{where} combines chunk {left.chunk} with chunk {right.chunk}")
        if left.ranks & right.ranks:
            raise FormatError(f"{where} counts a contribution to chunk {left.chunk} twice")
        return _Value(left.chunk, left.ranks | right.ranks, left.atoms | right.atoms)

    def arrive(self, value: _Value, sender: Event, receiver: Event) -> _Value:
        number = len(self.found)
        self.found.append(_Message(sender[0], receiver[0], value))
        connection = self.program.ranks[sender[0]].connections[self.program.at(sender).send]
        self.rails.append(connection.rail)
        return _Value(value.chunk, value.ranks, frozenset((number,)))

    def keep(self, values: list[_Value]) -> None:
        """Marks what `values` are made of, directly or not."""
        stack = list(values)
        while stack:
            for atom in stack.pop().atoms:
                if atom != _OWN and not self.found[atom].wanted:
                    self.found[atom].wanted = True
                    stack.append(self.found[atom].value)


def _use(line: _Line, value: _Value, message: int | None) -> None:
    """Notes that a value is sent, or that the rank ends with it."""
    atoms = [v.atoms for v in line.values]
    if value.atoms in atoms:
        n = atoms.index(value.atoms)
    else:
        n = len(line.values)
        line.values.append(value)
        line.sends.append([])
    if message is None:
        line.last = n
    else:
        line.sends[n].append(message)


class _Steps:
    """Steps of all messages, from constraints `step[a] + gap <= step[b]`."""

    def __init__(self, program: Program, messages: list[_Message]) -> None:
        self.program = program
        self.messages = messages
        self.copies = [True] * len(messages)
        self.later: list[list[tuple[int, int]]] = [[] for _ in messages]

    def before(self, a: int, b: int, gap: int) -> None:
        if a != b:
            self.later[a].append((b, gap))

    def refuse(self, rank: int, chunk: int, why: str) -> FormatError:
        return FormatError(f"plan '{self.program.name}': as an algorithm, rank {rank}'s chunk {chunk} {why}")

    def add(self, rank: int, chunk: int, line: _Line) -> None:
        """Constraints of what one rank does with one chunk."""
        order = self.line(rank, chunk, line)
        kept: frozenset[int] = frozenset()  # atoms of the version so far
        sent: list[int] = []  # what was sent of it
        for n in order:
            value = line.values[n]
            fresh = sorted(value.atoms - kept)
            if not kept <= value.atoms or not kept:
                fresh = self.start(rank, chunk, value, kept, sent)
            for atom in fresh:
                self.copies[atom] = False
                self.arrives(atom, kept, sent)
            kept = value.atoms
            # What is in the value arrives in an earlier step than the value leaves.
            for message in line.sends[n]:
                for atom in kept:
                    if atom != _OWN:
                        self.before(atom, message, 1)
            sent.extend(line.sends[n])

    def arrives(self, atom: int, kept: frozenset[int], sent: list[int]) -> None:
        """What was sent before is without it."""
        for message in sent:
            self.before(message, atom, 0)

    def start(self, rank: int, chunk: int, value: _Value, kept: frozenset[int], sent: list[int]) -> list[int]:
        """Begins a version anew: from the rank's own input, or by a copy. Returns the atoms still to be added."""
        if _OWN in value.atoms:
            if kept:
                raise self.refuse(rank, chunk, "would need its own input again after it was replaced")
            return sorted(value.atoms - {_OWN})
        first, *rest = sorted(value.atoms)
        self.copies[first] = True
        self.arrives(first, kept, sent)
        for atom in kept - {_OWN}:
            if atom in value.atoms:
                raise self.refuse(rank, chunk, "would need what arrived before again after it was replaced")
            self.before(atom, first, 1)
        for atom in rest:
            self.before(first, atom, 1)
        return rest

    def line(self, rank: int, chunk: int, line: _Line) -> list[int]:
        """The order in which the rank's versions of the chunk follow each other: as used, what has the own input first.

        A value that is part of another one comes before it, whenever it was used; what the rank ends with comes last.
        """
        remaining = list(range(len(line.values)))
        order: list[int] = []
        while remaining:
            for n in remaining:
                if n == line.last and len(remaining) > 1:
                    continue
                atoms = line.values[n].atoms
                others = [line.values[m].atoms for m in remaining if m not in (n, line.last)]
                if not any(o < atoms for o in others) and (_OWN in atoms or not any(_OWN in o for o in others)):
                    order.append(n)
                    remaining.remove(n)
                    break
            else:
                raise self.refuse(rank, chunk, "would have two versions at once")
        return order

    def rows(self, rails: list[int]) -> list[list[int]]:
        steps = self.solve()
        rows = []
        for number, message in enumerate(self.messages):
            if not message.wanted:
                continue
            chunk = message.value.chunk
            reduces = not self.copies[number]
            if reduces and self.program.space.collective not in REDUCING:
                raise self.refuse(message.target, chunk, "would be reduced, which its collective does not do")
            rows.append([message.source, message.target, steps[number], chunk, int(reduces), rails[number]])
        rows.sort(key=lambda row: (row[2], row[0], row[1], row[3]))
        return rows

    def solve(self) -> list[int]:
        """The least steps that satisfy all constraints."""
        steps = [0] * len(self.messages)
        queue = list(range(len(self.messages)))
        while queue:
            following: list[int] = []
            for a in queue:
                for b, gap in self.later[a]:
                    if steps[b] < steps[a] + gap:
                        steps[b] = steps[a] + gap
                        following.append(b)
                        if steps[b] > len(self.messages):
                            message = self.messages[b]
                            raise self.refuse(message.source, message.value.chunk, "would need a step before itself")
            queue = list(dict.fromkeys(following))
        return steps
