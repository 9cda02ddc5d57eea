"""`theseus status`: what runs on this host, and what its agents agree on."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from theseus_py.cli import attr
from theseus_py.cli.communicators import parts_of
from theseus_py.cli.console import Failure, out
from theseus_py.cli.jobs import JobOption


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("status")(status)


def status(
    job: JobOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON, one object an agent.")] = False,
) -> None:
    """Show the jobs of this host: agents, quorum, communicators, log, schedules, attributes."""
    from theseus_py.agent.client import find
    from theseus_py.errors import TheseusError

    seen: set[str] = set()
    for agent in find():
        with agent:
            if job not in ("", agent.job):
                continue
            try:
                found = agent.status()
            except TheseusError as error:
                raise Failure(error.message) from error
        if as_json:
            out.print_json(json.dumps(found))
        else:
            show(found, with_log=agent.job not in seen)
        seen.add(agent.job)
    if not seen:
        raise Failure(f"no agent of job '{job}' runs here" if job else "no agent runs here: no job has started one")


def show(found: dict[str, Any], *, with_log: bool) -> None:
    """Prints one agent's status; schedules and attributes once a job, as all its agents have the same."""
    out.print(f"[bold]job {escape(found['job'])}[/bold] on host {escape(found['host'])}: {summary_of(found)}")
    if found["frozen"]:
        out.print(f"  [bold yellow]frozen:[/bold yellow] {escape(found['frozen'])}")
    if found["missing_plans"]:
        out.print(f"  waits for plans: {', '.join(found['missing_plans'])}")
    for part in parts_of(found["communicators"]):
        out.print(part)
    if not with_log:
        return
    if found["members"]:
        out.print(_members_of(found))
    if found["schedules"]:
        out.print(schedules_of(found["schedules"]))
    if found["attributes"]:
        out.print(attr.table_of(found["attributes"]))


def summary_of(found: dict[str, Any]) -> str:
    """One line: agreement, log, ranks."""
    if not found["members"]:
        agreement = "waits to hear who takes part"
    elif not found["has_quorum"]:
        agreement = "no quorum"
    else:
        agreement = f"quorum, leader {found['leader']}" if found["leader"] else "quorum, no leader yet"
    log = f"log {found['log_id']:016x} at {found['position']}" if found["log_id"] else "no log yet"
    behind = found["position"] - found["readable"]
    lag = f" ({behind} not readable yet)" if behind else ""
    return f"{agreement}; {log}{lag}; {len(found['ranks'])} rank processes; agent {found['pid']}"


def _members_of(found: dict[str, Any]) -> Table:
    table = Table("host", "address", "votes", "reached")
    for each in found["members"]:
        table.add_row(
            each["host"], each["address"], "yes" if each["votes"] else "follows", "yes" if each["connected"] else "no"
        )
    return table


def schedules_of(schedules: list[dict[str, Any]]) -> Table:
    """Schedules as a table; removed ones are left out."""
    table = Table("id", "schedule", "collective", "what", "usable", "score", "replaces")
    for each in schedules:
        if each["removed"]:
            continue
        what = each["algorithm"] or f"plan {each['plan_hash']:016x}"
        cells = (each["name"], each["collective"], what, each["usable"] or "always", each["score"] or "0")
        table.add_row(str(each["id"]), *(escape(cell) for cell in cells), escape(each["replaces"]))
    return table
