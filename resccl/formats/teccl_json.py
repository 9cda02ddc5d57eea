"""TE-CCL JSON: an algorithm from the flows that the solver found.

The accepted shape is what TE-CCL writes: an object whose keys begin with a number, of which these are read:

  "<n>-Flows": ["Chunk 0 from 3 traveled over 5->6 [with volume 0.5] in epoch 2 [via switches 0->1]", ...]
  "<n>-Chunk paths": {"Demand at 6 for chunk 0 from 3 met by epoch 9": ...}   the keys alone; may be missing
  "1-Epoch_Duration", "3-Epochs_Required", "4-Collective_Finish_Time"         may be missing

A flow is one hop of a source's chunk between gpus; switches on the way hold nothing. Gpus are numbered as the topology
has them (switches may take numbers too) and become ranks in their order. The file does not name its collective: it
follows from who demands what. A flow with a volume below one moves that share of a chunk, and since all shares of a
chunk then have one destination it does not matter which: chunks are cut so that shares are whole.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np

from resccl.formats.common import MAX_CHUNKS, MAX_INSTRUCTIONS, MAX_RANKS, NO_LIMIT, FormatError, Imported, shortened
from resccl.formats.json_tree import Fields, read_json
from resccl.formats.spaces import Space

MAX_SHARES = 64

_FLOW = re.compile(
    r"Chunk (\d{1,9}) from (\d{1,9}) traveled over (\d{1,9})->(\d{1,9})(?: with volume ([0-9.eE+-]{1,40}))?"
    r" in epoch (\d{1,9})(?: via switches .*)?"
)
_DEMAND = re.compile(r"Demand at (\d{1,9}) for chunk (\d{1,9}) from (\d{1,9})\b.*")

_Commodity = tuple[int, int]  # (source, chunk) in the file's numbers


@dataclass(slots=True)
class _Flow:
    commodity: _Commodity
    source: int
    target: int
    epoch: int
    volume: Fraction
    text: str


def import_teccl_json(data: bytes, name: str = "schedule.json") -> Imported:
    """The algorithm in the TE-CCL JSON document `data`; `name` stands for the file in messages.

    Raises FormatError naming file and flow: of a shape that is not known, sent before it was there, never arriving.
    """
    return _Reader(Fields(read_json(data, name), name), name).go()


def flows_key(document: dict[str, Any]) -> str | None:
    """The key of a TE-CCL document's flows; None if it is none."""
    return next((k for k in document if re.fullmatch(r"\d+[a-z]?-Flows", k)), None)


class _Reader:
    def __init__(self, head: Fields, name: str) -> None:
        self.name = name
        self.head = head
        self.notes: list[str] = []
        key = flows_key(head.value)
        if key is None:
            raise FormatError(f"{name}: it has no flows, so it is no schedule of TE-CCL")
        texts = head.items(key)
        if not 1 <= len(texts) <= MAX_INSTRUCTIONS:
            raise FormatError(f"{name}: it has {len(texts)} flows; 1 to {MAX_INSTRUCTIONS} are possible")
        self.flows = sorted((self.flow(n, text) for n, text in enumerate(texts)), key=lambda f: f.epoch)
        demands = self.demands()
        nodes = {n for f in self.flows for n in (f.commodity[0], f.source, f.target)}
        nodes.update(n for commodity, targets in demands.items() for n in (commodity[0], *targets))
        if len(nodes) > MAX_RANKS:
            raise FormatError(f"{name}: it has {len(nodes)} gpus; at most {MAX_RANKS} are possible")
        self.rank = {node: rank for rank, node in enumerate(sorted(nodes))}
        if any(node != rank for node, rank in self.rank.items()):
            self.notes.append(f"its gpus {min(nodes)} to {max(nodes)} are ranks 0 to {len(nodes) - 1}, in that order")
        self.targets = demands or self.sinks()

    def flow(self, number: int, text: Any) -> _Flow:
        found = _FLOW.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise FormatError(f"{self.name}, flow {number}: {shortened(repr(text))} is not of the known shape")
        chunk, origin, source, target, volume, epoch = found.groups()
        try:
            share = Fraction(volume or "1").limit_denominator(MAX_SHARES)
            exact = abs(float(share) - float(volume or "1")) < 1e-6
        except (ValueError, ZeroDivisionError, OverflowError):
            raise FormatError(f"{self.name}, flow {number}: volume {volume} is no number") from None
        if not exact or not 0 < share <= 1:
            raise FormatError(f"{self.name}, flow {number}: volume {volume} is no simple fraction up to 1")
        if source == target:
            raise FormatError(f"{self.name}, flow {number}: from gpu {source} to itself")
        return _Flow((int(origin), int(chunk)), int(source), int(target), int(epoch), share, shortened(text))

    def demands(self) -> dict[_Commodity, set[int]]:
        found: dict[_Commodity, set[int]] = defaultdict(set)
        key = next((k for k in self.head.value if re.fullmatch(r"\d+[a-z]?-Chunk paths", k)), None)
        paths = self.head.value.get(key) if key is not None else None
        for text in paths if isinstance(paths, dict) else ():
            match = _DEMAND.fullmatch(text)
            if match is None:
                raise FormatError(f"{self.name}: the demand {shortened(text)!r} is not of the known shape")
            target, chunk, source = map(int, match.groups())
            if target != source:
                found[source, chunk].add(target)
        return dict(found)

    def sinks(self) -> dict[_Commodity, set[int]]:
        """Who wants what, where the file does not say: all, where everything reaches all; else who keeps it."""
        kept: dict[_Commodity, dict[int, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
        for f in self.flows:
            kept[f.commodity][f.target] += f.volume
            kept[f.commodity][f.source] -= f.volume
        self.notes.append("it does not list its demands: they are told from where its flows end")
        reached = {commodity: set(balance) - {commodity[0]} for commodity, balance in kept.items()}
        whole = all(f.volume == 1 for f in self.flows)
        if whole and all(len(nodes) == len(self.rank) - 1 for nodes in reached.values()):
            return reached
        return {
            commodity: {node for node in reached[commodity] if balance[node] > 0} for commodity, balance in kept.items()
        }

    def go(self) -> Imported:
        collective, root = self.collective()
        ranks = len(self.rank)
        pairwise = collective == "AllToAll"
        group: dict[tuple[int, ...], list[_Commodity]] = defaultdict(list)
        for commodity in sorted(self.targets):
            source, target = commodity[0], min(self.targets[commodity])
            of_block = {"AllToAll": (source, target), "Scatter": (target,)}
            group[of_block.get(collective, (source,))].append(commodity)
        sizes = {len(commodities) for commodities in group.values()}
        if len(sizes) != 1:
            raise FormatError(f"{self.name}: its gpus have different numbers of chunks: {sorted(sizes)}")
        per_block = sizes.pop()
        shares = lcm(*{f.volume.denominator for f in self.flows})
        if shares > MAX_SHARES:
            raise FormatError(f"{self.name}: its volumes would cut chunks in {shares} parts; at most {MAX_SHARES}")
        if shares > 1:
            self.notes.append(f"chunks are cut in {shares}, as flows move parts of them")
        space = Space(collective, ranks, root, per_block * shares)
        if space.chunks > MAX_CHUNKS * 4 or len(self.flows) * shares > MAX_INSTRUCTIONS * 4:
            raise FormatError(
                f"{self.name}: {space.chunks} chunks and {len(self.flows)} flows in {shares} parts are too many"
            )
        first: dict[_Commodity, int] = {}
        for ends, commodities in group.items():
            at = [self.rank[node] for node in ends]
            block = at[0] * ranks + at[1] if pairwise else (0 if collective == "Broadcast" else at[0])
            first.update((c, (block * per_block + n) * shares) for n, c in enumerate(commodities))
        rows = self.parts(first, shares) if shares > 1 else self.whole(first)
        algorithm = {
            "name": self.label(),
            "collective": collective,
            "ranks": ranks,
            "chunks": space.chunks,
            "root": root,
            "transfers": np.asarray(rows, dtype=np.int32).reshape(-1, 6),
        }
        return Imported("algorithm", algorithm=algorithm, meta=self.meta(collective), notes=self.notes)

    def label(self) -> str:
        return "teccl"

    def meta(self, collective: str) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "format": "teccl-json",
            "name": self.label(),
            "collective": collective,
            "protocol": "Simple",
            "channels": 1,
            "in_place": True,
            "out_of_place": True,
            "min_bytes": 0,
            "max_bytes": NO_LIMIT,
        }
        known = {"1-Epoch_Duration": "epoch_seconds", "4-Collective_Finish_Time": "finish_seconds"}
        for key, ours in known.items():
            value = self.head.value.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                meta[ours] = float(value)
        return meta

    def collective(self) -> tuple[str, int]:
        """(collective, root) from who demands what."""
        ranks = len(self.rank)
        sources = {source for source, _ in self.targets}
        wide = {len(targets) for targets in self.targets.values()}
        ends = {min(targets) for targets in self.targets.values() if targets}
        if wide == {ranks - 1} and ranks > 2:
            if len(sources) == 1:
                return "Broadcast", self.rank[min(sources)]
            if len(sources) == ranks:
                return "AllGather", 0
        elif wide == {1}:
            if ranks == 2 and len(sources) == 2:
                return "AllGather", 0
            pairs = {(source, min(self.targets[source, chunk])) for source, chunk in self.targets}
            if len(pairs) == ranks * (ranks - 1):
                return "AllToAll", 0
            if len(sources) == 1 and len(ends) == ranks - 1:
                return "Scatter", self.rank[min(sources)]
            if len(ends) == 1 and len(sources) == ranks - 1:
                return "Gather", self.rank[min(ends)]
        raise FormatError(
            f"{self.name}: its demands are of no known collective: {len(sources)} of {ranks} gpus send chunks, each to "
            f"{sorted(wide)} others"
        )

    def step_of(self) -> dict[int, int]:
        return {epoch: step for step, epoch in enumerate(sorted({f.epoch for f in self.flows}))}

    def whole(self, first: dict[_Commodity, int]) -> list[list[int]]:
        """Transfers of whole chunks, which gpus that pass them on keep."""
        since: dict[tuple[_Commodity, int], int] = {}
        steps = self.step_of()
        rows: list[list[int]] = []
        again = 0
        for f in sorted(self.flows, key=lambda f: (f.epoch, f.source, f.target, f.commodity)):
            if f.commodity not in first:
                continue
            held = f.source == f.commodity[0] or since.get((f.commodity, f.source), f.epoch) < f.epoch
            if not held:
                raise FormatError(f"{self.name}: '{f.text}', and gpu {f.source} does not have it by then")
            if f.target == f.commodity[0] or (f.commodity, f.target) in since:
                again += 1
                continue
            since[f.commodity, f.target] = f.epoch
            ends = [self.rank[f.source], self.rank[f.target]]
            rows.append([*ends, steps[f.epoch], first[f.commodity], 0, -1])
        if again:
            self.notes.append(f"{again} flows bring a chunk to where it is already; left out")
        for commodity, targets in self.targets.items():
            for target in sorted(targets):
                if (commodity, target) not in since:
                    raise FormatError(
                        f"{self.name}: chunk {commodity[1]} of gpu {commodity[0]} never reaches gpu {target}"
                    )
        return rows

    def parts(self, first: dict[_Commodity, int], shares: int) -> list[list[int]]:
        """Transfers of parts of chunks, each of which is at one gpu at a time."""
        if any(len(targets) != 1 for targets in self.targets.values()):
            raise FormatError(
                f"{self.name}: its flows move parts of chunks that several gpus want, and not which parts"
            )
        # Where each part is, and since which epoch, the longest there first.
        at: dict[tuple[_Commodity, int], list[tuple[int, int]]] = defaultdict(list)
        for commodity in first:
            at[commodity, commodity[0]] = [(-1, part) for part in range(shares)]
        steps = self.step_of()
        rows: list[list[int]] = []
        for f in sorted(self.flows, key=lambda f: (f.epoch, f.source, f.target, f.commodity)):
            if f.commodity not in first:
                continue
            here = at[f.commodity, f.source]
            count = int(f.volume * shares)
            moved = [entry for entry in here if entry[0] < f.epoch][:count]
            if len(moved) < count:
                raise FormatError(f"{self.name}: '{f.text}', and gpu {f.source} does not have that much of it by then")
            for entry in moved:
                here.remove(entry)
                at[f.commodity, f.target].append((f.epoch, entry[1]))
                ends = [self.rank[f.source], self.rank[f.target]]
                rows.append([*ends, steps[f.epoch], first[f.commodity] + entry[1], 0, -1])
        for commodity, targets in self.targets.items():
            if len(at[commodity, min(targets)]) != shares:
                source, chunk = commodity
                raise FormatError(f"{self.name}: not all of chunk {chunk} of gpu {source} reaches gpu {min(targets)}")
        return rows
