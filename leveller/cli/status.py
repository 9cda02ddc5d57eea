"""`leveller status`: how the cluster's jobs do."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from leveller.cli.console import out, say, table_of
from leveller.cli.options import ControllerOption, SecretOption, ask


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("status")(status)


def status(
    controller: ControllerOption,
    secret: SecretOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on, once a second.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show every job's progress rate and levels, and every agent."""
    found = asyncio.run(ask(controller, secret, "status"))
    if as_json:
        say(json.dumps(found, indent=1))
    elif not watch:
        out.print(jobs_table(found))
        out.print(hosts_table(found))
    else:
        with Live(jobs_table(found), console=out, auto_refresh=False) as live:
            while True:
                time.sleep(1)
                live.update(jobs_table(asyncio.run(ask(controller, secret, "status"))), refresh=True)


def jobs_table(found: dict[str, Any]) -> Table:
    """Rows of jobs, the one that is furthest behind first."""
    numbers = ["R", "ideal", "flows", "weight"]
    table = table_of("job", *numbers, "levels", "hosts", numbers=numbers)
    table.title = f"{found['policy']}, {found['levels']} levels, round {found['rounds']}"
    for job in sorted(found["jobs"], key=lambda job: (job["rate"] is None, job["rate"])):
        table.add_row(
            escape(job["job"]),
            "?" if job["rate"] is None else f"{job['rate']:.3f}",
            "?" if job["ideal"] is None else f"{job['ideal']:.3g} s",
            str(job["flows"]),
            f"{job['weight']:g}",
            ("alone at the top: " if job["profiling"] else "") + ", ".join(map(str, job["levels"])),
            escape(", ".join(job["hosts"])),
        )
    return table


def hosts_table(found: dict[str, Any]) -> Table:
    """Rows of agents."""
    table = table_of("host", "marked", "refused", "heard", numbers=["marked", "refused", "heard"])
    for host in found["hosts"]:
        refused = str(host["refused"])
        table.add_row(escape(host["host"]), str(host["marked"]), refused, f"{host['heard']:.1f} s ago")
    return table
