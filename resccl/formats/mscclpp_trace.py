"""Runs an MSCCL++ plan once, as its signals, waits, semaphores, barriers and packets order it, and finds its races.

The memory of MSCCL++ is shared: ranks write and read each other's. What follows from a run is an order of all moves,
and for each what it knows to be over (a vector clock over thread blocks). Where two accesses to a chunk are not
ordered, the file relies on luck; the order of this run is one that can happen.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from resccl.formats.common import FormatError
from resccl.formats.mscclpp_json import Cell, Channel, MscclppPlan, Operation

MAX_CLOCKS = 50_000_000
"""Numbers in all vector clocks together."""


@dataclass(slots=True)
class Happening:
    """An operation that was done: its position in the order, its thread block, and what it knows to be over.

    `tb` numbers the thread blocks of all ranks; `base[tb]` is how many operations of that one are over for sure.
    """

    position: int
    rank: int
    block: int
    tb: int
    index: int
    base: list[int]
    operation: Operation

    def after(self, other: Happening) -> bool:
        """Whether `other` is over whenever this one happens."""
        return other.index < (self.index if other.tb == self.tb else self.base[other.tb])


@dataclass
class Trace:
    """`happenings` in order; `races` are pairs of (first, second) that nothing orders, on the given cell; `unheard`
    is how many signals nothing waits for.
    """

    happenings: list[Happening]
    unheard: int = 0
    races: list[tuple[Happening, Happening, Cell]] = field(default_factory=list)


class _Tracer:
    def __init__(self, plan: MscclppPlan) -> None:
        self.plan = plan
        self.blocks = [(r, t) for r, rank in enumerate(plan.blocks) for t in range(len(rank))]
        self.number = {block: n for n, block in enumerate(self.blocks)}
        self.at = [0] * len(self.blocks)
        self.base = [[0] * len(self.blocks) for _ in self.blocks]
        self.clocks = 0
        self.signals: dict[Channel, deque[Happening]] = {}
        self.releases: dict[tuple[int, int], deque[Happening]] = {}
        self.credits = {(r, id_): n for r, rank in enumerate(plan.semaphores) for id_, n in enumerate(rank)}
        self.barriers: dict[tuple[int, int], list[int]] = {}
        self.arrived: dict[int, bool] = {}
        self.packets: dict[Cell, Happening] = {}
        self.trace = Trace([])

    def go(self) -> Trace:
        moving = True
        while moving:
            moving = False
            for n, (rank, t) in enumerate(self.blocks):
                block = self.plan.blocks[rank][t]
                while self.at[n] < len(block) and self.attempt(n, rank, t, block[self.at[n]]):
                    moving = True
        stuck = [n for n, (rank, t) in enumerate(self.blocks) if self.at[n] < len(self.plan.blocks[rank][t])]
        if stuck:
            shown = [self.plan.blocks[self.blocks[n][0]][self.blocks[n][1]][self.at[n]].where for n in stuck[:4]]
            raise FormatError("it would wait for ever at " + "; ".join(shown) + (" and more" if len(stuck) > 4 else ""))
        self.trace.unheard = sum(map(len, self.signals.values()))
        return self.trace

    def attempt(self, n: int, rank: int, t: int, operation: Operation) -> bool:
        """Does the next operation of thread block `n` if it need not wait."""
        known: list[Happening] | None = getattr(self, "_" + operation.kind)(n, rank, operation)
        if known is None:
            return False
        if known:
            self.learn(n, known)
        done = Happening(len(self.trace.happenings), rank, t, n, self.at[n], self.base[n], operation)
        self.trace.happenings.append(done)
        self.at[n] += 1
        if operation.kind == "signal" and operation.channel is not None:
            self.signals.setdefault(operation.channel, deque()).append(done)
        elif operation.kind == "release":
            self.releases.setdefault((rank, operation.number), deque()).append(done)
        for cell, packet in operation.writes:
            if packet:
                self.packets[cell] = done
        return True

    def learn(self, n: int, known: list[Happening]) -> None:
        base = self.base[n] = list(self.base[n])
        self.clocks += len(base)
        if self.clocks > MAX_CLOCKS:
            raise FormatError("it has too many thread blocks and waits to find out what they order")
        for other in known:
            base[:] = map(max, base, other.base)
            base[other.tb] = max(base[other.tb], other.index + 1)

    def _move(self, n: int, rank: int, operation: Operation) -> list[Happening] | None:
        cells = [cell for cell, packet in operation.reads if packet]
        if any(cell not in self.packets for cell in cells):
            return None
        return [self.packets[cell] for cell in cells]

    def _signal(self, n: int, rank: int, operation: Operation) -> list[Happening] | None:
        return []

    _release = _signal

    def _wait(self, n: int, rank: int, operation: Operation) -> list[Happening] | None:
        queue = self.signals.get(operation.channel) if operation.channel is not None else None
        return [queue.popleft()] if queue else None

    def _acquire(self, n: int, rank: int, operation: Operation) -> list[Happening] | None:
        which = (rank, operation.number)
        if self.credits[which] > 0:
            self.credits[which] -= 1
            return []
        queue = self.releases.get(which)
        return [queue.popleft()] if queue else None

    def _barrier(self, n: int, rank: int, operation: Operation) -> list[Happening] | None:
        """All arrive, then all go; the last one to arrive fixes what everybody knows."""
        waiting = self.barriers.setdefault((rank, operation.number), [])
        if n not in self.arrived:
            self.arrived[n] = False
            waiting.append(n)
            if len(waiting) == operation.parties:
                self.open(rank, operation, waiting)
        if not self.arrived[n]:
            return None
        del self.arrived[n]
        return []

    def open(self, rank: int, operation: Operation, waiting: list[int]) -> None:
        marks = [Happening(-1, rank, self.blocks[n][1], n, self.at[n] - 1, self.base[n], operation) for n in waiting]
        for n in waiting:
            self.learn(n, marks)
            self.arrived[n] = True
        waiting.clear()


def trace(plan: MscclppPlan, name: str) -> Trace:
    """One run of `plan`. FormatError where it waits for ever; races are listed, not refused."""
    try:
        found = _Tracer(plan).go()
    except FormatError as error:
        raise FormatError(f"{name}: {error}") from None
    found.races = _races(found)
    return found


def _races(found: Trace) -> list[tuple[Happening, Happening, Cell]]:
    races: list[tuple[Happening, Happening, Cell]] = []
    writer: dict[Cell, Happening] = {}
    readers: dict[Cell, list[Happening]] = {}
    for now in found.happenings:
        for cell, _ in now.operation.reads:
            if cell in writer and not now.after(writer[cell]):
                races.append((writer[cell], now, cell))
            readers.setdefault(cell, []).append(now)
        for cell, _ in now.operation.writes:
            earlier = readers.pop(cell, [])
            earlier.extend([writer[cell]] if cell in writer else [])
            races.extend((e, now, cell) for e in earlier if e is not now and not now.after(e))
            writer[cell] = now
    return races
