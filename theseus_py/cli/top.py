"""`theseus top`: a running job, live: its NICs, what the agents do about them, and what its communicators run."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from theseus_py.cli.communicators import parts_of
from theseus_py.cli.console import out
from theseus_py.cli.jobs import JobOption, agent_of

_BAR = 8  # characters of a full bar


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("top")(top)


def top(
    job: JobOption = "",
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", help="Between two pictures.", min=0.1)] = 1.0,
) -> None:
    """Watch a running job: each NIC's health and goodput, contexts and schedules in use, what was done."""
    rates = Rates()
    with agent_of(job) as agent:
        rates.take(agent.status())
        if once:
            time.sleep(min(seconds, 1.0))
            out.print(picture(agent.status(), rates))
            return
        with Live(console=out, auto_refresh=False) as live:
            while True:
                time.sleep(seconds)
                live.update(picture(agent.status(), rates), refresh=True)


@dataclass
class Rates:
    """Bytes a second of this host's flows, from the counters of two statuses."""

    before: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    at: float = 0.0

    def take(self, status: dict[str, Any]) -> dict[tuple[str, int], tuple[float, float]]:
        """Returns, by peer and rail, bytes a second while data waited, and the share of the time it did."""
        now = time.monotonic()
        flows = {
            (peer, rail): (moved, waited)
            for peer, rail, moved, waited, *_ in (status["monitor"] or {"flows": []})["flows"]
        }
        rates = {}
        for flow, (moved, waited) in flows.items():
            moved_before, waited_before = self.before.get(flow, (moved, waited))
            if waited > waited_before:
                share = (waited - waited_before) / 1e9 / max(now - self.at, 1e-9)
                rates[flow] = ((moved - moved_before) * 1e9 / (waited - waited_before), min(1.0, share))
        self.before, self.at = flows, now
        return rates


def picture(status: dict[str, Any], rates: Rates) -> Group:
    """Returns what one refresh shows of a status."""
    monitor = status["monitor"] or {}
    head = (
        f"[bold]job {escape(status['job'])}[/bold], log at {status['position']}, "
        f"{'quorum' if status['has_quorum'] else '[bold red]no quorum[/bold red]'}; "
        + (f"healing map {monitor.get('map')}" if monitor.get("map") else "no healing: normal schedules")
    )
    parts: list[Any] = [head]
    if (health := _health_of(status)) is not None:
        parts.append(_health_table(health))
    parts.append(_flows_table(rates.take(status)))
    parts += parts_of(status["communicators"])
    parts += [_event_line(event) for event in monitor.get("events", [])[-5:]]
    return Group(*parts)


def _health_of(status: dict[str, Any]) -> list[list[float]] | None:
    """The published map, hosts x rails; None before there is one."""
    values = next((each["values"] for each in status["attributes"] if each["name"] == "nic_health"), None)
    hosts = len(status["members"])
    if values is None or hosts == 0 or len(values) % hosts:
        return None
    rails = len(values) // hosts
    return [list(values[host * rails : (host + 1) * rails]) for host in range(hosts)]


def _health_table(health: list[list[float]]) -> Table:
    table = Table("host", *(f"NIC {rail}" for rail in range(len(health[0]))), title="health, as published")
    for host, row in enumerate(health):
        table.add_row(str(host), *(_bar(value) for value in row))
    return table


def _bar(value: float) -> str:
    full = round(value * _BAR)
    color = "green" if value > 0.9 else "yellow" if value >= 0.5 else "red"
    return f"[{color}]{'█' * full}{'·' * (_BAR - full)}[/{color}] {value:.2f}"


def _flows_table(rates: dict[tuple[str, int], tuple[float, float]]) -> Table:
    table = Table("to host", "NIC", "goodput while data waits", "waited", title="from this host")
    for (peer, rail), (goodput, share) in sorted(rates.items()):
        table.add_row(escape(peer), str(rail), f"{goodput / 1e6:.1f} MB/s", f"{100 * share:.0f} %")
    return table


def _event_line(event: dict[str, Any]) -> str:
    planned = (event["planned"] - event["detected"]) / 1e6
    line = f"detected, planned within {planned:.0f} ms"
    if "in_log" in event:
        line += f", in the log {(event['in_log'] - event['planned']) / 1e6:.0f} ms later: map {event['map']}"
    return line
