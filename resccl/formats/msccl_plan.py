"""A plan from an MSCCL schedule: thread blocks, channels, steps and dependencies as the file has them."""

from __future__ import annotations

from resccl.formats.common import FEW_SLOTS, FormatError, Imported
from resccl.formats.msccl_relax import interleave, separate_directions
from resccl.formats.msccl_xml import TYPES, Gpu, MscclAlgorithm, Step, parse_msccl
from resccl.formats.placement import Memory, guard_scratch, order_twins, place, read_the_copy
from resccl.formats.program import Connection, Instruction, Program, RankProgram, Run, Stuck, can_run, run, to_plan
from resccl.formats.reduction_order import same_order_everywhere
from resccl.formats.spaces import Space, pieces_for, too_many_chunks


def import_msccl_xml(data: bytes, name: str = "schedule.xml") -> Imported:
    """The plan in the MSCCL XML document `data` (msccl_xml.py has the format); `name` stands for it in messages.

    Raises FormatError naming file, gpu, tb and step where the file is wrong or its thread blocks wait in a circle.
    """
    algorithm = parse_msccl(data, name)
    space = _space(algorithm, name)
    shared = _runs_in_place_only(algorithm)
    program = Program(algorithm.name, space, [_rank(gpu, algorithm.notes) for gpu in algorithm.gpus], algorithm.notes)
    memories = [Memory(space, gpu.id, shared, _copies(gpu, space)) for gpu in algorithm.gpus]
    order = _ordered(program, memories, name)
    if not shared:
        read_the_copy(program, order)
    place(program, order, memories)
    order = same_order_everywhere(program, run(program))
    if not shared:
        order_twins(program, order)
    guard_scratch(program, order)
    meta = {
        "format": "msccl-xml",
        "name": algorithm.name,
        "collective": space.collective,
        "in_place": algorithm.in_place if algorithm.in_place is not None else shared,
        "out_of_place": algorithm.out_of_place if algorithm.out_of_place is not None else not shared,
        **algorithm.meta,
    }
    return Imported("plan", plan=to_plan(program), meta=meta, notes=program.notes)


def _space(algorithm: MscclAlgorithm, name: str) -> Space:
    ranks = len(algorithm.gpus)
    chunks = algorithm.loop_chunks
    if chunks == 0:
        chunks = max(max(g.chunks["i"], g.chunks["o"]) for g in algorithm.gpus)
        algorithm.notes.append(f"it has no nchunksperloop: {chunks}, its largest buffer, is assumed")
    pieces = pieces_for(algorithm.collective, ranks, chunks)
    if pieces is None:
        raise FormatError(
            f"{name}: nchunksperloop={chunks} cannot be cut into {ranks} blocks as {algorithm.collective} demands"
        )
    space = Space(algorithm.collective, ranks, algorithm.root, pieces)
    steps = sum(step.count for g in algorithm.gpus for tb in g.thread_blocks for step in tb.steps)
    if too_many_chunks(space, steps):
        raise FormatError(
            f"{name}: nchunksperloop={chunks} are more chunks than its steps, which move {steps}, can fill"
        )
    return space


def _runs_in_place_only(algorithm: MscclAlgorithm) -> bool:
    """Whether the file's input and output are one memory."""
    writes = any(s.dst and s.dst[0] == "o" for g in algorithm.gpus for tb in g.thread_blocks for s in tb.steps)
    copies = any(g.copies for g in algorithm.gpus)
    if algorithm.in_place is False and algorithm.out_of_place is False:
        algorithm.notes.append("it says that it runs neither in place nor out of place")
    if algorithm.out_of_place or (algorithm.out_of_place is None and algorithm.in_place is False):
        if writes or copies:
            return False
        algorithm.notes.append("it says that it runs out of place, and writes no output: taken as in place")
        return True
    if algorithm.in_place or algorithm.out_of_place is False:
        return True
    algorithm.notes.append("it does not say whether it runs in place: told from the buffers that it uses")
    return all(g.chunks["i"] == 0 or g.chunks["o"] == 0 for g in algorithm.gpus)


def _copies(gpu: Gpu, space: Space) -> list[tuple[int, int]]:
    rank = gpu.id
    return [(i, o) for i, o in gpu.copies if i < space.inputs(rank) and o < space.outputs(rank)]


def _rank(gpu: Gpu, notes: list[str]) -> RankProgram:
    """One rank with cells of the file; nops that only wait are merged into the step after them."""
    rank = RankProgram()
    index_of = {tb.id: t for t, tb in enumerate(gpu.thread_blocks)}
    awaited = {step.depends for tb in gpu.thread_blocks for step in tb.steps if step.depends is not None}
    # Where each step of the file ends in the expanded thread block; -1: before its first instruction.
    last: list[list[int]] = []
    for tb in gpu.thread_blocks:
        ends = {}
        for peer, outgoing in ((tb.send, True), (tb.recv, False)):
            if peer >= 0 and any(_moves(step, outgoing) for step in tb.steps):
                ends[outgoing] = len(rank.connections)
                rank.connections.append(Connection(peer, outgoing, tb.channel))
        block: list[Instruction] = []
        last.append([])
        waits: list[tuple[int, int, int]] = []
        for step in tb.steps:
            if step.depends is not None:
                waits.append((index_of[step.depends[0]], step.depends[1], 0))
            if step.type != "nop" or (tb.id, step.s) in awaited:
                block.extend(_expanded(step, ends, list(dict.fromkeys(waits))))
                waits = []
            last[-1].append(len(block) - 1)
        rank.thread_blocks.append(block)
    for t, block in enumerate(rank.thread_blocks):
        for n, instruction in enumerate(block):
            moved = ((on, last[on][s], d) for on, s, d in instruction.dependencies)
            # What comes earlier in its own thread block is over anyway.
            instruction.dependencies = [d for d in moved if d[0] != t or d[1] >= n]
    return rank


def _moves(step: Step, outgoing: bool) -> bool:
    opcode = TYPES[step.type]
    return "Send" in opcode if outgoing else opcode.startswith("Recv")


def _expanded(step: Step, ends: dict[bool, int], waits: list[tuple[int, int, int]]) -> list[Instruction]:
    """One instruction a chunk."""
    opcode = TYPES[step.type]
    return [
        Instruction(
            opcode,
            ends[False] if _moves(step, False) else -1,
            ends[True] if _moves(step, True) else -1,
            None if step.src is None else (step.src[0], step.src[1] + n),
            None if step.dst is None else (step.dst[0], step.dst[1] + n),
            waits if n == 0 else [],
            step.where,
        )
        for n in range(max(step.count, 1))
    ]


def _ordered(program: Program, memories: list[Memory], name: str) -> Run:
    """An order in which the schedule can run; where it waits in a circle, after taking sends and receives apart."""
    try:
        return run(program, FEW_SLOTS)
    except Stuck:
        pass
    try:
        order = run(program)
    except Stuck as stuck:
        return _taken_apart(program, memories, name, stuck.circle)
    return run(program) if interleave(program, memories) else order


def _taken_apart(program: Program, memories: list[Memory], name: str, circle: str) -> Run:
    """An order for a schedule that waits in a circle, once sends and receives have thread blocks of their own."""
    separated = separate_directions(program, memories)
    if not separated or not can_run(program, None):
        raise FormatError(f"{name} would wait for ever: {circle}")
    program.notes.append(
        f"as it stands its thread blocks wait for each other ({circle}); in {separated} of them receives and sends got "
        "thread blocks of their own, which keeps the order of accesses to each chunk"
    )
    return run(program)
