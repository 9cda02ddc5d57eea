"""Schedules whose thread blocks wait for each other over the order of a thread block's sends and receives.

TE-CCL's converter writes files in which all thread blocks begin with a receive from the very peer whose matching
thread block begins with a receive as well. And a step that sends many chunks, then one that receives as many, is many
messages here, which need as many slots. The order between sends and receives of different chunks says nothing about
data, so it may go; the order of accesses to one chunk stays.
"""

from __future__ import annotations

from resccl.formats.placement import Cell, Memory
from resccl.formats.program import Instruction, Program, RankProgram


def separate_directions(program: Program, memories: list[Memory]) -> int:
    """Moves the sends of each thread block that also receives, and never does both at once, to a new thread block.

    Returns how many thread blocks were taken apart.
    """
    return sum(_separate(rank, memory) for rank, memory in zip(program.ranks, memories, strict=True))


def _separate(rank: RankProgram, memory: Memory) -> int:
    chosen = [t for t, block in enumerate(rank.thread_blocks) if _separable(block)]
    target = {t: len(rank.thread_blocks) + n for n, t in enumerate(chosen)}
    moved: dict[tuple[int, int], tuple[int, int]] = {}
    blocks: list[list[Instruction]] = [[] for _ in range(len(rank.thread_blocks) + len(chosen))]
    for t, block in enumerate(rank.thread_blocks):
        for s, instruction in enumerate(block):
            home = target[t] if t in target and instruction.send >= 0 else t
            moved[t, s] = (home, len(blocks[home]))
            blocks[home].append(instruction)
    for t, block in enumerate(rank.thread_blocks):
        for instruction in block:
            instruction.dependencies = [(*moved[on, s], d) for on, s, d in instruction.dependencies]
        if t in target:
            _keep_order(block, [moved[t, s] for s in range(len(block))], memory)
    rank.thread_blocks = blocks
    return len(chosen)


def _separable(block: list[Instruction]) -> bool:
    both = any(i.send >= 0 and i.recv >= 0 for i in block)
    return not both and any(i.send >= 0 for i in block) and any(i.recv >= 0 for i in block)


def _keep_order(block: list[Instruction], homes: list[tuple[int, int]], memory: Memory) -> None:
    """Dependencies for pairs of accesses to one cell, one of which writes, that came to be in two thread blocks."""
    writer: dict[Cell, int] = {}
    readers: dict[Cell, list[int]] = {}
    for s, instruction in enumerate(block):
        earlier: list[int] = []
        for cell in (memory.cell(*name) for name in instruction.reads()):
            earlier.extend([writer[cell]] if cell in writer else [])
            readers.setdefault(cell, []).append(s)
        if instruction.dst is not None:
            cell = memory.cell(*instruction.dst)
            earlier.extend(readers.pop(cell, []))
            earlier.extend([writer[cell]] if cell in writer else [])
            writer[cell] = s
        for e in earlier:
            if homes[e][0] != homes[s][0] and (*homes[e], 0) not in instruction.dependencies:
                instruction.dependencies.append((*homes[e], 0))


def interleave(program: Program, memories: list[Memory]) -> int:
    """Lets thread blocks that send several chunks and then receive several do so by turns. Returns how many.

    Only where the receives wait for nothing else and touch other cells.
    """
    changed = 0
    for rank, memory in zip(program.ranks, memories, strict=True):
        moved: dict[tuple[int, int], int] = {}
        for t, block in enumerate(rank.thread_blocks):
            turns = _turns(block, memory)
            changed += turns != list(range(len(block)))
            moved.update(((t, s), n) for n, s in enumerate(turns))
            rank.thread_blocks[t] = [block[s] for s in turns]
        for block in rank.thread_blocks:
            for instruction in block:
                instruction.dependencies = [(t, moved[t, s], d) for t, s, d in instruction.dependencies]
    return changed


def _turns(block: list[Instruction], memory: Memory) -> list[int]:
    """The new order of a thread block, as old steps."""
    result: list[int] = []
    s = 0
    while s < len(block):
        sends = _group(block, s, "Send")
        receives = _group(block, s + sends, "Recv")
        both = range(s, s + sends + receives)
        if sends > 1 and receives > 1 and _independent([block[n] for n in both], sends, memory):
            for n in range(max(sends, receives)):
                result.extend([s + n] if n < sends else [])
                result.extend([s + sends + n] if n < receives else [])
        else:
            result.extend(both or [s])
        s += max(len(both), 1)
    return result


def _group(block: list[Instruction], begin: int, opcode: str) -> int:
    """How many instructions from `begin` on are of one step of the file and do `opcode`."""
    end = begin
    while end < len(block) and block[end].opcode == opcode and block[end].where == block[begin].where:
        end += 1
    return end - begin


def _independent(instructions: list[Instruction], sends: int, memory: Memory) -> bool:
    read = {memory.cell(*i.src) for i in instructions[:sends] if i.src is not None}
    written = {memory.cell(*i.dst) for i in instructions[sends:] if i.dst is not None}
    return not read & written and not any(i.dependencies for i in instructions[sends:])
