"""A schedule while it is being imported: ranks, thread blocks, instructions; and the order in which they can run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from resccl.formats.spaces import Place, Space

Event = tuple[int, int, int]
"""(rank, thread block, step): one instruction of one micro-batch."""

Key = tuple[int, int, int, int]
"""A connection: (source, destination, rail, channel)."""

_Reason = tuple[str, tuple[int, ...]]
# (what it waits for, which): a "step" of a (rank, thread block), a "message" or a "slot" of a connection.


@dataclass(slots=True)
class Connection:
    """One end of a directed connection (csrc/schedule/plan.h)."""

    peer: int
    outgoing: bool
    channel: int = 0
    rail: int = 0

    def key(self, rank: int) -> Key:
        """(source, destination, rail, channel): the same at both ends."""
        ends = (rank, self.peer) if self.outgoing else (self.peer, rank)
        return (*ends, self.rail, self.channel)


@dataclass(slots=True)
class Instruction:
    """One instruction. Before placement `src` and `dst` are cells of the file, after it places of a plan."""

    opcode: str
    recv: int = -1
    send: int = -1
    src: Place | None = None
    dst: Place | None = None
    dependencies: list[tuple[int, int, int]] = field(default_factory=list)
    where: str = ""
    recv_is_left: bool = False
    sub_pipeline: int = 0
    fold: list[int] = field(default_factory=list)

    def receives(self) -> list[int]:
        """Connections that it takes a message from, in order."""
        if self.fold:
            return [c for c in self.fold if c >= 0]
        return [] if self.recv < 0 else [self.recv]

    def reads(self) -> list[Place]:
        """Places that it reads."""
        places = [] if self.src is None else [self.src]
        if self.opcode == "Reduce" and self.dst is not None:
            places.append(self.dst)
        return places


@dataclass
class RankProgram:
    """Connections and thread blocks of one rank."""

    connections: list[Connection] = field(default_factory=list)
    thread_blocks: list[list[Instruction]] = field(default_factory=list)


@dataclass
class Program:
    """All ranks."""

    name: str
    space: Space
    ranks: list[RankProgram]
    notes: list[str] = field(default_factory=list)
    rendezvous_safe: bool = False

    def events(self) -> Iterator[tuple[Event, Instruction]]:
        """All instructions, rank by rank."""
        for r, rank in enumerate(self.ranks):
            for t, block in enumerate(rank.thread_blocks):
                for s, instruction in enumerate(block):
                    yield (r, t, s), instruction

    def at(self, event: Event) -> Instruction:
        return self.ranks[event[0]].thread_blocks[event[1]][event[2]]

    def describe(self, event: Event) -> str:
        """How the file names the instruction, else how the plan does."""
        instruction = self.at(event)
        return instruction.where or f"rank {event[0]}, TB {event[1]}, step {event[2]} ({instruction.opcode})"


class Stuck(Exception):
    """A schedule whose thread blocks wait for each other; `circle` says who waits for whom."""

    def __init__(self, circle: str) -> None:
        super().__init__(circle)
        self.circle = circle


@dataclass
class Run:
    """One order in which everything can happen, and who sent what each instruction received."""

    order: list[Event]
    senders: dict[Event, list[Event]]


class _Runner:
    """Runs one micro-batch; with unlimited slots, what can run in one order can run in this one."""

    def __init__(self, program: Program, slots: int | None) -> None:
        self.program = program
        self.slots = slots
        self.keys = [[c.key(r) for c in rank.connections] for r, rank in enumerate(program.ranks)]
        self.at: dict[tuple[int, int], int] = {}
        self.sent: dict[Key, deque[Event]] = {}
        self.waiting: dict[_Reason, list[tuple[int, int]]] = {}
        self.run = Run([], {})
        self.ready: deque[tuple[int, int]] = deque()

    def obstacle(self, rank: int, tb: int) -> _Reason | None:
        """What the next instruction of a thread block waits for."""
        instruction = self.program.ranks[rank].thread_blocks[tb][self.at[rank, tb]]
        for on, step, distance in instruction.dependencies:
            if distance == 0 and self.at[rank, on] <= step:
                return ("step", (rank, on))
        receives = instruction.receives()
        for c in receives:
            key = self.keys[rank][c]
            if len(self.sent.get(key, ())) < receives.count(c):
                return ("message", key)
        if self.slots is not None and instruction.send >= 0:
            key = self.keys[rank][instruction.send]
            if len(self.sent.get(key, ())) >= self.slots:
                return ("slot", key)
        return None

    def step(self, rank: int, tb: int) -> None:
        event = (rank, tb, self.at[rank, tb])
        instruction = self.program.at(event)
        received = []
        for c in instruction.receives():
            key = self.keys[rank][c]
            received.append(self.sent[key].popleft())
            self.wake(("slot", key))
        if received:
            self.run.senders[event] = received
        if instruction.send >= 0:
            key = self.keys[rank][instruction.send]
            self.sent.setdefault(key, deque()).append(event)
            self.wake(("message", key))
        self.run.order.append(event)
        self.at[rank, tb] += 1
        self.wake(("step", (rank, tb)))

    def wake(self, reason: _Reason) -> None:
        self.ready.extend(self.waiting.pop(reason, ()))

    def go(self) -> Run:
        for r, rank in enumerate(self.program.ranks):
            for t in range(len(rank.thread_blocks)):
                self.at[r, t] = 0
                self.ready.append((r, t))
        while self.ready:
            r, t = self.ready.popleft()
            length = len(self.program.ranks[r].thread_blocks[t])
            while self.at[r, t] < length:
                reason = self.obstacle(r, t)
                if reason is not None:
                    self.waiting.setdefault(reason, []).append((r, t))
                    break
                self.step(r, t)
        if self.waiting:
            raise Stuck(self.circle())
        unread = next((key for key, left in self.sent.items() if left), None)
        if unread is not None:
            last = self.program.describe(self.sent[unread][0])
            raise Stuck(f"{last} sends to rank {unread[1]} on channel {unread[3]}, where nothing receives it")
        return self.run

    def successor(self, reason: _Reason) -> tuple[int, int] | None:
        """The thread block that would have to act; None where none ever will."""
        kind, what = reason
        if len(what) == 2:
            return (what[0], what[1])
        actor = what[0] if kind == "message" else what[1]
        for t, block in enumerate(self.program.ranks[actor].thread_blocks):
            for i in block[self.at[actor, t] :]:
                ends = [i.send] if kind == "message" else i.receives()
                if any(c >= 0 and self.keys[actor][c] == what for c in ends):
                    return (actor, t)
        return None

    def circle(self) -> str:
        """Follows one stuck thread block to the one that it waits for, until one comes up again."""
        reasons = {tb: reason for reason, tbs in self.waiting.items() for tb in tbs}
        current: tuple[int, int] | None = min(reasons)
        path: list[tuple[int, int]] = []
        lines: list[str] = []
        while current is not None and current in reasons and current not in path:
            path.append(current)
            reason = reasons[current]
            here = self.program.describe((*current, self.at[current]))
            following = self.successor(reason)
            lines.append(f"{here} waits for {_text(reason)}" + (", which never comes" if following is None else ""))
            current = following
        if current in path:
            lines = lines[path.index(current) :]
        shown = lines if len(lines) <= 8 else [*lines[:7], f"… {len(lines) - 8} more", lines[-1]]
        return "; ".join(shown) + ("; and so on in a circle" if current in path else "")


def _text(reason: _Reason) -> str:
    kind, what = reason
    if len(what) == 2:
        return f"a step of thread block {what[1]}"
    if kind == "message":
        return f"a message from rank {what[0]} on channel {what[3]}"
    return f"rank {what[1]} to take a message on channel {what[3]}"


def run(program: Program, slots: int | None = None) -> Run:
    """One order in which `program` can run where a connection holds `slots` messages (None: any number).

    Raises Stuck where there is none, or where messages are left that nothing receives.
    """
    return _Runner(program, slots).go()


def can_run(program: Program, slots: int | None) -> bool:
    """Whether run() finds an order."""
    try:
        run(program, slots)
    except Stuck:
        return False
    return True


def rebuilt(
    blocks: list[list[Instruction]], rewrite: Callable[[int, int, Instruction], list[Instruction]]
) -> list[list[Instruction]]:
    """`blocks` of one rank with each instruction replaced by what `rewrite(tb, step, instruction)` returns.

    Who waited for an instruction waits for the last of those that replace it (or the last before it, where none does).
    """
    result: list[list[Instruction]] = []
    last: list[list[int]] = []
    for t, block in enumerate(blocks):
        new: list[Instruction] = []
        ends: list[int] = []
        for s, instruction in enumerate(block):
            new.extend(rewrite(t, s, instruction))
            ends.append(len(new) - 1)
        result.append(new)
        last.append(ends)
    for new in result:
        for instruction in new:
            moved = [(t, last[t][s], d) for t, s, d in instruction.dependencies]
            instruction.dependencies = [d for d in dict.fromkeys(moved) if d[1] >= 0]
    return result


def to_plan(program: Program) -> dict[str, Any]:
    """The plan dict of a placed program; sides without a meaning are left out."""
    parts = []
    for r, rank in enumerate(program.ranks):
        scratch = 0
        blocks = []
        for block in rank.thread_blocks:
            blocks.append([_instruction_dict(i) for i in block])
            for i in block:
                for place in (i.src, i.dst):
                    if place is not None and place[0] == "scratch":
                        scratch = max(scratch, place[1] + 1)
        ends = [
            {"peer": c.peer, "outgoing": c.outgoing, "rail": c.rail, "channel": c.channel} for c in rank.connections
        ]
        parts.append({"rank": r, "scratch_chunks": scratch, "connections": ends, "thread_blocks": blocks})
    space = program.space
    return {
        "name": program.name,
        "collective": space.collective,
        "ranks": space.ranks,
        "root": space.root,
        "chunks_per_block": space.pieces,
        "rendezvous_safe": program.rendezvous_safe,
        "loop": "micro_batches",
        "rank_plans": parts,
    }


def _instruction_dict(i: Instruction) -> dict[str, Any]:
    result: dict[str, Any] = {
        "opcode": i.opcode,
        "recv_is_left": i.recv_is_left,
        "recv": i.recv,
        "send": i.send,
        "src": None if i.src is None else list(i.src),
        "dst": None if i.dst is None else list(i.dst),
        "sub_pipeline": i.sub_pipeline,
        "fold": list(i.fold),
        "dependencies": [list(d) for d in i.dependencies],
    }
    return result


def from_plan(plan: dict[str, Any]) -> Program:
    """The program of a whole plan dict, whose indices are taken to be right (resccl._core checks them)."""
    space = Space(plan["collective"], plan["ranks"], plan.get("root", 0), plan["chunks_per_block"])
    ranks = [RankProgram() for _ in range(space.ranks)]
    for part in plan["rank_plans"]:
        rank = ranks[part["rank"]]
        for c in part["connections"]:
            rank.connections.append(Connection(c["peer"], c["outgoing"], c.get("channel", 0), c.get("rail", 0)))
        for block in part["thread_blocks"]:
            rank.thread_blocks.append([_instruction_of(i) for i in block])
    return Program(plan.get("name", ""), space, ranks, rendezvous_safe=plan.get("rendezvous_safe", False))


def _instruction_of(i: dict[str, Any]) -> Instruction:
    src, dst = i.get("src"), i.get("dst")
    return Instruction(
        i["opcode"],
        i.get("recv", -1),
        i.get("send", -1),
        None if src is None else (src[0], src[1]),
        None if dst is None else (dst[0], dst[1]),
        [(d[0], d[1], d[2]) for d in i.get("dependencies", ())],
        "",
        i.get("recv_is_left", False),
        i.get("sub_pipeline", 0),
        list(i.get("fold", ())),
    )
