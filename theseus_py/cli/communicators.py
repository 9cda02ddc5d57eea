"""How `theseus top` and `theseus status` show the communicators of a host's ranks: context, cost, schedules in use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rich.markup import escape
from rich.table import Table

_SILENT_SECONDS = 5.0  # ranks report once a second


def parts_of(communicators: list[dict[str, Any]]) -> list[Table | str]:
    """Returns a table of communicators, a row each, what is odd about their ranks, and the schedules in use.

    Nothing where no rank told.
    """
    if not communicators:
        return []
    parts: list[Table | str] = [_context_table(communicators)]
    parts += [line for each in communicators for line in _oddities(each)]
    if any(each["schedules"] for each in communicators):
        parts.append(_schedule_table(communicators))
    return parts


def _context_table(communicators: list[dict[str, Any]]) -> Table:
    table = Table(
        "communicator", "ranks", "epoch", "log", "agreed", "next K", "TTE p50, p99", "resources",
        title="communicators of this host's ranks",
    )  # fmt: skip
    for each in communicators:
        local = each["local"]
        nodes = sum(rank["resources"]["nodes"] for rank in local)
        table.add_row(
            _name_of(each),
            f"{len(local)} of {each['ranks']}",
            _span(rank["epoch"] for rank in local),
            f"{_span(rank['installed'] for rank in local)} of {_span(rank['read'] for rank in local)}",
            *(_span(rank[key] for rank in local) for key in ("agreements", "next_k")),
            ", ".join(_slowest(local, quantile) for quantile in ("p50", "p99")),
            f"{size_text(sum(rank['resources']['bytes'] for rank in local))}, {nodes} nodes",
        )
    return table


def _schedule_table(communicators: list[dict[str, Any]]) -> Table:
    table = Table("communicator", "collective", "size", "schedule", "from", "since request", title="schedules in use")
    for each in communicators:
        for row in each["schedules"]:
            sizes = f"{size_text(row['from_bytes'])} to {size_text(row['to_bytes'] + 1)}"
            schedule = row["schedule"] + (", or shared buffers" if row["may_share"] else "")
            cells = (row["collective"], sizes, schedule, row["origin"])
            table.add_row(_name_of(each), *(escape(cell) for cell in cells), str(row["since"]))
    return table


def _name_of(communicator: dict[str, Any]) -> str:
    return escape(communicator["name"] or communicator["id"][:8])


def _oddities(communicator: dict[str, Any]) -> list[str]:
    """Ranks that are silent, or keep the others from what is new."""
    local = communicator["local"]
    silent = [rank["rank"] for rank in local if rank["age"] > _SILENT_SECONDS]
    holding = sorted({rank["held_back_by"] for rank in local} - {None})
    lines = [f"silent: rank {_list(silent)}"] if silent else []
    lines += [f"the newest context waits for rank {_list(holding)}"] if holding else []
    return [f"[yellow]{_name_of(communicator)}: {line}[/yellow]" for line in lines]


def _list(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:4])) + (", ..." if len(ranks) > 4 else "")


def _span(values: Iterable[int]) -> str:
    """One number where all ranks have the same."""
    found = sorted(set(values))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _slowest(local: list[dict[str, Any]], quantile: str) -> str:
    """The quantile of the rank where it is largest."""
    measured = [rank["tte"][quantile] for rank in local if rank["tte"]["samples"] > 0]
    return duration_text(max(measured)) if measured else "-"


def size_text(size: int) -> str:
    """8 B, 64 KB, 1 MB: units of 1024."""
    return _scaled(size, (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)), lambda value: f"{value:.4g}", "B")


def duration_text(seconds: float) -> str:
    """850 ns, 3.2 us, 14 ms, 2.5 s."""
    units = (("s", 1e9), ("ms", 1e6), ("us", 1e3))
    return _scaled(round(seconds * 1e9), units, lambda value: f"{value:.3g}", "ns")


def _scaled(value: int, units: tuple[tuple[str, float], ...], text: Callable[[float], str], smallest: str) -> str:
    for unit, scale in units:
        if value >= scale:
            return f"{text(value / scale)} {unit}"
    return f"{value} {smallest}"
