"""MSCCL++ JSON plans: what the file says, checked; memory named by the rank that has it, channels by both their ends.

  gpus[{id, input_chunks, output_chunks, scratch_chunks, channels, remote_buffers, semaphores,
        threadblocks[{id, channels, remote_buffer_refs, ops[{name, src_buff, dst_buff, channel_ids, ...}]}]}]

Thread blocks name channels and remote buffers by their place in lists of their own, which point into the gpu's. The
n-th channel of a kind from gpu a to gpu b and the n-th from b to a are the two ends of one. `tbg_info` says that
tbg_size thread blocks do an operation together, each an equal share of its range: chunks are cut so that a share is
whole chunks. `pipeline` repeats its operations over pieces of the chunks, which is what micro-batches do, so they
stand here for themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import lcm
from typing import Any

from resccl.collectives import ROOTED
from resccl.formats.common import (
    MAX_CHANNEL,
    MAX_CHUNKS,
    MAX_INSTRUCTIONS,
    MAX_RANKS,
    MAX_THREAD_BLOCKS,
    NO_LIMIT,
    FormatError,
    collective_of,
    shortened,
)
from resccl.formats.json_tree import Fields, read_json
from resccl.formats.spaces import Space, too_many_chunks

MAX_SHARES = 64

Cell = tuple[int, str, int]
"""(rank, buffer, offset): buffer is "i", "o" or "s"."""
Channel = tuple[str, int, int, int]
"""(kind, from, to, which of them): one direction of a channel."""

# How the sources and destinations of an operation belong together: each source to its destination, or all to all.
_PAIRED = {"put", "pws", "pwsf", "get", "copy", "ppkt", "rppkt", "cpkt", "upkt", "gstore"}
_REDUCING = {"re", "res", "rre", "rres", "repkt", "respkt", "recpkt", "recspkt", "glres"}
_SYNC = {"signal", "rlxsignal", "wait", "rlxwait", "barrier", "sem_acquire", "sem_release"}
_NOTHING = {"nop", "flush"}
_PACKETS_IN = {"rppkt", "upkt"}  # all sources
_PACKETS_REDUCED = {"repkt", "respkt", "recpkt", "recspkt"}  # all sources but the first
_PACKETS_OUT = {"ppkt", "rppkt", "cpkt"}  # all destinations
_PACKETS_COPIED = {"respkt", "recpkt", "recspkt"}  # all destinations but the first


@dataclass(slots=True)
class Operation:
    """One thing that a thread block does.

    `kind`: "move" (the sum of `reads` to all `writes`, a chunk each), "signal", "wait", "barrier", "acquire" or
    "release". The flags beside reads and writes say which are packets: chunks that carry a sign of their arrival.
    """

    kind: str
    where: str
    reads: list[tuple[Cell, bool]] = field(default_factory=list)
    writes: list[tuple[Cell, bool]] = field(default_factory=list)
    channel: Channel | None = None
    number: int = 0
    parties: int = 0


@dataclass
class MscclppPlan:
    """A whole file. `blocks[rank]` are thread blocks; chunks are the file's, each cut into `shares`."""

    name: str
    space: Space
    shared: bool
    shares: int
    scratch: list[int]
    blocks: list[list[list[Operation]]]
    semaphores: list[list[int]]
    meta: dict[str, object]
    notes: list[str]


class _Gpu:
    """The lists of one gpu that its thread blocks point into."""

    def __init__(self, fields: Fields, ranks: int) -> None:
        self.fields = fields
        self.id = fields.integer("id", 0, ranks - 1)
        self.where = f"{fields.where} (gpu {self.id})"
        self.size = {b: fields.integer(f"{n}_chunks", 0, MAX_CHUNKS, 0) for b, n in _BUFFERS.items()}
        self.channels: dict[str, list[int]] = {}
        self.groups: list[tuple[str, list[int]]] = []
        for channel in fields.objects("channels"):
            kind = channel.text("channel_type")
            if kind == "switch":
                buffer = channel.text("buffer_type", channel.value.get("buff"))
                for group in channel.objects("rank_groups"):
                    self.groups.append((_buffer(buffer, channel.where), group.integers("ranks", 0, ranks - 1)))
            else:
                self.channels.setdefault(kind, []).extend(channel.integers("connected_to", 0, ranks - 1))
        self.remote = [
            (b.integer("rank", 0, ranks - 1), _buffer(b.text("type"), b.where))
            for b in fields.objects("remote_buffers")
        ]
        self.semaphores = [s.integer("init_value", 0, 1 << 20, 0) for s in fields.objects("semaphores")]

    def channel(self, kind: str, index: int) -> tuple[Channel, Channel]:
        """Both directions of a channel: outgoing, incoming."""
        peer = self.channels[kind][index]
        which = self.channels[kind][:index].count(peer)
        return (kind, self.id, peer, which), (kind, peer, self.id, which)


_BUFFERS = {"i": "input", "o": "output", "s": "scratch"}


def _buffer(text: str | None, where: str) -> str:
    if text not in _BUFFERS:
        raise FormatError(f"{where}: {shortened(repr(text), 40)} is none of the buffers i, o and s")
    return text


class _Block:
    """Reads one thread block."""

    def __init__(self, gpus: list[_Gpu], gpu: _Gpu, fields: Fields, id_: int, shares: int, budget: list[int]) -> None:
        self.gpus = gpus
        self.gpu = gpu
        self.shares = shares
        self.budget = budget
        self.where = f"{fields.where.split(':')[0]}: gpu {gpu.id}, threadblock {id_}"
        self.channels: dict[str, list[int]] = {}
        for channel in fields.objects("channels"):
            self.channels[channel.text("channel_type")] = channel.integers("channel_ids", 0, MAX_CHUNKS)
        self.remote: dict[str, list[int]] = {}
        for refs in fields.objects("remote_buffer_refs"):
            self.remote[refs.text("access_channel_type")] = refs.integers("remote_buffer_ids", 0, MAX_CHUNKS)
        self.operations: list[Operation] = []
        for n, op in enumerate(fields.objects("ops")):
            self.read(op, f"{self.where}, op {n}", nested=False)

    def read(self, op: Fields, where: str, nested: bool) -> None:
        name = op.text("name")
        where = f"{where} ({shortened(name, 20)})"
        if name == "pipeline" and not nested:
            for n, inner in enumerate(op.objects("ops")):
                self.read(inner, f"{where}, op {n}", nested=True)
        elif name in _PAIRED or name in _REDUCING:
            self.move(op, name, where)
            if name in ("pws", "pwsf"):
                self.synchronise(op, "signal", where)
        elif name in _SYNC:
            self.synchronise(op, name, where)
        elif name not in _NOTHING:
            raise FormatError(f"{where}: the operation '{shortened(name, 40)}' is not known, so it cannot be run here")

    def synchronise(self, op: Fields, name: str, where: str) -> None:
        if name == "barrier":
            id_ = op.integer("barrier_id", 0, MAX_CHUNKS, 0)
            for key in ("num_threadblocks", "num_thread_blocks"):
                if key in op.value:
                    parties = op.integer(key, 1, MAX_THREAD_BLOCKS)
                    self.operations.append(Operation("barrier", where, number=id_, parties=parties))
                    return
            raise FormatError(f"{where} does not say how many thread blocks it holds")
        if name.startswith("sem_"):
            for id_ in op.integers("semaphore_ids", 0, max(len(self.gpu.semaphores) - 1, 0)):
                if not self.gpu.semaphores:
                    raise FormatError(f"{where}: the gpu has no semaphores")
                self.operations.append(Operation(name[4:], where, number=id_))
            return
        kind = op.text("channel_type", "memory")
        outgoing = name in ("signal", "rlxsignal")
        for id_ in op.integers("channel_ids", 0, MAX_CHUNKS):
            ends = self.gpu.channel(kind, self.index(self.channels, kind, id_, "channel", where))
            self.operations.append(
                Operation("signal" if outgoing else "wait", where, channel=ends[0] if outgoing else ends[1])
            )

    def index(self, lists: dict[str, list[int]], kind: str, id_: int, what: str, where: str) -> int:
        """From a thread block's own number of a channel to the gpu's."""
        mine = lists.get(kind, [])
        size = len(self.gpu.channels.get(kind, ())) if kind != "switch" else len(self.gpu.groups)
        if id_ >= len(mine) or mine[id_] >= size:
            raise FormatError(f"{where}: there is no {shortened(kind, 20)} {what} {id_}")
        return mine[id_]

    def move(self, op: Fields, name: str, where: str) -> None:
        sources = [self.side(b, op, where) for b in op.objects("src_buff")]
        targets = [self.side(b, op, where) for b in op.objects("dst_buff")]
        if not sources or not targets:
            raise FormatError(f"{where} has no src_buff or no dst_buff")
        if name in _REDUCING:
            self.emit(name, where, [s for side in sources for s in side], [t for side in targets for t in side])
        elif len(sources) == len(targets):
            for source, target in zip(sources, targets, strict=True):
                self.emit(name, where, source, target)
        elif len(sources) == 1:
            self.emit(name, where, sources[0], [t for side in targets for t in side])
        else:
            raise FormatError(f"{where} has {len(sources)} sources for {len(targets)} destinations")

    def side(self, buffer: Fields, op: Fields, where: str) -> list[tuple[int, str, range]]:
        """The memory that an entry of src_buff or dst_buff names; a switch channel names that of a whole group."""
        size = buffer.integer("size", 1, MAX_CHUNKS) * self.shares
        first = buffer.integer("index", 0, MAX_CHUNKS) * self.shares
        begin, end = self.share(op, size)
        span = range(first + begin, first + end)
        if "switch_channel_id" in buffer.value:
            id_ = buffer.integer("switch_channel_id", 0, MAX_CHUNKS)
            name, ranks = self.gpu.groups[self.index(self.channels, "switch", id_, "channel", where)]
            others = [(rank, name, span) for rank in ranks if rank != self.gpu.id]
            return [(self.gpu.id, name, span), *others]
        if "buffer_id" in buffer.value:
            mine = self.remote.get(op.text("channel_type", "memory"), [])
            id_ = buffer.integer("buffer_id", 0, MAX_CHUNKS)
            if id_ >= len(mine) or mine[id_] >= len(self.gpu.remote):
                raise FormatError(f"{where}: there is no remote buffer {id_}")
            rank, name = self.gpu.remote[mine[id_]]
        else:
            rank, name = self.gpu.id, _buffer(buffer.text("type"), where)
        limit = max(self.gpus[rank].size[name], 0 if name == "s" else self.gpus[rank].size["io"[name == "i"]])
        if span.stop > limit * self.shares:
            raise FormatError(f"{where}: buffer '{name}' of gpu {rank} has {limit} chunks, and this is outside of them")
        return [(rank, name, span)]

    def share(self, op: Fields, size: int) -> tuple[int, int]:
        """The part of an operation's range that this thread block of a group does."""
        if "tbg_info" not in op.value:
            return 0, size
        info = Fields(op.value["tbg_info"], f"{op.where}, tbg_info")
        parts = info.integer("tbg_size", 1, MAX_SHARES)
        part = info.integer("tb_id", 0, parts - 1)
        return part * size // parts, (part + 1) * size // parts

    def emit(
        self, name: str, where: str, sources: list[tuple[int, str, range]], targets: list[tuple[int, str, range]]
    ) -> None:
        """One move a chunk."""
        sizes = {len(span) for _, _, span in sources + targets}
        if len(sizes) != 1:
            raise FormatError(f"{where} has sources and destinations of different sizes: {sorted(sizes)}")
        size = sizes.pop()
        self.budget[0] -= size * (len(sources) + len(targets))
        if self.budget[0] < 0:
            raise FormatError(f"{where}: more than {MAX_INSTRUCTIONS} accesses to chunks in all")
        for n in range(size):
            reads = [
                ((r, b, span[n]), name in _PACKETS_IN or (name in _PACKETS_REDUCED and k > 0))
                for k, (r, b, span) in enumerate(sources)
            ]
            writes = [
                ((r, b, span[n]), name in _PACKETS_OUT or (name in _PACKETS_COPIED and k > 0))
                for k, (r, b, span) in enumerate(targets)
            ]
            self.operations.append(Operation("move", where, reads, writes))


def parse_mscclpp(data: bytes, name: str) -> MscclppPlan:
    """The plan in the MSCCL++ JSON document `data`; `name` stands for the file in messages.

    Raises FormatError naming file, gpu, threadblock and operation for everything that is not as the format wants it.
    """
    head = Fields(read_json(data, name), name)
    text = head.text("collective")
    collective = collective_of(text)
    if collective is None or collective in ROOTED:
        raise FormatError(f"{name}: collective {shortened(text)!r} is none that MSCCL++ plans can say all about")
    listed = head.items("gpus")
    if not 1 <= len(listed) <= MAX_RANKS:
        raise FormatError(f"{name}: it has {len(listed)} gpus; 1 to {MAX_RANKS} are possible")
    gpus = sorted((_Gpu(f, len(listed)) for f in head.objects("gpus")), key=lambda gpu: gpu.id)
    if [gpu.id for gpu in gpus] != list(range(len(gpus))):
        raise FormatError(f"{name}: its gpus are not numbered from 0, each once")
    shares = _shares(listed, name)
    budget = [MAX_INSTRUCTIONS]
    blocks = [_blocks(gpus, gpu, shares, name, budget) for gpu in gpus]
    meta = {
        "format": "mscclpp-json",
        "name": shortened(head.text("name", "mscclpp"), 200),
        "collective": collective,
        "protocol": shortened(head.text("protocol", "Simple"), 32),
        "channels": max((len(c) for gpu in gpus for c in gpu.channels.values()), default=0),
        "in_place": head.flag("inplace", True),
        "out_of_place": not head.flag("inplace", True),
        "min_bytes": head.integer("min_message_size", 0, NO_LIMIT, 0),
        "max_bytes": head.integer("max_message_size", 0, NO_LIMIT, NO_LIMIT) or NO_LIMIT,
        "buffer_alignment": head.integer("buffer_alignment", 1, 1 << 20, 16),
    }
    space = Space(collective, len(gpus), 0, _pieces(collective, gpus, name) * shares)
    if too_many_chunks(space, MAX_INSTRUCTIONS - budget[0]):
        raise FormatError(f"{name}: its buffers have more chunks than its operations can fill")
    notes = [] if shares == 1 else [f"chunks are cut in {shares}, as groups of thread blocks share operations"]
    return MscclppPlan(
        str(meta["name"]),
        space,
        head.flag("inplace", True),
        shares,
        [gpu.size["s"] * shares for gpu in gpus],
        blocks,
        [gpu.semaphores for gpu in gpus],
        meta,
        notes,
    )


def _pieces(collective: str, gpus: list[_Gpu], name: str) -> int:
    """Chunks a block, from the sizes of the first gpu's buffers."""
    inputs, outputs = gpus[0].size["i"], gpus[0].size["o"]
    ranks = len(gpus)
    found: Any = {
        "AllReduce": inputs or outputs,
        "AllGather": inputs or outputs / ranks,
        "ReduceScatter": outputs if outputs and outputs * ranks == (inputs or outputs * ranks) else inputs / ranks,
        "AllToAll": (inputs or outputs) / ranks,
    }[collective]
    if found < 1 or found != int(found):
        raise FormatError(f"{name}: {inputs} input and {outputs} output chunks do not make an {collective}")
    return int(found)


def _shares(listed: list[Any], name: str) -> int:
    """Into how many parts chunks must be cut so that every share of an operation is whole chunks."""
    sizes = {1}
    stack: list[Any] = list(listed)
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            info = value.get("tbg_info")
            size = info.get("tbg_size") if isinstance(info, dict) else None
            if isinstance(size, int) and 1 <= size <= MAX_SHARES:
                sizes.add(size)
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
    found = lcm(*sizes)
    if found > MAX_SHARES:
        raise FormatError(f"{name}: thread block groups of sizes {sorted(sizes)} would cut chunks in {found} parts")
    return found


def _blocks(gpus: list[_Gpu], gpu: _Gpu, shares: int, name: str, budget: list[int]) -> list[list[Operation]]:
    found: dict[int, list[Operation]] = {}
    for fields in gpu.fields.objects("threadblocks"):
        id_ = fields.integer("id", 0, MAX_CHANNEL)
        if id_ in found:
            raise FormatError(f"{name}: gpu {gpu.id} has threadblock {id_} twice")
        fields.where = f"{name}: "
        found[id_] = _Block(gpus, gpu, fields, id_, shares, budget).operations
    if len(found) > MAX_THREAD_BLOCKS:
        raise FormatError(f"{name}: gpu {gpu.id} has more than {MAX_THREAD_BLOCKS} thread blocks")
    return [found[id_] for id_ in sorted(found)]
