"""What ranks say of their communicators once a second (csrc/runtime/rank_report.h), and what `status` makes of it.

Payload of a REPORT, little-endian, `text` as in wire.py:

    u32 version (1), u32 what (0: how it is, 1: it is over), text communicator, u32 rank, u32 ranks; and of how it is:
    text name, u64 epoch, u64 installed, u64 read, u64 agreements, u32 next K, u32 held back by (2^32-1: nobody),
    u64 bytes, u64 nodes of the resource tree, u64 samples, u32 p50, u32 p99 of the time to execution in ns,
    u32 number, number x (text collective, u32 size class, u32 origin, u32 may share, u64 since, text schedule)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from theseus_py.agent.wire import BadFrame, Unpacker

__all__ = ["RankReport", "Reports", "Selection", "communicators_of", "read_report"]

_VERSION = 1
_MOST_RANKS = 1 << 24
_MOST_SELECTIONS = 1024
_LONGEST = 1 << 18  # bytes of a report
_MOST_COMMUNICATORS = 256  # of one process
_ORIGINS = ("built-in", "context", "loaded")
_NOBODY = (1 << 32) - 1


@dataclass(frozen=True)
class Selection:
    """The schedule that requests of one collective and size class run: of 2^c to 2^(c+1) - 1 bytes, over all ranks."""

    collective: str
    size_class: int
    schedule: str
    origin: str  # one of "built-in", "context", "loaded"
    may_share: bool  # large requests may go over shared buffers instead
    since: int  # request id


@dataclass(frozen=True)
class RankReport:
    """One rank's word on one communicator."""

    communicator: str
    name: str
    rank: int
    ranks: int
    epoch: int
    installed: int  # position of the log
    read: int  # likewise
    agreements: int
    next_k: int
    held_back_by: int | None
    resource_bytes: int
    resource_nodes: int
    samples: int
    p50_ns: int
    p99_ns: int
    selections: tuple[Selection, ...]


def read_report(payload: bytes) -> RankReport | tuple[str, int] | None:
    """Returns a report; communicator and rank of one that is over; None for another version's.

    BadFrame: its sizes or numbers cannot be.
    """
    if len(payload) > _LONGEST:
        raise BadFrame("a report is too long")
    reader = Unpacker(payload)
    if reader.u32() != _VERSION:
        return None
    what, communicator, rank, ranks = reader.u32(), _text(reader), reader.u32(), reader.u32()
    if what > 1 or not rank < ranks <= _MOST_RANKS:
        raise BadFrame("a report of a rank that cannot be")
    if what == 1:
        reader.end()
        return communicator, rank
    name = _text(reader)
    epoch, installed, read, agreements = (reader.u64() for _ in range(4))
    next_k, held_back_by = reader.u32(), reader.u32()
    resource_bytes, resource_nodes, samples = (reader.u64() for _ in range(3))
    p50_ns, p99_ns, count = reader.u32(), reader.u32(), reader.u32()
    if count > _MOST_SELECTIONS:
        raise BadFrame("a report of more size classes than there are")
    selections = tuple(_selection(reader) for _ in range(count))
    reader.end()
    return RankReport(
        communicator, name, rank, ranks, epoch, installed, read, agreements, next_k,
        None if held_back_by == _NOBODY else held_back_by,
        resource_bytes, resource_nodes, samples, p50_ns, p99_ns, selections,
    )  # fmt: skip


def _selection(reader: Unpacker) -> Selection:
    collective, size_class, origin, may_share = _text(reader), reader.u32(), reader.u32(), reader.u32()
    if size_class > 63 or origin >= len(_ORIGINS) or may_share > 1:
        raise BadFrame("a report of a size class or an origin that cannot be")
    since = reader.u64()
    return Selection(collective, size_class, _text(reader), _ORIGINS[origin], bool(may_share), since)


def _text(reader: Unpacker) -> str:
    """A text that may have been cut inside a letter."""
    return reader.raw().decode(errors="replace")


class Reports:
    """The newest report of each communicator of one process, so many at most."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, int], tuple[float, RankReport]] = {}

    def take(self, payload: bytes, now: float) -> None:
        """Takes a report in at `now`, in seconds. BadFrame: see read_report."""
        report = read_report(payload)
        if isinstance(report, RankReport):
            key = report.communicator, report.rank
            self._newest.pop(key, None)
            self._newest[key] = now, report
            if len(self._newest) > _MOST_COMMUNICATORS:
                del self._newest[next(iter(self._newest))]
        elif report is not None:
            self._newest.pop(report, None)

    def newest(self) -> list[tuple[float, RankReport]]:
        """Returns when each came, and the report."""
        return list(self._newest.values())


def communicators_of(reports: Iterable[tuple[float, RankReport]], now: float) -> list[dict[str, Any]]:
    """Returns what `status` says of the communicators of a host's ranks: each with its ranks and schedules.

    The schedules are those of the rank whose word is newest: ranks choose alike.
    """
    by_communicator = groupby(
        sorted(reports, key=lambda each: (each[1].communicator, each[1].rank)), lambda each: each[1].communicator
    )
    found = []
    for communicator, group in by_communicator:
        told = list(group)
        newest = max(told, key=lambda each: each[0])[1]
        found.append({
            "id": communicator,
            "name": newest.name,
            "ranks": newest.ranks,
            "local": [_rank_row(report, now - at) for at, report in told],
            "schedules": _merged(newest.selections),
        })  # fmt: skip
    return sorted(found, key=lambda each: (-each["ranks"], each["id"]))


def _rank_row(report: RankReport, age: float) -> dict[str, Any]:
    return {
        "rank": report.rank,
        "age": round(age, 3),
        "epoch": report.epoch,
        "installed": report.installed,
        "read": report.read,
        "agreements": report.agreements,
        "next_k": report.next_k,
        "held_back_by": report.held_back_by,
        "tte": {"samples": report.samples, "p50": report.p50_ns / 1e9, "p99": report.p99_ns / 1e9},
        "resources": {"bytes": report.resource_bytes, "nodes": report.resource_nodes},
    }


def _merged(selections: tuple[Selection, ...]) -> list[dict[str, Any]]:
    """Neighbouring size classes of one schedule as one row; `since` is the newest of theirs."""
    rows: list[dict[str, Any]] = []
    for each in sorted(selections, key=lambda each: (each.collective, each.size_class)):
        row = {
            "collective": each.collective,
            "from_bytes": 1 << each.size_class,
            "to_bytes": (2 << each.size_class) - 1,
            "schedule": each.schedule,
            "origin": each.origin,
            "may_share": each.may_share,
            "since": each.since,
        }
        same = ("collective", "schedule", "origin", "may_share")
        last = rows[-1] if rows else None
        if last and all(last[key] == row[key] for key in same) and last["to_bytes"] + 1 == row["from_bytes"]:
            last["to_bytes"], last["since"] = row["to_bytes"], max(last["since"], row["since"])
        else:
            rows.append(row)
    return rows
