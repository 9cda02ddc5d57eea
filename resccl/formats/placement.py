"""From the memory that a file names to the places of a plan.

A plan never writes its input, and is right in place and out of place; files assume one of the two. So a cell of the
file's memory (buffer, offset) lies in the input until it is first written, and in the output (or scratch, where the
output has no such chunk) from then on: `Memory` follows the cells through one order in which everything can happen.
In a schedule without races every such order moves the same values; the verifier refuses the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from resccl.collectives import REDUCING
from resccl.formats.common import FormatError
from resccl.formats.program import Event, Instruction, Program, Run, rebuilt
from resccl.formats.spaces import Place, Space

Cell = tuple[str, int]
"""(buffer, offset) as files have it: buffer is "i", "o" or "s"."""


@dataclass
class Memory:
    """The cells of one rank. `shared`: the file's input and output are one memory (it only runs in place)."""

    space: Space
    rank: int
    shared: bool
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(input, output) pairs that the file wants copied before anything else."""
    now: dict[Cell, Place] = field(default_factory=dict)
    homes: dict[Cell, Place] = field(default_factory=dict)
    scratch: int = 0

    def __post_init__(self) -> None:
        for index in range(self.space.inputs(self.rank)):
            self.now[self.cell("i", index)] = ("input", index)
        for source, target in self.copies:
            self.now.setdefault(("o", target), ("input", source))

    def cell(self, buffer: str, offset: int) -> Cell:
        """The one name of a cell."""
        if not self.shared or buffer == "s":
            return (buffer, offset)
        if buffer == "i":
            twin = self.space.output_twin(self.rank, offset)
            return ("i", offset) if twin is None else ("o", twin)
        # Only the root of a Reduce has an output; the others have the one memory all the same.
        if self.space.collective == "Reduce" and self.space.outputs(self.rank) == 0:
            return ("i", offset)
        return ("o", offset)

    def read(self, name: Place) -> Place | None:
        """Where the value of a cell lies now; None where nothing has written it."""
        return self.now.get(self.cell(*name))

    def write(self, name: Place) -> Place:
        """Where a cell's new value goes."""
        cell = self.cell(*name)
        home = self.homes.get(cell)
        if home is None:
            if cell[0] == "o" and cell[1] < self.space.outputs(self.rank):
                home = ("output", cell[1])
            else:
                home = ("scratch", self.scratch)
                self.scratch += 1
            self.homes[cell] = home
        self.now[cell] = home
        return home

    def missing_copies(self) -> list[tuple[Place, Place]]:
        """(input, output) of what would be in the output by itself in place, and is not out of place."""
        pairs: list[tuple[Place, Place]] = []
        for index in range(self.space.outputs(self.rank)):
            place = self.now.get(("o", index))
            if place is not None and place[0] == "input":
                pairs.append((place, ("output", index)))
        return pairs


def place(program: Program, order: Run, memories: list[Memory]) -> None:
    """Replaces the cells of all instructions by places, in the order of `order`; adds the copies that this needs.

    Raises FormatError for an instruction that reads what nothing has written.
    """
    before: dict[Event, Place] = {}
    for event in order.order:
        instruction = program.at(event)
        memory = memories[event[0]]
        if instruction.opcode == "Copy" and _is_nothing(instruction, memory):
            instruction.dst = instruction.src  # rewritten below; what is missing out of place comes at the end
            continue
        source = None if instruction.src is None else _readable(memory, instruction.src, instruction.where)
        if instruction.opcode == "Reduce" and instruction.dst is not None:
            old = _readable(memory, instruction.dst, instruction.where)
            instruction.dst = memory.write(instruction.dst)
            if old != instruction.dst:
                before[event] = old
        elif instruction.dst is not None:
            instruction.dst = memory.write(instruction.dst)
        instruction.src = source
    copies = 0
    for r, rank in enumerate(program.ranks):

        def rewrite(t: int, s: int, i: Instruction, r: int = r) -> list[Instruction]:
            if i.opcode == "Copy" and i.src == i.dst:
                return [Instruction("Nop", dependencies=i.dependencies, where=i.where)]
            old = before.get((r, t, s))
            if old is None:
                return [i]
            # In place the copy is not nothing: it scales the input, where the request has a factor.
            copy = Instruction("Copy", src=old, dst=i.dst, dependencies=i.dependencies, where=i.where)
            i.dependencies = []
            return [copy, i]

        rank.thread_blocks = rebuilt(rank.thread_blocks, rewrite)
        copies += _append_copies(rank.thread_blocks, memories[r])
    if copies:
        program.notes.append(f"{copies} copies from input to output added, so that it is right out of place as well")


def read_the_copy(program: Program, order: Run) -> None:
    """Lets who reads an input chunk after it was copied to its twin in the output read that copy, while it is one.

    For schedules that were written for out of place only. In place a copy of a chunk to itself scales it where the
    request has a factor, and what is read from the input would be scaled once more.
    """
    if program.space.collective not in REDUCING:
        return
    copied: dict[tuple[int, int], tuple[int, int]] = {}
    readers: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for r, t, s in order.order:
        instruction = program.at((r, t, s))
        twin = _twin(program.space, r, instruction.src)
        copies = instruction.opcode == "Copy" and twin is not None and instruction.dst == ("o", twin)
        if twin is not None and (r, twin) in copied and not copies:
            instruction.src = ("o", twin)
            _wait_for(instruction, t, [copied[r, twin]])
            readers.setdefault((r, twin), []).append((t, s))
        if copies and twin is not None:
            copied.setdefault((r, twin), (t, s))
        elif instruction.dst is not None:
            target = instruction.dst[1] if instruction.dst[0] == "o" else _twin(program.space, r, instruction.dst)
            if target is not None and copied.pop((r, target), None) is not None:
                _wait_for(instruction, t, readers.pop((r, target), []))


def _twin(space: Space, rank: int, cell: Cell | None) -> int | None:
    return space.output_twin(rank, cell[1]) if cell is not None and cell[0] == "i" else None


def _wait_for(instruction: Instruction, t: int, others: list[tuple[int, int]]) -> None:
    """Adds dependencies on the last of `others` in each other thread block."""
    for on, step in sorted(dict(sorted(others)).items()):
        if on != t and (on, step, 0) not in instruction.dependencies:
            instruction.dependencies.append((on, step, 0))


def _is_nothing(copy: Instruction, memory: Memory) -> bool:
    """Whether a copy is from a cell to itself, which needs no order."""
    return copy.src is not None and copy.dst is not None and memory.cell(*copy.src) == memory.cell(*copy.dst)


def _readable(memory: Memory, name: Place, where: str) -> Place:
    found = memory.read(name)
    if found is None:
        raise FormatError(f"{where} reads chunk {name[1]} of buffer '{name[0]}', which nothing has written by then")
    return found


def _append_copies(blocks: list[list[Instruction]], memory: Memory) -> int:
    """Spreads the missing copies over the ends of the shortest thread blocks."""
    pairs = memory.missing_copies()
    if pairs and not blocks:
        blocks.append([])
    turns = sorted(range(len(blocks)), key=lambda t: (len(blocks[t]), t))
    for n, (source, target) in enumerate(pairs):
        where = f"rank {memory.rank}, copy of {source[0]}[{source[1]}] to {target[0]}[{target[1]}]"
        blocks[turns[n % len(turns)]].append(Instruction("Copy", src=source, dst=target, where=where))
    return len(pairs)


def guard_scratch(program: Program, order: Run) -> None:
    """Lets the first write to each scratch chunk wait for what the micro-batch before did to it.

    All micro-batches use the same scratch, and only the rank's own thread blocks touch it.
    """
    touched: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for r, t, s in order.order:
        instruction = program.at((r, t, s))
        for found in (instruction.src, instruction.dst):
            if found is not None and found[0] == "scratch":
                touched.setdefault((r, found[1]), []).append((t, s))
    for (r, _), accesses in touched.items():
        first_tb, first_step = accesses[0]
        writer = program.at((r, first_tb, first_step))
        for t, s in sorted(dict(accesses).items()):
            dependency = (t, s, 1)
            if t != first_tb and dependency not in writer.dependencies:
                writer.dependencies.append(dependency)


def order_twins(program: Program, order: Run) -> None:
    """Lets who overwrites an output chunk wait for who reads the input chunk that is the same memory in place.

    For schedules that were written for out of place only: there nothing needs this order.
    """
    scales = program.space.collective in REDUCING  # then a copy of a chunk to itself may change it
    readers: dict[tuple[int, Place], list[tuple[int, int]]] = {}
    for r, t, s in order.order:
        instruction = program.at((r, t, s))
        target = instruction.dst
        if instruction.src is not None and instruction.src[0] == "input":
            twin = program.space.canonical(r, instruction.src)
            if twin != target:
                readers.setdefault((r, twin), []).append((t, s))
            elif not scales:
                continue
        if target is not None and target[0] == "output":
            _wait_for(instruction, t, readers.pop((r, target), []))
