"""Plans on simulated links: what each thread block does when, and what that makes of the links.

A TB runs its instructions over n micro-batches one by one, in the order of the plan's loop. A message starts when its
TB is there, what it depends on is done and a slot of its connection is free; it takes alpha, then moves its bytes over
its links beside whatever else is there, and occupies its TB meanwhile. Who receives is done when the message is there,
and no sooner than it could have copied it out of its slots. Copies and reductions of a rank's own take that time too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import flowsim
from resccl.collectives import ChunkSpace
from resccl.plan import Plan
from resccl.study.hardware import Hardware, Message, Wiring, messages_of
from resccl.topology import Topology, topology_of

_MOST_ACTIVITIES = 4_000_000


@dataclass(frozen=True)
class Block:
    """One TB's life: from 0 to `end`, of which it moved data for `busy` seconds and waited for the rest."""

    rank: int
    tb: int
    busy: float
    end: float

    @property
    def idle_share(self) -> float:
        """Return the share of its life spent waiting, 0 to 1."""
        return 1.0 - self.busy / self.end if self.end > 0 else 0.0


@dataclass(frozen=True)
class Event:
    """An instruction of one micro-batch: from `start`, when it moved its first data, to `finish`."""

    rank: int
    tb: int
    step: int
    micro_batch: int
    start: float
    finish: float


@dataclass(frozen=True)
class Outcome:
    """What a simulation found. Times in seconds; shares from 0 to 1.

    network_use, local_use: bytes moved over bytes that could have moved, mean of the NICs, and of the links inside
    hosts, that carry anything. link_use: of all of both; the paper's Table 1. busiest: of the link that is busy longest
    """

    seconds: float
    micro_batches: int
    message: float
    network_use: float
    local_use: float
    link_use: float
    busiest: float
    blocks: tuple[Block, ...]
    events: tuple[Event, ...] = ()

    @property
    def idle_share(self) -> float:
        """Return the mean idle share of all TBs that do anything."""
        return float(np.mean([block.idle_share for block in self.blocks])) if self.blocks else 0.0


def simulate(
    plan: Plan,
    topology: Topology | str | Sequence[int],
    size: float,
    hardware: Hardware | None = None,
    *,
    micro_batches: int | None = None,
    in_place: bool = True,
    events: bool = False,
) -> Outcome:
    """Run a plan of all ranks on simulated links.

    size: bytes of the collective's data: a rank's buffer, or for AllGather and ReduceScatter what all ranks' blocks
    have together, for AllToAll all blocks of all ranks. micro_batches: instead of what hardware.chunk makes of it.
    in_place: copies from input to output cost nothing. events: keep every instruction's time. ValueError: the plan is
    not whole, cannot end with hardware.slots, or is too large.
    """
    costs = hardware or Hardware()
    fields = plan.to_dict()
    where = topology_of(topology, int(fields["ranks"]))
    message = messages_of(size, chunks_of(fields), costs)
    if micro_batches is not None:
        if micro_batches < 1:
            raise ValueError(f"there is at least one micro-batch, not {micro_batches}")
        message = Message(micro_batches, size / chunks_of(fields) / micro_batches)
    return _Run(fields, where, costs, message, in_place).outcome(events)


def chunks_of(fields: Mapping[str, Any]) -> int:
    """Return the number of chunks that a plan cuts the data of its collective into."""
    blocks = ChunkSpace(fields["collective"], fields["ranks"], fields["ranks"] ** 2, fields["root"]).blocks
    return blocks * int(fields["chunks_per_block"])


@dataclass
class _Instruction:
    """Of one TB. `ends` and `moves`: by micro-batch, what is over when it is, and when data moves for it."""

    rank: int
    tb: int
    step: int
    fields: Mapping[str, Any]
    receives: list[int] = field(default_factory=list)  # channels: both ends of a connection have one number
    sends: int = -1
    path: list[int] = field(default_factory=list)
    between_hosts: bool = False
    dependencies: list[tuple[int, int]] = field(default_factory=list)  # index of the instruction, distance
    send_number: int = -1  # of the messages of its channel in one micro-batch
    receive_numbers: list[int] = field(default_factory=list)


class _Run:
    def __init__(
        self, fields: Mapping[str, Any], topology: Topology, costs: Hardware, message: Message, in_place: bool
    ) -> None:
        self.costs = costs
        self.in_place = in_place
        self.message = message
        self.wiring = Wiring(topology, costs)
        self.net = self.wiring.network
        self.by_sub_pipeline = fields["loop"] == "sub_pipelines"
        self.instructions: list[_Instruction] = []
        self.blocks: list[tuple[int, int, range]] = []  # rank, TB, its instructions
        self.channels: dict[tuple[int, int, int, int], int] = {}
        if len(fields["rank_plans"]) != int(fields["ranks"]):
            raise ValueError("only a plan of all ranks can be simulated")
        for part in fields["rank_plans"]:
            self._read_rank(part)
        if len(self.instructions) * message.micro_batches * 2 > _MOST_ACTIVITIES:
            raise ValueError(
                f"{len(self.instructions)} instructions x {message.micro_batches} micro-batches are too many"
                " to simulate; take fewer bytes or larger chunks"
            )
        self._order_messages()

    # The plan -------------------------------------------------------------------------------------------------------

    def _read_rank(self, part: Mapping[str, Any]) -> None:
        rank = int(part["rank"])
        first: list[int] = []
        for block in part["thread_blocks"]:
            first.append(len(self.instructions))
            self.instructions += [_Instruction(rank, len(first) - 1, s, each) for s, each in enumerate(block)]
            self.blocks.append((rank, len(first) - 1, range(first[-1], len(self.instructions))))
        for index in range(first[0] if first else 0, len(self.instructions)):
            each = self.instructions[index]
            fold = [c for c in each.fields.get("fold", ()) if c >= 0]
            taken = fold if each.fields["opcode"] == "Fold" else [each.fields.get("recv", -1)]
            each.receives = [self._channel(rank, part["connections"][c]) for c in taken if c >= 0]
            send = each.fields.get("send", -1)
            if send >= 0:
                connection = part["connections"][send]
                peer, rail = int(connection["peer"]), int(connection.get("rail", 0))
                each.sends = self._channel(rank, connection)
                each.path = self.wiring.path(rank, peer, rail, len(self.blocks) + each.tb - len(first))
                hosts = self.wiring.topology.host_of_rank
                each.between_hosts = hosts[rank] != hosts[peer]
            each.dependencies = [
                (first[tb] + step, distance) for tb, step, distance in each.fields.get("dependencies", ())
            ]

    def _channel(self, rank: int, connection: Mapping[str, Any]) -> int:
        peer = int(connection["peer"])
        ends = (rank, peer) if connection["outgoing"] else (peer, rank)
        key = (*ends, int(connection.get("rail", 0)), int(connection.get("channel", 0)))
        return self.channels.setdefault(key, len(self.channels))

    def _order_messages(self) -> None:
        """Number the messages of each channel at both ends: the k-th sent is the k-th received."""
        sent, received = [0] * len(self.channels), [0] * len(self.channels)
        self.send_at: dict[tuple[int, int], tuple[int, int]] = {}  # channel, number -> instruction, micro-batch
        self.receive_at: dict[tuple[int, int], tuple[int, int]] = {}
        for _, _, steps in self.blocks:
            for index, m in self._walk(steps):
                each = self.instructions[index]
                for channel in each.receives:
                    self.receive_at[channel, received[channel]] = (index, m)
                    received[channel] += 1
                if each.sends >= 0:
                    self.send_at[each.sends, sent[each.sends]] = (index, m)
                    sent[each.sends] += 1
        if sent != received:
            raise ValueError("the plan is wrong: a connection does not receive as many messages as are sent on it")

    def _walk(self, steps: range) -> Iterator[tuple[int, int]]:
        """Yield (instruction, micro-batch) in the order in which a TB runs them."""
        batches = range(self.message.micro_batches)
        if not self.by_sub_pipeline:
            yield from ((index, m) for m in batches for index in steps)
            return
        subs = sorted({int(self.instructions[i].fields["sub_pipeline"]) for i in steps})
        for sub in subs:
            inside = [i for i in steps if int(self.instructions[i].fields["sub_pipeline"]) == sub]
            yield from ((index, m) for m in batches for index in inside)

    # The simulation -------------------------------------------------------------------------------------------------

    def outcome(self, keep_events: bool) -> Outcome:
        self._add_activities()
        self._connect()
        try:
            result = self.net.run()
        except ValueError as error:
            raise ValueError(f"the plan cannot end with {self.costs.slots} slots: {error}") from error
        return self._judge(result, keep_events)

    def _add_activities(self) -> None:
        """Add to each instruction and micro-batch a task for taking what it receives, a flow for sending, or both."""
        shape = (len(self.instructions), self.message.micro_batches)
        self.take = np.full(shape, -1, dtype=np.int64)  # own work, at the TB's speed
        self.arrive = np.full(shape, -1, dtype=np.int64)  # own work and messages are there
        self.flow = np.full(shape, -1, dtype=np.int64)
        copy = (
            0.0
            if math.isinf(self.costs.thread_block_bandwidth)
            else self.message.size / self.costs.thread_block_bandwidth
        )
        for index, each in enumerate(self.instructions):
            count = shape[1]
            operands = len(each.receives) + self._local_work(each.fields)
            if operands or each.sends < 0:
                self.take[index] = self.net.add_tasks(np.full(count, copy * operands))
            if each.receives:
                self.arrive[index] = self.net.add_tasks(np.zeros(count))
            if each.sends >= 0:
                start = self.costs.start(each.between_hosts)
                paths = np.tile(np.array(each.path, dtype=np.int32), (count, 1))
                self.flow[index] = self.net.add_flows(paths, np.full(count, self.message.size), latency=start)
        self.first = np.where(self.take >= 0, self.take, self.flow)
        own = np.where(self.arrive >= 0, self.arrive, self.take)
        self.last = np.where(self.flow >= 0, self.flow, own)

    def _local_work(self, fields: Mapping[str, Any]) -> int:
        """Return 1 for an instruction that goes through memory without a message."""
        if fields["opcode"] == "Copy" and self.in_place:
            return int("scratch" in (fields["src"][0], fields["dst"][0]))
        return int(fields["opcode"] in ("Copy", "Reduce"))

    def _connect(self) -> None:
        add = self.net.add_dependency
        take, arrive, flow, first, last = (
            each.tolist() for each in (self.take, self.arrive, self.flow, self.first, self.last)
        )
        for index, each in enumerate(self.instructions):
            for m in range(self.message.micro_batches):
                if each.receives:
                    add(take[index][m], arrive[index][m])
                if each.sends >= 0 and take[index][m] >= 0:
                    add(arrive[index][m] if each.receives else take[index][m], flow[index][m])
                for other, distance in each.dependencies:
                    if m >= distance:
                        add(last[other][m - distance], first[index][m])
        for _, _, steps in self.blocks:
            before = -1
            for index, m in self._walk(steps):
                if before >= 0:
                    add(before, first[index][m])
                before = last[index][m]
        for (channel, number), (index, m) in self.send_at.items():
            receiver, batch = self.receive_at[channel, number]
            add(flow[index][m], arrive[receiver][batch])
            freed = self.receive_at.get((channel, number - self.costs.slots))
            if freed is not None:
                add(arrive[freed[0]][freed[1]], flow[index][m])

    def _judge(self, result: flowsim.Result, keep_events: bool) -> Outcome:
        events: list[Event] = []
        blocks: list[Block] = []
        incoming = self._messages_by_receiver()
        for rank, tb, steps in self.blocks:
            busy = end = 0.0
            for index, m in self._walk(steps):
                begin = self._data_moves_from(index, m, result, incoming)
                finish = float(result.finish[self.last[index, m]])
                busy += finish - begin
                end = finish
                if keep_events:
                    events.append(Event(rank, tb, self.instructions[index].step, m, begin, finish))
            if end > 0:
                blocks.append(Block(rank, tb, busy, end))
        nics, inside = self.wiring.links("nic out", "nic in"), self.wiring.links("gpu out", "gpu in", "pair")
        use = np.minimum(result.link_utilisation, 1.0)
        longest = max(nics + inside, key=lambda link: (float(result.link_busy[link]), -link), default=-1)
        return Outcome(
            seconds=result.end,
            micro_batches=self.message.micro_batches,
            message=self.message.size,
            network_use=_mean(use, nics),
            local_use=_mean(use, inside),
            link_use=_mean(use, nics + inside),
            busiest=float(use[longest]) if longest >= 0 else 0.0,
            blocks=tuple(blocks),
            events=tuple(events),
        )

    def _messages_by_receiver(self) -> dict[tuple[int, int], list[int]]:
        found: dict[tuple[int, int], list[int]] = {}
        for key, (receiver, batch) in self.receive_at.items():
            index, m = self.send_at[key]
            found.setdefault((receiver, batch), []).append(int(self.flow[index, m]))
        return found

    def _data_moves_from(
        self, index: int, m: int, result: flowsim.Result, incoming: Mapping[tuple[int, int], list[int]]
    ) -> float:
        """Return when the TB begins to move data: not while it waits for who sends to it."""
        begin = float(result.start[self.first[index, m]])
        flows = incoming.get((index, m))
        if not flows:
            return begin
        done = float(result.finish[self.arrive[index, m]])
        return min(max(begin, min(float(result.start[flow]) for flow in flows)), done)


def _mean(values: NDArray[np.float64], links: list[int]) -> float:
    return float(values[links].mean()) if links else 0.0
