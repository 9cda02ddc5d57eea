"""Runs plans on tiny data in plain Python: the reference that the verifier is held to.

Nothing is shared with the C++ core, and nothing is clever. All ranks live in one process; an interleaving is a list of
(rank, TB, step, micro-batch), each an instruction that is issued whole. Every element of every buffer is a `Term`: it
knows where it comes from and who contributed to it, and carries a number beside that.

A run ends with nothing, or with a `Fault`:

- deadlock: some instructions are left and none can be issued;
- race: two instructions of a rank could both be issued next, touch the same memory, and one of them writes; or one
  could overwrite what a reference on its way still points to;
- value: what nobody has written is read, elements that do not belong together are combined, lengths differ, or an
  output is not what its collective demands;
- left over: a message that nobody took.

Plans are dicts as `resccl.plan.Plan` shows them.
"""

from __future__ import annotations

import random
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Occurrence = tuple[int, int, int, int]
Span = tuple[object, int, int]

REDUCING = ("AllReduce", "ReduceScatter", "Reduce")
FACTOR = 3  # by which a scaled request multiplies its input


class Term(NamedTuple):
    """An element: its place in the data of the collective, how it was put together, and the number that came of it."""

    where: tuple[int, ...]
    text: str
    number: int


@dataclass(frozen=True)
class Fault:
    """What went wrong; `kind` is deadlock, race, value or left_over."""

    kind: str
    text: str


class _Failed(Exception):
    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.fault = Fault(kind, text)


class ReplayError(ValueError):
    """An interleaving names an instruction that cannot be issued at that point."""


@dataclass(frozen=True)
class Setting:
    """How a plan is called, and on what.

    count: elements of a block; slot: elements of a message, so that there are ceil(longest piece / slot) micro-batches.
    slots: messages that a connection holds; 0: a send waits for its receiver. references: the share of Sends that pass
    a reference instead of a copy. scaled: the input is scaled where it is read (reducing collectives).
    """

    count: int = 4
    slot: int = 2
    slots: int = 2
    in_place: bool = False
    references: float = 0.0
    scaled: bool = False
    equal_bits: bool = True


def setting_for(plan: Mapping[str, Any], micro_batches: int, **others: Any) -> Setting:
    """Return a setting with that many micro-batches, in which all pieces are full: one element a message."""
    return Setting(count=micro_batches * int(plan["chunks_per_block"]), slot=1, **others)


@dataclass
class _Message:
    data: list[Term]
    source: tuple[int, Span] | None = None  # a reference: whose memory, and where
    read: bool = False
    over: bool = False  # read, and its receiver's instruction finished


@dataclass
class _Block:
    """A TB under way. `order` is what it runs, as (step, micro-batch)."""

    rank: int
    tb: int
    instructions: Sequence[Mapping[str, Any]]
    order: list[tuple[int, int]]
    position: int = 0
    posted: _Message | None = None  # without slots: what it waits for
    taken: list[_Message] = field(default_factory=list)  # ... and what is over when that is
    references: list[tuple[int, _Message]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.index = {each: i for i, each in enumerate(self.order)}

    def finished(self) -> int:
        """Return how many instructions are over, from its first: none beyond a reference that is still in use."""
        return min([self.position, *(at for at, message in self.references if not message.over)])


def blocks_of(collective: str, ranks: int, root: int, rank: int) -> tuple[int, int]:
    """Return how many blocks of `count` elements a rank's input and output have."""
    at_root = rank == root
    return {
        "AllReduce": (1, 1),
        "AllGather": (1, ranks),
        "ReduceScatter": (ranks, 1),
        "Broadcast": (int(at_root), 1),
        "Reduce": (1, int(at_root)),
        "AllToAll": (ranks, ranks),
        "Gather": (1, ranks if at_root else 0),
        "Scatter": (ranks if at_root else 0, 1),
    }[collective]


def contributions(collective: str, ranks: int, root: int, rank: int, block: int) -> list[tuple[int, int]]:
    """Return the (rank, input block) pairs that output block `block` of `rank` is made of."""
    if collective in ("AllReduce", "Reduce"):
        return [(source, 0) for source in range(ranks)]
    return {
        "ReduceScatter": [(source, rank) for source in range(ranks)],
        "AllGather": [(block, 0)],
        "Gather": [(block, 0)],
        "Broadcast": [(root, 0)],
        "Scatter": [(root, rank)],
        "AllToAll": [(block, rank)],
    }[collective]


class Interpreter:
    """One request on all ranks. Call run() or replay(), once."""

    def __init__(self, plan: Mapping[str, Any], setting: Setting, seed: int = 0) -> None:
        self.plan = plan
        self.setting = setting
        self.random = random.Random(seed)
        self.ranks = int(plan["ranks"])
        self.pieces = int(plan["chunks_per_block"])
        self.collective = str(plan["collective"])
        self.scaled = setting.scaled and self.collective in REDUCING
        self.sub_pipelines = plan.get("loop", "micro_batches") == "sub_pipelines"
        self.micro_batches = max(1, -(-self._piece_length(0) // setting.slot))
        self.issued: list[Occurrence] = []
        self.reference: Occurrence | None = None  # replay(): the one Send that passes one
        self.fifos: dict[tuple[int, int, int, int], deque[_Message]] = {}
        self.scratch: dict[tuple[int, int, int], list[Term]] = {}
        self.memory: list[list[Term | None]] = []
        self.base: list[dict[str, int]] = []
        self.blocks: list[list[_Block]] = []
        self.connections: list[Sequence[Mapping[str, Any]]] = []
        for part in plan["rank_plans"]:
            self._add_rank(part)

    # Layout ----------------------------------------------------------------------------------------------------------

    def _piece_length(self, piece: int) -> int:
        return self.setting.count // self.pieces + (piece < self.setting.count % self.pieces)

    def _piece_begin(self, piece: int) -> int:
        return piece * (self.setting.count // self.pieces) + min(piece, self.setting.count % self.pieces)

    def _add_rank(self, part: Mapping[str, Any]) -> None:
        rank, count = int(part["rank"]), self.setting.count
        inputs, outputs = blocks_of(self.collective, self.ranks, int(self.plan["root"]), rank)
        base = {"input": 0, "output": inputs * count}
        size = (inputs + outputs) * count
        if self.setting.in_place and inputs and outputs:
            if self.collective == "AllToAll":
                raise ValueError("AllToAll has no in-place form")
            base = {"input": 0, "output": 0}
            base["input" if outputs > inputs else "output"] = rank * count if outputs != inputs else 0
            size = max(inputs, outputs) * count
        memory: list[Term | None] = [None] * size
        for at in range(inputs * count):
            memory[base["input"] + at] = self._input_term(rank, at // count, at % count)
        self.memory.append(memory)
        self.base.append(base)
        self.connections.append(part["connections"])
        self.blocks.append([self._block(rank, tb, each) for tb, each in enumerate(part["thread_blocks"])])

    def _input_term(self, rank: int, block: int, element: int) -> Term:
        where = (block, element) if self.collective in REDUCING else (rank, block, element)
        number = random.Random(f"{rank}.{block}.{element}").randrange(1 << 20)
        return Term(where, str(rank), number)

    def _block(self, rank: int, tb: int, instructions: Sequence[Mapping[str, Any]]) -> _Block:
        steps = range(len(instructions))
        batches = range(self.micro_batches)
        if not self.sub_pipelines:
            return _Block(rank, tb, instructions, [(s, m) for m in batches for s in steps])
        order: list[tuple[int, int]] = []
        for sub in sorted({int(i.get("sub_pipeline", 0)) for i in instructions}):
            inside = [s for s in steps if int(instructions[s].get("sub_pipeline", 0)) == sub]
            order += [(s, m) for m in batches for s in inside]
        return _Block(rank, tb, instructions, order)

    def _span(self, rank: int, place: Sequence[Any], micro_batch: int) -> Span:
        """Return which memory of the rank a place is, of one micro-batch."""
        buffer, index = str(place[0]), int(place[1])
        if buffer == "scratch":
            return ((index, micro_batch if self.sub_pipelines else 0), 0, 1)
        block, piece = divmod(index, self.pieces)
        length = self._piece_length(piece)
        begin = self.base[rank][buffer] + block * self.setting.count + self._piece_begin(piece)
        first = min(micro_batch * self.setting.slot, length)
        return ("memory", begin + first, begin + min(first + self.setting.slot, length))

    # What an instruction does ----------------------------------------------------------------------------------------

    def _load(self, rank: int, place: Sequence[Any], micro_batch: int) -> list[Term]:
        terms = self._load_span(rank, self._span(rank, place, micro_batch), place)
        if not self.scaled or place[0] != "input":
            return terms
        return [Term(t.where, "s" + t.text, t.number * FACTOR) for t in terms]

    def _load_span(self, rank: int, span: Span, place: Sequence[Any]) -> list[Term]:
        key, begin, end = span
        if isinstance(key, tuple):
            if (rank, *key) not in self.scratch:
                raise _Failed("value", f"rank {rank} reads {list(place)}, which nobody has written")
            return list(self.scratch[rank, key[0], key[1]])
        terms = self.memory[rank][begin:end]
        if any(term is None for term in terms):
            raise _Failed("value", f"rank {rank} reads {list(place)}, which nobody has written")
        return [term for term in terms if term is not None]

    def _store(self, rank: int, place: Sequence[Any], micro_batch: int, terms: list[Term]) -> None:
        key, begin, end = self._span(rank, place, micro_batch)
        if isinstance(key, tuple):
            self.scratch[rank, key[0], key[1]] = list(terms)
            return
        if len(terms) != end - begin:
            raise _Failed("value", f"rank {rank}: {len(terms)} elements for the {end - begin} of {list(place)}")
        self.memory[rank][begin:end] = terms

    def _fifo(self, rank: int, connection: int) -> deque[_Message]:
        c = self.connections[rank][connection]
        ends = (rank, int(c["peer"])) if c["outgoing"] else (int(c["peer"]), rank)
        return self.fifos.setdefault((*ends, int(c.get("rail", 0)), int(c.get("channel", 0))), deque())

    def _take(self, block: _Block, connection: int) -> list[Term]:
        message = self._fifo(block.rank, connection).popleft()
        message.read = True
        block.taken.append(message)
        if message.source is None:
            return message.data
        return self._load_span(*message.source, ("a reference of rank", message.source[0]))

    @staticmethod
    def _combine(left: list[Term], right: list[Term]) -> list[Term]:
        if [t.where for t in left] != [t.where for t in right]:
            raise _Failed("value", "elements are combined that do not belong together")
        return [Term(a.where, f"({a.text}+{b.text})", a.number + b.number) for a, b in zip(left, right, strict=True)]

    def _execute(self, block: _Block, i: Mapping[str, Any], micro_batch: int) -> None:
        rank, opcode, src, dst = block.rank, str(i["opcode"]), i.get("src"), i.get("dst")
        local = self._load(rank, src, micro_batch) if src else []
        result: list[Term] = local
        if opcode == "Nop":
            return
        if opcode in ("Recv", "RecvCopySend"):
            result = self._take(block, int(i["recv"]))
        elif opcode.startswith("RecvReduce"):
            arrived = self._take(block, int(i["recv"]))
            result = self._combine(arrived, local) if i.get("recv_is_left") else self._combine(local, arrived)
        elif opcode == "Reduce":
            result = self._combine(self._load(rank, dst or (), micro_batch), local)
        elif opcode == "Fold":
            operands = [local if int(f) < 0 else self._take(block, int(f)) for f in i["fold"]]
            result = operands[0]
            for operand in operands[1:]:
                result = self._combine(result, operand)
        if dst:
            self._store(rank, dst, micro_batch, result)
        if int(i.get("send", -1)) >= 0:
            self._send(block, i, micro_batch, result)

    def _send(self, block: _Block, i: Mapping[str, Any], micro_batch: int, data: list[Term]) -> None:
        message = _Message(data)
        if i["opcode"] == "Send" and not self.scaled and self._passes_reference(block):
            message.source = (block.rank, self._span(block.rank, i["src"], micro_batch))
            if self.setting.slots > 0:
                block.references.append((block.position, message))
        if self.setting.slots == 0:
            block.posted = message
        self._fifo(block.rank, int(i["send"])).append(message)

    def _passes_reference(self, block: _Block) -> bool:
        if self.reference is not None:
            return (block.rank, block.tb, *block.order[block.position]) == self.reference
        return self.setting.slots == 0 or self.random.random() < self.setting.references

    # Which instruction may come next ---------------------------------------------------------------------------------

    def _next(self, block: _Block) -> tuple[Mapping[str, Any], int] | None:
        """Return the next instruction of a TB and its micro-batch, if it can be issued."""
        if block.position == len(block.order) or block.posted is not None:
            return None
        step, micro_batch = block.order[block.position]
        i = block.instructions[step]
        for tb, on, distance in i.get("dependencies", ()):
            other = self.blocks[block.rank][tb]
            if micro_batch >= distance and other.finished() <= other.index[on, micro_batch - distance]:
                return None
        if any(not self._fifo(block.rank, c) for c in _incoming(i)):
            return None
        send = int(i.get("send", -1))
        if send >= 0 and 0 < self.setting.slots <= len(self._fifo(block.rank, send)):
            return None
        return i, micro_batch

    def _issue(self, block: _Block) -> bool:
        """Issue the next instruction of a TB; False where it cannot be."""
        found = self._next(block)
        if found is None:
            return False
        i, micro_batch = found
        step = block.order[block.position][0]
        self.issued.append((block.rank, block.tb, step, micro_batch))
        block.taken = []
        self._execute(block, i, micro_batch)
        if block.posted is None:
            self._finish(block)
        return True

    def _finish(self, block: _Block) -> None:
        block.position += 1
        block.posted = None
        for message in block.taken:
            message.over = True
            if self.setting.slots > 0:
                continue
            for other in (b for blocks in self.blocks for b in blocks):
                if other.posted is message:
                    self._finish(other)

    def _accesses(self, rank: int) -> Iterator[tuple[str, Span, bool]]:
        """Yield (who, memory, whether it writes) for all that the rank could do next, or has not quite done."""
        for block in self.blocks[rank]:
            for at, message in block.references:
                if not message.read and message.source is not None:
                    yield f"the reference of TB {block.tb}, {block.order[at]}", message.source[1], False
            if block.posted is not None and block.posted.source is not None and not block.posted.read:
                yield f"the reference of TB {block.tb}", block.posted.source[1], False
            found = self._next(block)
            if found is None:
                continue
            i, micro_batch = found
            who = f"TB {block.tb}, {block.order[block.position]}"
            src = self._span(rank, i["src"], micro_batch) if i.get("src") else None
            dst = self._span(rank, i["dst"], micro_batch) if i.get("dst") else None
            if src:
                yield who, src, False
            scales = self.scaled and src is not None and i["src"][0] == "input"
            if dst and not (i["opcode"] == "Copy" and src == dst and not scales):
                yield who, dst, True

    def _find_race(self, rank: int) -> None:
        accesses = list(self._accesses(rank))
        for n, (who, span, writes) in enumerate(accesses):
            for other, elsewhere, also_writes in accesses[:n]:
                same = span[0] == elsewhere[0] and max(span[1], elsewhere[1]) < min(span[2], elsewhere[2])
                if same and (writes or also_writes) and who != other:
                    raise _Failed("race", f"rank {rank}: {other} and {who} meet in {span}")

    def _find_races_after(self, block: _Block) -> None:
        """Look at the ranks for which the instruction that was just issued may have changed anything."""
        for rank in {block.rank, *(int(c["peer"]) for c in self.connections[block.rank])}:
            self._find_race(rank)

    # Runs ------------------------------------------------------------------------------------------------------------

    def run(self, watch: bool = True) -> Fault | None:
        """Run to the end in a random order. `watch`: look for races all the time."""
        try:
            for rank in range(self.ranks if watch else 0):
                self._find_race(rank)
            blocks = [block for blocks in self.blocks for block in blocks]
            moved = True
            while moved:
                moved = False
                self.random.shuffle(blocks)
                for block in blocks:
                    # Bursts, so that some TBs run far ahead of others.
                    for _ in range(self.random.randrange(1, 5)):
                        if not self._issue(block):
                            break
                        moved = True
                        if watch:
                            self._find_races_after(block)
            return self._end()
        except _Failed as failed:
            return failed.fault

    def replay(self, interleaving: Iterable[Occurrence], reference: Occurrence | None = None) -> Fault | None:
        """Issue exactly these instructions, watching for races; then say what is wrong, if anything is.

        `reference` is the one Send that passes a reference. Raises ReplayError where an instruction cannot be issued.
        """
        self.reference = reference if reference is not None else (-1, -1, -1, -1)
        if self.setting.slots == 0:
            self.reference = None
        try:
            for each in interleaving:
                rank, tb, step, micro_batch = each
                block = self.blocks[rank][tb]
                self._find_race(rank)
                if block.position == len(block.order) or block.order[block.position] != (step, micro_batch):
                    raise ReplayError(f"{each} is not the next of its TB")
                if not self._issue(block):
                    raise ReplayError(f"{each} cannot be issued")
            return self._end(partial=True)
        except _Failed as failed:
            return failed.fault

    def _end(self, partial: bool = False) -> Fault | None:
        blocks = [block for blocks in self.blocks for block in blocks]
        left = [block for block in blocks if block.position < len(block.order)]
        if left and partial and any(self._next(block) for block in blocks):
            return None
        if left:
            where = ", ".join(f"rank {b.rank} TB {b.tb} at {b.order[b.position]}" for b in left)
            return Fault("deadlock", f"nothing can be issued: {where}")
        if any(self.fifos.values()):
            return Fault("left_over", "a message was left over")
        return self._check()

    def _check(self) -> Fault | None:
        seen: dict[tuple[int, ...], str] = {}
        root, count = int(self.plan["root"]), self.setting.count
        for rank in range(self.ranks):
            for at in range(blocks_of(self.collective, self.ranks, root, rank)[1] * count):
                sources = contributions(self.collective, self.ranks, root, rank, at // count)
                wanted = [self._input_term(source, block, at % count) for source, block in sources]
                term = self.memory[rank][self.base[rank]["output"] + at]
                who = f"rank {rank}, element {at} of its output"
                if term is None:
                    return Fault("value", f"{who} was never written")
                scale, mark = (FACTOR, "s") if self.scaled else (1, "")
                if term.where != wanted[0].where or term.number != scale * sum(t.number for t in wanted):
                    return Fault("value", f"{who} is {term}")
                leaves = Counter(re.findall(r"s*\d+", term.text))
                if leaves != Counter(mark + t.text for t in wanted) or "s(" in term.text:
                    return Fault("value", f"{who} is made of {term.text}")
                if self.setting.equal_bits and seen.setdefault(term.where, term.text) != term.text:
                    return Fault("value", f"{who} is {term.text}, elsewhere {seen[term.where]}")
        return None


def _incoming(instruction: Mapping[str, Any]) -> list[int]:
    """Return the connections that an instruction takes a message from."""
    single = int(instruction.get("recv", -1))
    return ([single] if single >= 0 else []) + [int(f) for f in instruction.get("fold", ()) if int(f) >= 0]


def shows_refusal(plan: Mapping[str, Any], refusal: Any) -> Fault | None:
    """Replay the interleaving of a `resccl.VerificationError`: what fails then, or None if nothing does.

    Tried with a scaled input and with pieces of unequal lengths as well, which some faults need. Raises ReplayError
    where the interleaving cannot be run.
    """
    chunks, batches = int(plan["chunks_per_block"]), int(refusal.micro_batches)
    for scaled in (False, True):
        for count in range(batches * chunks, (batches - 1) * chunks, -1):
            setting = Setting(count, 1, refusal.slots, in_place=refusal.in_place, scaled=scaled)
            if fault := Interpreter(plan, setting).replay(refusal.interleaving, refusal.reference):
                return fault
    return None


def structure_faults(plan: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a plan before it runs: connections without two ends and one TB each, sub-pipelines."""
    faults: list[str] = []
    uses: dict[tuple[int, ...], dict[bool, list[tuple[int, int]]]] = {}
    for part in plan["rank_plans"]:
        rank = int(part["rank"])
        keys = []
        for c in part["connections"]:
            ends = (rank, c["peer"]) if c["outgoing"] else (c["peer"], rank)
            keys.append((*ends, c.get("rail", 0), c.get("channel", 0)))
            if bool(c["outgoing"]) in uses.setdefault(keys[-1], {}):
                faults.append(f"connection {keys[-1]} has two equal ends")
            uses[keys[-1]][bool(c["outgoing"])] = []
        for tb, instructions in enumerate(part["thread_blocks"]):
            for i in instructions:
                used = [*_incoming(i), *(c for c in [int(i.get("send", -1))] if c >= 0)]
                if len(set(used)) < len(used):
                    faults.append("an instruction uses a connection twice")
                for c in used:
                    outgoing = bool(part["connections"][c]["outgoing"])
                    uses[keys[c]][outgoing].append((tb, i.get("sub_pipeline", 0)))
    for key, both in uses.items():
        if len(both) < 2:
            faults.append(f"connection {key} has one end")
        if any(len({tb for tb, _ in end}) > 1 for end in both.values()):
            faults.append(f"an end of connection {key} belongs to two TBs")
        if plan.get("loop") == "sub_pipelines" and len({tuple(sub for _, sub in end) for end in both.values()}) > 1:
            faults.append(f"messages of connection {key} cross sub-pipelines")
    return faults + [text for part in plan["rank_plans"] for text in _early_waits(plan, part)]


def _early_waits(plan: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[str]:
    """Yield the waits for a later sub-pipeline, where that is a later turn of the loop."""
    for instructions in part["thread_blocks"] if plan.get("loop") == "sub_pipelines" else []:
        for i in instructions:
            for tb, step, _ in i.get("dependencies", ()):
                if part["thread_blocks"][tb][step].get("sub_pipeline", 0) > i.get("sub_pipeline", 0):
                    yield f"rank {part['rank']} waits for a later sub-pipeline"
