"""MSCCL XML: what the file says, checked, before anything is made of it.

The format, as msccl-tools, TACCL, TE-CCL and hand-written files have it:

  <algo name coll proto nchannels nchunksperloop ngpus inplace outofplace minBytes maxBytes>
    <gpu id i_chunks o_chunks s_chunks>
      <copy i_off o_off/>                       input to output before anything else, when called out of place
      <tb id send recv chan>                    at most one peer a direction
        <step s type srcbuf srcoff dstbuf dstoff cnt depid deps hasdep/>

Steps run in the order of `s`, whatever their order in the file. `depid` and `deps` name a thread block of the same gpu
and one of its steps, counting nops; -1: none. A step has one dependency, more are nops before it. `coll` is spelled
with and without underscores. Only ids, peers, types, buffers and offsets must be there; the rest has defaults.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

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
    integer,
    saturated,
    shortened,
)
from resccl.formats.xml_tree import Element, read_xml

TYPES = {
    "s": "Send",
    "r": "Recv",
    "rcs": "RecvCopySend",
    "rrs": "RecvReduceSend",
    "rrc": "RecvReduceCopy",
    "rrcs": "RecvReduceCopySend",
    "cpy": "Copy",
    "re": "Reduce",
    "nop": "Nop",
}
BUFFERS = {"i": "i", "o": "o", "s": "s", "input": "i", "output": "o", "scratch": "s"}

_ALGO = {
    "name", "coll", "proto", "nchannels", "nchunksperloop", "ngpus", "inplace", "outofplace", "minBytes", "maxBytes",
    "root", "redop",
}  # fmt: skip
_GPU = {"id", "i_chunks", "o_chunks", "s_chunks"}
_TB = {"id", "send", "recv", "chan"}
_STEP = {"s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"}
_COPY = {"i_off", "o_off", "cnt"}


@dataclass(slots=True)
class Step:
    """A step: `type` as in the file; `src` and `dst` are (buffer, offset) where the type uses them."""

    s: int
    type: str
    src: tuple[str, int] | None
    dst: tuple[str, int] | None
    count: int
    depends: tuple[int, int] | None
    where: str


@dataclass(slots=True)
class ThreadBlock:
    """A thread block: peers are -1 where it has none."""

    id: int
    send: int
    recv: int
    channel: int
    steps: list[Step]


@dataclass
class Gpu:
    """A gpu: sizes of its buffers in chunks, copies (input, output), thread blocks by id."""

    id: int
    chunks: dict[str, int]
    copies: list[tuple[int, int]]
    thread_blocks: list[ThreadBlock]


@dataclass
class MscclAlgorithm:
    """A whole file. `loop_chunks` is nchunksperloop, 0 where the file does not say."""

    name: str
    collective: str
    root: int
    loop_chunks: int
    in_place: bool | None
    out_of_place: bool | None
    meta: dict[str, object]
    gpus: list[Gpu]
    notes: list[str] = field(default_factory=list)


class _Parser:
    def __init__(self, file: str) -> None:
        self.file = file
        self.unknown: set[str] = set()
        self.instructions = 0
        self.reordered = 0

    def refuse(self, where: str, why: str) -> FormatError:
        return FormatError(f"{self.file}{', ' if where else ''}{where}: {why}")

    def number(self, element: Element, key: str, where: str, low: int, high: int, default: int | None = None) -> int:
        """The number of an attribute, between `low` and `high`; without a default it must be there."""
        text = element.attributes.get(key)
        if text is None:
            if default is None:
                raise self.refuse(where, f"<{element.tag}> at line {element.line} has no attribute '{key}'")
            return default
        value = integer(text)
        if value is None:
            raise self.refuse(where, f"{key}={shortened(text)!r} is no whole number")
        if not low <= value <= high:
            raise self.refuse(where, f"{key}={value} is not between {low} and {high}")
        return value

    def spend(self, moves: int, where: str) -> None:
        """Counts what the file's small numbers make, before it is made."""
        self.instructions += moves
        if self.instructions > MAX_INSTRUCTIONS:
            raise self.refuse(where, f"more than {MAX_INSTRUCTIONS} chunk moves in all")

    def know(self, element: Element, known: set[str]) -> None:
        self.unknown.update(f"{element.tag}.{a}" for a in element.attributes if a not in known)

    def flag(self, root: Element, key: str) -> bool | None:
        value = self.number(root, key, "", -1, 1, -1)
        return None if value < 0 else value == 1

    def algorithm(self, root: Element) -> MscclAlgorithm:
        if root.tag != "algo":
            raise self.refuse("", f"its root is <{shortened(root.tag)}>, an MSCCL schedule's is <algo>")
        self.know(root, _ALGO)
        text = root.attributes.get("coll")
        collective = None if text is None else collective_of(text)
        if collective is None:
            raise self.refuse("", f"coll={shortened(text or '')!r} is no collective that plans can express")
        gpus = self.gpus(root)
        notes = []
        ranks = len(gpus)
        declared = self.number(root, "ngpus", "", 1, MAX_RANKS, ranks)
        if declared != ranks:
            raise self.refuse("", f"it says ngpus={declared} and has {ranks} gpus; the file seems cut off")
        if "minBytes" not in root.attributes or "maxBytes" not in root.attributes:
            notes.append("it does not bound the sizes that it is for: 0 and no limit are assumed where absent")
        if self.unknown:
            notes.append("attributes that mean nothing here: " + ", ".join(sorted(self.unknown)[:12]))
        if self.reordered:
            notes.append(f"{self.reordered} thread blocks have their steps out of order; they run in the order of 's'")
        root_rank = self.number(root, "root", "", 0, ranks - 1, 0)
        if collective in ROOTED and "root" not in root.attributes:
            notes.append("it names no root: 0 is assumed")
        return MscclAlgorithm(
            shortened(root.attributes.get("name") or "msccl", 200),
            collective,
            root_rank,
            self.number(root, "nchunksperloop", "", 1, MAX_CHUNKS, 0),
            self.flag(root, "inplace"),
            self.flag(root, "outofplace"),
            self.meta(root),
            gpus,
            notes,
        )

    def meta(self, root: Element) -> dict[str, object]:
        bounds = (-(1 << 130), 1 << 130)
        largest = saturated(self.number(root, "maxBytes", "", *bounds, 0))
        return {
            "protocol": shortened(root.attributes.get("proto", "Simple"), 32),
            "channels": self.number(root, "nchannels", "", 0, MAX_CHANNEL + 1, 0),
            "min_bytes": saturated(self.number(root, "minBytes", "", *bounds, 0)),
            "max_bytes": largest or NO_LIMIT,
        }

    def gpus(self, root: Element) -> list[Gpu]:
        found: dict[int, Gpu] = {}
        for element in self.only(root, ("gpu",), ""):
            gpu = self.gpu(element)
            if gpu.id in found:
                raise self.refuse(f"gpu {gpu.id}", f"it is there twice, again at line {element.line}")
            found[gpu.id] = gpu
        if not 1 <= len(found) <= MAX_RANKS:
            raise self.refuse("", f"it has {len(found)} gpus; 1 to {MAX_RANKS} are possible")
        missing = next((g for g in range(len(found)) if g not in found), None)
        if missing is not None:
            raise self.refuse("", f"its {len(found)} gpus are not numbered from 0: gpu {missing} is missing")
        gpus = [found[g] for g in range(len(found))]
        for gpu in gpus:
            for tb in gpu.thread_blocks:
                where = f"gpu {gpu.id}, tb {tb.id}"
                for peer in (tb.send, tb.recv):
                    if peer >= len(gpus) or peer == gpu.id:
                        raise self.refuse(where, f"peer {peer} is not another of its {len(gpus)} gpus")
        return gpus

    def only(self, parent: Element, tags: Iterable[str], where: str) -> list[Element]:
        for child in parent.children:
            if child.tag not in tags:
                raise self.refuse(
                    where, f"<{shortened(child.tag)}> at line {child.line} is not known inside of <{parent.tag}>"
                )
        return parent.children

    def gpu(self, element: Element) -> Gpu:
        self.know(element, _GPU)
        id_ = self.number(element, "id", "", 0, MAX_RANKS - 1)
        where = f"gpu {id_}"
        chunks = {b: self.number(element, f"{b}_chunks", where, 0, MAX_CHUNKS, 0) for b in "ios"}
        copies: list[tuple[int, int]] = []
        blocks: dict[int, ThreadBlock] = {}
        for child in self.only(element, ("copy", "tb"), where):
            if child.tag == "copy":
                self.know(child, _COPY)
                source = self.number(child, "i_off", where, 0, MAX_CHUNKS)
                target = self.number(child, "o_off", where, 0, MAX_CHUNKS)
                count = self.number(child, "cnt", where, 1, MAX_CHUNKS, 1)
                self.spend(count, where)
                copies.extend((source + n, target + n) for n in range(count))
                continue
            tb = self.thread_block(child, where, chunks)
            if tb.id in blocks:
                raise self.refuse(f"{where}, tb {tb.id}", f"it is there twice, again at line {child.line}")
            blocks[tb.id] = tb
        if len(blocks) > MAX_THREAD_BLOCKS:
            raise self.refuse(where, f"it has {len(blocks)} thread blocks; at most {MAX_THREAD_BLOCKS} are possible")
        gpu = Gpu(id_, chunks, copies, [blocks[t] for t in sorted(blocks)])
        self.check_dependencies(gpu, blocks)
        self.check_connections(gpu)
        return gpu

    def check_dependencies(self, gpu: Gpu, blocks: dict[int, ThreadBlock]) -> None:
        for tb in gpu.thread_blocks:
            for step in tb.steps:
                if step.depends is None:
                    continue
                on, number = step.depends
                if on not in blocks or not 0 <= number < len(blocks[on].steps):
                    raise FormatError(f"{step.where} waits for tb {on}, step {number}, which does not exist")

    def check_connections(self, gpu: Gpu) -> None:
        """Two thread blocks on one connection would have to say whose message is whose."""
        owner: dict[tuple[str, int, int], int] = {}
        for tb in gpu.thread_blocks:
            for verb, peer in (("send to", tb.send), ("receive from", tb.recv)):
                if peer < 0 or not any(_uses(step, verb) for step in tb.steps):
                    continue
                other = owner.setdefault((verb, peer, tb.channel), tb.id)
                if other != tb.id:
                    raise self.refuse(
                        f"gpu {gpu.id}, tb {tb.id}",
                        f"it and tb {other} both {verb} gpu {peer} on channel {tb.channel}; give each its own channel",
                    )

    def thread_block(self, element: Element, gpu: str, chunks: dict[str, int]) -> ThreadBlock:
        self.know(element, _TB)
        id_ = self.number(element, "id", gpu, 0, MAX_CHUNKS)
        where = f"{gpu}, tb {id_}"
        steps: dict[int, Step] = {}
        previous = -1
        in_order = True
        for child in self.only(element, ("step",), where):
            step = self.step(child, where, chunks)
            if step.s in steps:
                raise self.refuse(f"{where}, step {step.s}", f"it is there twice, again at line {child.line}")
            in_order = in_order and step.s > previous
            previous = step.s
            steps[step.s] = step
        self.reordered += not in_order
        gap = next((s for s in range(len(steps)) if s not in steps), None)
        if gap is not None:
            raise self.refuse(where, f"its steps are numbered up to {max(steps)}, and step {gap} is missing")
        tb = ThreadBlock(
            id_,
            self.number(element, "send", where, -1, MAX_RANKS, -1),
            self.number(element, "recv", where, -1, MAX_RANKS, -1),
            self.number(element, "chan", where, -1, MAX_CHANNEL, 0),
            [steps[s] for s in range(len(steps))],
        )
        tb.channel = max(tb.channel, 0)
        for step in tb.steps:
            for verb, peer in (("send to", tb.send), ("receive from", tb.recv)):
                if peer < 0 and _uses(step, verb):
                    raise FormatError(f"{step.where} has nobody to {verb}: its tb has no such peer")
        return tb

    def step(self, element: Element, tb: str, chunks: dict[str, int]) -> Step:
        self.know(element, _STEP)
        s = self.number(element, "s", tb, 0, MAX_INSTRUCTIONS)
        type_ = element.attributes.get("type", "")
        where = f"{tb}, step {s}"
        if type_ not in TYPES:
            raise self.refuse(where, f"type={shortened(type_)!r} is none of {' '.join(TYPES)}")
        count = self.number(element, "cnt", where, 0, MAX_CHUNKS, 0 if type_ == "nop" else 1)
        if count == 0 and type_ != "nop":
            raise self.refuse(where, f"a '{type_}' of cnt=0 moves nothing")
        self.spend(max(count, 1), where)
        on = self.number(element, "depid", where, -1, MAX_CHUNKS, -1)
        step = self.number(element, "deps", where, -1, MAX_INSTRUCTIONS, -1)
        src = dst = None
        if type_ in ("s", "rrs", "rrc", "rrcs", "cpy", "re"):
            src = self.cell(element, "src", where, count, chunks)
        if type_ in ("r", "rcs", "rrc", "rrcs", "cpy", "re"):
            dst = self.cell(element, "dst", where, count, chunks)
        depends = (on, step) if on >= 0 else None
        return Step(s, type_, src, dst, count, depends, f"{self.file}, {where} ({type_})")

    def cell(self, element: Element, side: str, where: str, count: int, chunks: dict[str, int]) -> tuple[str, int]:
        name = element.attributes.get(f"{side}buf", "")
        buffer = BUFFERS.get(name)
        if buffer is None:
            raise self.refuse(where, f"{side}buf={shortened(name)!r} is none of i, o and s")
        offset = self.number(element, f"{side}off", where, 0, MAX_CHUNKS)
        # Files that run in place only may leave out the size of a buffer that is part of the other.
        size = chunks[buffer] if buffer == "s" else chunks[buffer] or MAX_CHUNKS
        if offset + count > size:
            raise self.refuse(
                where, f"{side}off={offset} with cnt={count} is outside of buffer '{buffer}', which has {size} chunks"
            )
        return buffer, offset


def _uses(step: Step, verb: str) -> bool:
    return (
        step.type == "s" or step.type.endswith("cs") or step.type == "rrs"
        if verb == "send to"
        else (step.type.startswith("r") and step.type != "re")
    )


def parse_msccl(data: bytes, name: str) -> MscclAlgorithm:
    """The schedule in the MSCCL XML document `data`; `name` stands for the file in messages.

    Raises FormatError naming file, gpu, tb and step for everything that is not as the format wants it.
    """
    return _Parser(name).algorithm(read_xml(data, name))
