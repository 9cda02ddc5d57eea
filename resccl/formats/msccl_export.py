"""MSCCL XML from a plan.

A thread block of the format has one peer a direction and one channel for both, and a step has one dependency. So a
plan's thread block becomes one for each connection, or pair of connections that an instruction uses at once, and each
instruction waits for the one before it where that went to another thread block; folds become chains of reductions;
instructions that would tie channels in a knot are taken apart; more dependencies are nops. What the format cannot say
and its runtimes do not need is left out: rails, sub-pipelines, and that a micro-batch waits for the one before it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import quoteattr

from resccl.collectives import ROOTED
from resccl.formats.common import NO_LIMIT
from resccl.formats.msccl_xml import TYPES
from resccl.formats.program import Instruction, Key, Program, RankProgram, from_plan, rebuilt
from resccl.formats.spaces import Place

_TYPE_OF = {opcode: name for name, opcode in TYPES.items()}
_BUFFER = {"input": "i", "output": "o", "scratch": "s"}


@dataclass
class _Block:
    """A thread block of the file: connections by index (-1: none), instructions as (plan's tb, step)."""

    send: int = -1
    recv: int = -1
    members: list[tuple[int, int]] = field(default_factory=list)


def export_msccl_xml(plan: dict[str, Any], meta: dict[str, Any] | None = None) -> bytes:
    """The MSCCL XML document for the whole plan dict `plan` (resccl._core's contract), which must have been checked.

    `meta` may hold "min_bytes", "max_bytes" and "protocol", as Imported.meta does. Importing the result gives a plan
    that moves the same values.
    """
    meta = meta or {}
    program = from_plan(plan)
    _flatten(program)
    joined = _Channels(program)
    blocks = [_blocks(program, r, joined) for r in range(program.space.ranks)]
    channels = joined.assign()
    space = program.space
    wide = space.collective not in ("AllReduce", "Broadcast", "Reduce")
    head = {
        "name": program.name,
        "proto": str(meta.get("protocol", "Simple")),
        "nchannels": max(channels.values(), default=0) + 1,
        "nchunksperloop": space.pieces * (space.ranks if wide else 1),
        "ngpus": space.ranks,
        "coll": space.collective.lower(),
        "inplace": int(space.collective != "AllToAll"),
        "outofplace": 1,
        "minBytes": int(meta.get("min_bytes", 0)),
        "maxBytes": int(meta.get("max_bytes", NO_LIMIT)) % NO_LIMIT,
    }
    if space.collective in ROOTED:
        head["root"] = space.root
    lines = [_open("algo", head)]
    for r, rank in enumerate(program.ranks):
        lines.extend(_gpu(program, r, rank, blocks[r], channels))
    lines.append("</algo>\n")
    return "\n".join(lines).encode()


def _open(tag: str, attributes: dict[str, Any], end: str = "") -> str:
    return f"<{tag} " + " ".join(f"{k}={quoteattr(str(v))}" for k, v in attributes.items()) + f"{end}>"


def _flatten(program: Program) -> None:
    """Folds into chains; thread blocks in which a connection is paired with several others without such pairs."""
    for rank in program.ranks:
        scratch = _Scratch(rank)

        def chain(t: int, s: int, i: Instruction, scratch: _Scratch = scratch) -> list[Instruction]:
            return _chain(i, scratch) if i.fold else [i]

        rank.thread_blocks = rebuilt(rank.thread_blocks, chain)
        _take_apart(rank, _tangled(rank), scratch)


def _take_apart(rank: RankProgram, connections: set[int], scratch: _Scratch) -> None:
    """Instructions that do two things at once on one of `connections` become two."""

    def apart(t: int, s: int, i: Instruction) -> list[Instruction]:
        return _apart(i, scratch) if i.recv in connections or i.send in connections else [i]

    rank.thread_blocks = rebuilt(rank.thread_blocks, apart)


class _Scratch:
    """New scratch chunks of a rank."""

    def __init__(self, rank: RankProgram) -> None:
        used = [p[1] for b in rank.thread_blocks for i in b for p in (i.src, i.dst) if p and p[0] == "scratch"]
        self.size = max(used, default=-1) + 1

    def new(self) -> Place:
        self.size += 1
        return ("scratch", self.size - 1)


def _chain(fold: Instruction, scratch: _Scratch) -> list[Instruction]:
    """The same reductions in the same order. Where the rank's own value comes third or later they need a place of
    their own until then, as the destination may be the same memory.
    """
    own = fold.fold.index(-1) if -1 in fold.fold else None
    collect = scratch.new() if own is not None and own > 1 else fold.dst
    chain: list[Instruction] = []
    current: Place | None = None
    operands = list(fold.fold)
    if own is not None and own <= 1:
        operands.remove(-1)
        current = fold.src
    for n, operand in enumerate(operands):
        target = fold.dst if n == len(operands) - 1 else collect
        if operand < 0:
            chain.append(Instruction("Reduce", src=fold.src, dst=collect))
        elif current is None:
            chain.append(Instruction("Recv", operand, dst=collect))
        else:
            chain.append(Instruction("RecvReduceCopy", operand, src=current, dst=target))
        current = collect
    if collect != fold.dst and chain[-1].dst != fold.dst:
        chain.append(Instruction("Copy", src=collect, dst=fold.dst))
    if not chain:
        chain.append(Instruction("Copy", src=fold.src, dst=fold.dst))
    chain[0].dependencies = fold.dependencies
    return chain


def _tangled(rank: RankProgram) -> set[int]:
    """Connections that are used together with more than one other."""
    partners: dict[int, set[int]] = defaultdict(set)
    for block in rank.thread_blocks:
        for i in block:
            if i.recv >= 0 and i.send >= 0:
                partners[i.recv].add(i.send)
                partners[i.send].add(i.recv)
    return {c for c, others in partners.items() if len(others) > 1}


def _apart(i: Instruction, scratch: _Scratch) -> list[Instruction]:
    """A receive and a send for an instruction that does both."""
    if i.recv < 0 or i.send < 0:
        return [i]
    if i.opcode == "RecvCopySend":
        first = Instruction("Recv", i.recv, dst=i.dst)
    else:
        first = Instruction("RecvReduceCopy", i.recv, src=i.src, dst=i.dst or scratch.new())
    first.dependencies = i.dependencies
    return [first, Instruction("Send", send=i.send, src=first.dst)]


class _Channels:
    """Which connections must have one channel, as a thread block uses both; and which then have which."""

    def __init__(self, program: Program) -> None:
        self.classes: dict[Key, list[Key]] = {}
        for r, rank in enumerate(program.ranks):
            for c in rank.connections:
                key = c.key(r)
                self.classes.setdefault(key, [key])

    def join(self, a: Key, b: Key) -> bool:
        """False where one channel would be two connections between the same ranks."""
        one, other = self.classes[a], self.classes[b]
        if one is other:
            return True
        if Counter(k[:2] for k in one + other).most_common(1)[0][1] > 1:
            return False
        one.extend(other)
        for key in other:
            self.classes[key] = one
        return True

    def assign(self) -> dict[Key, int]:
        taken: dict[tuple[int, int], set[int]] = defaultdict(set)
        result: dict[Key, int] = {}
        for key in sorted(self.classes):
            if key in result:
                continue
            members = self.classes[key]
            used = set().union(*(taken[k[:2]] for k in members))
            channel = next(n for n in range(len(used) + 1) if n not in used)
            for member in members:
                result[member] = channel
                taken[member[:2]].add(channel)
        return result


def _blocks(program: Program, r: int, joined: _Channels) -> list[_Block]:
    """The thread blocks of one gpu. Instructions whose connections cannot have one channel are taken apart here."""
    rank = program.ranks[r]
    keys = [c.key(r) for c in rank.connections]
    scratch = _Scratch(rank)
    pairs = {(i.recv, i.send) for block in rank.thread_blocks for i in block if i.recv >= 0 and i.send >= 0}
    torn = {recv for recv, send in sorted(pairs) if not joined.join(keys[recv], keys[send])}
    _take_apart(rank, torn, scratch)
    partner = {recv: send for recv, send in pairs if recv not in torn}
    blocks: list[_Block] = []
    for t, block in enumerate(rank.thread_blocks):
        blocks.extend(_split(t, block, partner, keys, joined))
    return blocks


def _split(
    t: int, block: list[Instruction], partner: dict[int, int], keys: list[Key], joined: _Channels
) -> list[_Block]:
    """A plan's thread block as thread blocks with one connection a direction."""
    receives = list(dict.fromkeys(i.recv for i in block if i.recv >= 0))
    sends = list(dict.fromkeys(i.send for i in block if i.send >= 0))
    owner: dict[tuple[str, int], _Block] = {}
    found: list[_Block] = []
    free = [s for s in sends if s not in partner.values()]
    for recv in receives:
        send = partner.get(recv, -1)
        if send < 0 and free and joined.join(keys[recv], keys[free[0]]):
            send = free.pop(0)
        owner["recv", recv] = owner["send", send] = _Block(send, recv)
        found.append(owner["recv", recv])
    for send in free:
        owner["send", send] = _Block(send)
        found.append(owner["send", send])
    current = found[0] if found else _Block()
    for s, i in enumerate(block):
        if i.recv >= 0:
            current = owner["recv", i.recv]
        elif i.send >= 0:
            current = owner["send", i.send]
        current.members.append((t, s))
    return found or [current]


def _gpu(program: Program, r: int, rank: RankProgram, blocks: list[_Block], channels: dict[Key, int]) -> list[str]:
    """The <gpu> element."""
    home = {member: b for b, block in enumerate(blocks) for member in block.members}
    position = {member: n for block in blocks for n, member in enumerate(block.members)}
    waits = {member: _waits(rank, member, home, position) for member in home}
    number: dict[tuple[int, int], int] = {}
    for block in blocks:
        s = 0
        for member in block.members:
            s += max(len(waits[member]) - 1, 0)
            number[member] = s
            s += 1
    awaited = {member for found in waits.values() for member in found}
    scratch = [p[1] for b in rank.thread_blocks for i in b for p in (i.src, i.dst) if p and p[0] == "scratch"]
    space = program.space
    sizes = {"i_chunks": space.inputs(r), "o_chunks": space.outputs(r), "s_chunks": max(scratch, default=-1) + 1}
    lines = ["  " + _open("gpu", {"id": r, **sizes})]
    for b, block in enumerate(blocks):
        ends = [rank.connections[c] if c >= 0 else None for c in (block.send, block.recv)]
        key = next((c.key(r) for c in ends if c is not None), None)
        peers = [-1 if c is None else c.peer for c in ends]
        chan = 0 if key is None else channels[key]
        lines.append("    " + _open("tb", {"id": b, "send": peers[0], "recv": peers[1], "chan": chan}))
        for member in block.members:
            steps = _steps(rank.thread_blocks[member[0]][member[1]], waits[member], home, number, member in awaited)
            first = number[member] - len(steps) + 1
            lines.extend("      " + _open("step", {"s": first + n, **step}, "/") for n, step in enumerate(steps))
        lines.append("    </tb>")
    lines.append("  </gpu>")
    return lines


def _waits(
    rank: RankProgram, member: tuple[int, int], home: dict[tuple[int, int], int], position: dict[tuple[int, int], int]
) -> list[tuple[int, int]]:
    """What an instruction waits for in other thread blocks of the file, the last of each."""
    t, s = member
    wanted = [(on, step) for on, step, distance in rank.thread_blocks[t][s].dependencies if distance == 0]
    if s > 0:
        wanted.append((t, s - 1))
    last: dict[int, tuple[int, int]] = {}
    for found in wanted:
        b = home[found]
        if b != home[member] and (b not in last or position[last[b]] < position[found]):
            last[b] = found
    return [last[b] for b in sorted(last)]


def _steps(
    i: Instruction,
    waits: list[tuple[int, int]],
    home: dict[tuple[int, int], int],
    number: dict[tuple[int, int], int],
    awaited: bool,
) -> list[dict[str, Any]]:
    """The step of an instruction, after nops for all but the last of what it waits for."""
    nop = {"type": "nop", "srcbuf": "i", "srcoff": -1, "dstbuf": "o", "dstoff": -1, "cnt": 0}
    depends = [{"depid": home[w], "deps": number[w]} for w in waits] or [{"depid": -1, "deps": -1}]
    steps: list[dict[str, Any]] = [{**nop, **d, "hasdep": 0} for d in depends[:-1]]
    what: dict[str, Any] = nop
    if i.opcode != "Nop":
        src, dst = i.src or i.dst, i.dst or i.src
        assert src is not None and dst is not None
        what = {"type": _TYPE_OF[i.opcode], "srcbuf": _BUFFER[src[0]], "srcoff": src[1]}
        what.update(dstbuf=_BUFFER[dst[0]], dstoff=dst[1], cnt=1)
    steps.append({**what, **depends[-1], "hasdep": int(awaited)})
    return steps
