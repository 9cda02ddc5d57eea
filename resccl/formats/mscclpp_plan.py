"""A plan from an MSCCL++ plan: one-sided accesses to shared memory become messages.

A write to another rank's memory becomes a Send, and a Recv by that rank in the thread block that waits for the signal
that follows the write, where it waits; for packets, in front of whoever reads them. A read of another rank's memory
becomes a Recv, and a Send by that rank in the thread block that signals before the read, where it signals. Nobody can
tell the difference who did not race. Where nobody waits or signals, a thread block is added. Signals, waits and
barriers then have no other meaning than the order of accesses to each chunk, which becomes dependencies.

Operations on switch memory (multimem loads and stores: glres, gstore) are done by messages as well, one a rank.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from resccl.formats.common import FEW_SLOTS, MAX_CHANNEL, FormatError, Imported
from resccl.formats.mscclpp_json import Cell, MscclppPlan, parse_mscclpp
from resccl.formats.mscclpp_trace import Happening, Trace, trace
from resccl.formats.placement import Memory, guard_scratch, order_twins, place, read_the_copy
from resccl.formats.program import Connection, Event, Instruction, Program, RankProgram, Run, can_run, run, to_plan
from resccl.formats.reduction_order import same_order_everywhere

MAX_OPERANDS = 64
"""Of a Fold: what an executor takes (csrc/executor)."""

_Home = tuple[int, int]  # (rank, thread block)
_Key = tuple[int, int, int]  # position in the trace, before (-1), at (0) or after it (1, 2), running number


@dataclass(slots=True)
class _Message:
    """A message: who sends and receives it, and when."""

    sender: _Home
    receiver: _Home
    sent: _Key = (0, 0, 0)
    received: _Key = (0, 0, 0)


@dataclass(slots=True)
class _Planned:
    """An instruction on cells of its rank, whose connections are not numbered yet."""

    key: _Key
    home: _Home
    instruction: Instruction
    takes: list[_Message] = field(default_factory=list)
    gives: _Message | None = None


@dataclass
class _Accesses:
    """Positions at which a cell is read or written, in order."""

    all: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)


def import_mscclpp_json(data: bytes, name: str = "plan.json") -> Imported:
    """The plan in the MSCCL++ JSON document `data` (mscclpp_json.py has the format); `name` stands for it in messages.

    Raises FormatError naming file, gpu, threadblock and operation where the file is wrong, waits for ever, or holds an
    operation that is not known.
    """
    source = parse_mscclpp(data, name)
    found = trace(source, name)
    program, memories, order = _assemble(source, _Translation(source, found, eager=True).go())
    if not can_run(program, FEW_SLOTS):
        program, memories, order = _assemble(source, _Translation(source, found, eager=False).go())
        program.notes.append("messages are sent when they are taken, as it would wait for slots otherwise")
    if not source.shared:
        read_the_copy(program, order)
    place(program, order, memories)
    order = same_order_everywhere(program, run(program))
    if not source.shared:
        order_twins(program, order)
    guard_scratch(program, order)
    _note(program.notes, source, found)
    return Imported("plan", plan=to_plan(program), meta=source.meta, notes=program.notes)


def _note(notes: list[str], source: MscclppPlan, found: Trace) -> None:
    names = {h.operation.where.rsplit("(", 1)[-1].rstrip(")") for h in found.happenings}
    switched = sorted(names & {"glres", "gstore"})
    if switched:
        notes.append(f"{' and '.join(switched)} need switch memory: done by a message a rank, with that much traffic")
    if found.unheard:
        notes.append(f"{found.unheard} signals that nothing waits for; a second run there would begin with them")
    if found.races:
        first, second, cell = found.races[0]
        notes.append(
            f"{len(found.races)} pairs of accesses are not ordered by its own signals and waits (the first: "
            f"{second.operation.where} and {first.operation.where}, chunk {cell[2]} of buffer '{cell[1]}' of gpu "
            f"{cell[0]}); here the one named last comes first"
        )


def _position(h: Happening) -> int:
    return h.position


class _Translation:
    """`eager`: sends where the signal is, receives where the wait is; else both at the access itself, in turn, so that
    one slot is enough for a connection.
    """

    def __init__(self, source: MscclppPlan, found: Trace, eager: bool) -> None:
        self.found = found
        self.eager = eager
        self.planned: list[_Planned] = []
        self.running = 0
        self.accesses: dict[Cell, _Accesses] = defaultdict(_Accesses)
        self.waits: dict[int, list[Happening]] = defaultdict(list)
        self.signals: dict[int, list[Happening]] = defaultdict(list)
        self.extra: dict[tuple[int, _Home], _Home] = {}
        self.blocks = [len(rank) for rank in source.blocks]
        for h in found.happenings:
            if h.operation.kind == "wait":
                self.waits[h.rank].append(h)
            elif h.operation.kind == "signal":
                self.signals[h.rank].append(h)
            for cell in dict.fromkeys(c for c, _ in h.operation.reads + h.operation.writes):
                self.accesses[cell].all.append(h.position)
            for cell, _ in h.operation.writes:
                self.accesses[cell].writes.append(h.position)
        # Packets that only their reader wants, and that it can take from the message: by cell and reader's position.
        self.taken: dict[tuple[Cell, int], _Message] = {}

    def go(self) -> list[_Planned]:
        for h in self.found.happenings:
            if h.operation.kind == "move":
                self.move(h)
        return self.planned

    def key(self, position: int, side: int) -> _Key:
        self.running += 1
        return (position, side, self.running)

    def add(
        self,
        key: _Key,
        home: _Home,
        h: Happening,
        opcode: str,
        src: Cell | None = None,
        dst: Cell | None = None,
        takes: Sequence[_Message] = (),
        gives: _Message | None = None,
    ) -> None:
        for message in takes:
            message.received = key
        if gives is not None:
            gives.sent = key
        places = [None if cell is None else (cell[1], cell[2]) for cell in (src, dst)]
        instruction = Instruction(opcode, src=places[0], dst=places[1], where=h.operation.where)
        self.planned.append(_Planned(key, home, instruction, list(takes), gives))

    def service(self, rank: int, h: Happening) -> _Home:
        """A thread block that does `rank`'s part of what the thread block of `h` does to its memory."""
        who = (rank, (h.rank, h.block))
        if who not in self.extra:
            self.extra[who] = (rank, self.blocks[rank])
            self.blocks[rank] += 1
        return self.extra[who]

    def next_access(self, cell: Cell, position: int) -> int | None:
        found = self.accesses[cell].all
        n = bisect_right(found, position)
        return found[n] if n < len(found) else None

    def give(self, h: Happening, cell: Cell, packet: bool) -> _Message | None:
        """The message by which `h` writes another rank's cell, with its Recv. None: a packet that nobody reads."""
        rank = cell[0]
        following = self.next_access(cell, h.position)
        reader = None if following is None else self.found.happenings[following]
        if packet and (reader is None or (cell, True) not in reader.operation.reads):
            return None
        waits = self.waits[rank]
        later = range(bisect_right(waits, h.position, key=_position), len(waits))
        wait = next((waits[n] for n in later if waits[n].after(h)), None)
        if reader is not None and (wait is None or reader.position < wait.position):
            home = (rank, wait.block) if wait is not None else (rank, reader.block)
            if reader.rank != rank:
                home = (rank, wait.block) if wait is not None else self.service(rank, h)
            elif packet:
                home = (rank, reader.block)
            message = _Message((h.rank, h.block), home)
            if packet and reader.rank == rank and self.eager and self.only_reader(cell, reader):
                self.taken[cell, reader.position] = message
                return message
            key = self.key(reader.position, -1)
        elif wait is not None:
            message = _Message((h.rank, h.block), (rank, wait.block))
            key = self.key(wait.position, 0)
        else:
            message = _Message((h.rank, h.block), self.service(rank, h))
            key = self.key(h.position, 1)
        if not self.eager:
            key = self.key(h.position, 1)
        self.add(key, message.receiver, h, "Recv", dst=cell, takes=[message])
        return message

    def only_reader(self, cell: Cell, reader: Happening) -> bool:
        """Whether the value that `reader` reads is wanted by nobody after it."""
        position = self.next_access(cell, reader.position)
        if cell in [c for c, _ in reader.operation.writes]:
            return False
        return position is None or cell not in [c for c, _ in self.found.happenings[position].operation.reads]

    def take(self, h: Happening, cell: Cell) -> _Message:
        """The message by which `h` reads another rank's cell, with its Send."""
        rank = cell[0]
        writes = self.accesses[cell].writes
        n = bisect_left(writes, h.position)
        written = self.found.happenings[writes[n - 1]] if n else None
        signals = self.signals[rank]
        earlier = range(bisect_left(signals, h.position, key=_position) - 1, -1, -1)
        signal = next((signals[n] for n in earlier if h.after(signals[n])), None)
        if signal is not None and (written is None or written.position < signal.position):
            home, key = (rank, signal.block), self.key(signal.position, 1)
        elif written is not None:
            if written.rank == rank:
                home = (rank, written.block)
            else:
                home = (rank, signal.block) if signal is not None else self.service(rank, h)
            key = self.key(written.position, 2)
        else:
            home, key = self.service(rank, h), self.key(h.position, -1)
        if not self.eager:
            key = self.key(h.position, -1)
        message = _Message(home, (h.rank, h.block))
        self.add(key, home, h, "Send", src=cell, gives=message)
        return message

    def move(self, h: Happening) -> None:
        """The sum of all that the operation reads, to all that it writes."""
        local: list[Cell] = []
        takes: list[_Message] = []
        first_packet: Cell | None = None
        for cell, _ in h.operation.reads:
            if cell[0] != h.rank:
                takes.append(self.take(h, cell))
            elif (cell, h.position) in self.taken:
                takes.append(self.taken.pop((cell, h.position)))
                first_packet = first_packet or cell
            else:
                local.append(cell)
        own = [cell for cell, _ in h.operation.writes if cell[0] == h.rank]
        gives = [
            message
            for cell, packet in h.operation.writes
            if cell[0] != h.rank and (message := self.give(h, cell, packet)) is not None
        ]
        _Emission(self, h, local, takes, own, gives, first_packet).go()


@dataclass
class _Emission:
    """The instructions of one move: `local` cells plus what `takes` bring, to `own` cells and as `gives`."""

    to: _Translation
    h: Happening
    local: list[Cell]
    takes: list[_Message]
    own: list[Cell]
    gives: list[_Message]
    spare: Cell | None

    def go(self) -> None:
        if not self.takes and len(self.local) == 1:
            for cell in self.own:
                self.add("Copy", src=self.local[0], dst=cell)
            for message in self.gives:
                self.add("Send", src=self.local[0], gives=message)
            return
        target = self.own[0] if self.own else self.spare
        one_of_each = len(self.local) == 1 and len(self.takes) == 1 and len(self.gives) == 1
        if target is None and one_of_each:
            self.add("RecvReduceSend", src=self.local[0], takes=self.takes, gives=self.gives[0])
            return
        if target is None:
            raise FormatError(f"{self.h.operation.where} sums up chunks and keeps the sum nowhere")
        self.into(target)
        for cell in self.own[1:]:
            self.add("Copy", src=target, dst=cell)
        for message in self.gives:
            self.add("Send", src=target, gives=message)

    def into(self, target: Cell) -> None:
        """The sum in `target`; a receive sends it on as well where there is something to send."""
        current = self.locals_into(target)
        if 1 < len(self.takes) < MAX_OPERANDS:
            self.add("Fold", src=current, dst=target, takes=self.takes)
            return
        for n, message in enumerate(self.takes):
            fused = self.gives.pop(0) if self.gives and n == len(self.takes) - 1 else None
            if current is None:
                self.add("RecvCopySend" if fused else "Recv", dst=target, takes=[message], gives=fused)
            else:
                opcode = "RecvReduceCopySend" if fused else "RecvReduceCopy"
                self.add(opcode, src=current, dst=target, takes=[message], gives=fused)
            current = target

    def locals_into(self, target: Cell) -> Cell | None:
        """Reduces all but one of the local cells into `target`; returns what the rest is to be combined with."""
        if len(self.local) < 2:
            return self.local[0] if self.local else None
        rest = list(self.local)
        if target in rest:
            rest.remove(target)
        else:
            self.add("Copy", src=rest.pop(0), dst=target)
        for cell in rest:
            self.add("Reduce", src=cell, dst=target)
        return target

    def add(
        self,
        opcode: str,
        src: Cell | None = None,
        dst: Cell | None = None,
        takes: Sequence[_Message] = (),
        gives: _Message | None = None,
    ) -> None:
        h = self.h
        self.to.add(self.to.key(h.position, 0), (h.rank, h.block), h, opcode, src, dst, takes, gives)


def _assemble(source: MscclppPlan, planned: list[_Planned]) -> tuple[Program, list[Memory], Run]:
    """Thread blocks from the instructions, each in the order of its keys; connections; dependencies."""
    space = source.space
    program = Program(source.name, space, [RankProgram() for _ in range(space.ranks)], list(source.notes))
    memories = [Memory(space, r, source.shared) for r in range(space.ranks)]
    planned.sort(key=lambda p: p.key)
    _connect(program, planned)
    # Thread blocks that only waited and signalled are left out.
    homes = sorted({p.home for p in planned})
    number: dict[_Home, int] = {}
    for rank, block in homes:
        number[rank, block] = len(program.ranks[rank].thread_blocks)
        program.ranks[rank].thread_blocks.append([])
    order: list[Event] = []
    for p in planned:
        blocks = program.ranks[p.home[0]].thread_blocks
        t = number[p.home]
        order.append((p.home[0], t, len(blocks[t])))
        blocks[t].append(p.instruction)
    _depend(program, memories, order)
    return program, memories, Run(order, {})


def _connect(program: Program, planned: list[_Planned]) -> None:
    """One connection for each pair of thread blocks; another where messages would overtake each other."""
    lanes: dict[tuple[_Home, _Home], list[_Key]] = defaultdict(list)
    chosen: dict[int, tuple[_Home, _Home, int]] = {}
    for p in planned:
        if p.gives is not None:
            message = p.gives
            ends = lanes[message.sender, message.receiver]
            lane = next((n for n, last in enumerate(ends) if last < message.received), len(ends))
            ends[lane : lane + 1] = [message.received]
            chosen[id(message)] = (message.sender, message.receiver, lane)
    channels: dict[tuple[int, int], int] = defaultdict(int)
    indices: dict[tuple[_Home, _Home, int], tuple[int, int]] = {}
    for who in sorted(set(chosen.values())):
        source, target = who[0][0], who[1][0]
        channel = channels[source, target]
        channels[source, target] += 1
        if channel > MAX_CHANNEL:
            raise FormatError(f"gpus {source} and {target} need more than {MAX_CHANNEL} channels")
        outgoing, incoming = program.ranks[source].connections, program.ranks[target].connections
        indices[who] = len(outgoing), len(incoming)
        outgoing.append(Connection(target, True, channel))
        incoming.append(Connection(source, False, channel))
    for p in planned:
        if p.gives is not None:
            p.instruction.send = indices[chosen[id(p.gives)]][0]
        received = [indices[chosen[id(message)]][1] for message in p.takes]
        if p.instruction.opcode == "Fold":
            p.instruction.fold = received if p.instruction.src is None else [-1, *received]
        elif received:
            p.instruction.recv = received[0]


def _depend(program: Program, memories: list[Memory], order: list[Event]) -> None:
    """Keeps the order of every two accesses to a cell, one of which writes."""
    writer: dict[tuple[int, str, int], tuple[int, int]] = {}
    readers: dict[tuple[int, str, int], list[tuple[int, int]]] = defaultdict(list)
    for r, t, s in order:
        instruction = program.at((r, t, s))
        earlier: list[tuple[int, int]] = []
        for name in instruction.reads():
            cell = (r, *memories[r].cell(*name))
            earlier.extend([writer[cell]] if cell in writer else [])
            readers[cell].append((t, s))
        if instruction.dst is not None:
            cell = (r, *memories[r].cell(*instruction.dst))
            earlier.extend(readers.pop(cell, []))
            earlier.extend([writer[cell]] if cell in writer else [])
            writer[cell] = (t, s)
        last = dict(sorted(earlier))
        instruction.dependencies = [(on, step, 0) for on, step in sorted(last.items()) if on != t]
