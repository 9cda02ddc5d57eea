"""`leveller explain`: why a job has the levels it has."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer
from rich.markup import escape

from leveller.cli.console import out, say, table_of
from leveller.cli.options import ControllerOption, SecretOption, ask


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("explain")(explain)


def explain(
    job: Annotated[str, typer.Argument(help="The job's name.", metavar="JOB")],
    controller: ControllerOption,
    secret: SecretOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say why a job has its levels: its rate, whom its flows meet, and what could not be enforced."""
    found = asyncio.run(ask(controller, secret, "explain", job))
    if as_json:
        return say(json.dumps(found, indent=1))
    rate = "not known yet" if found["rate"] is None else f"{found['rate']:.3f}"
    ideal = "not measured yet" if found["ideal"] is None else f"{found['ideal']:.3g} s"
    say(f"{found['job']}: R {rate}, ideal iteration time {ideal}")
    say(f"{found['job']}: {found['why']}")
    table = table_of("flow", "level", "path", "meets (their level)", numbers=["level"])
    for flow in found["flows"]:
        meets = ", ".join(f"{name} ({level})" for name, level in flow["meets"].items())
        table.add_row(escape(flow["flow"]), str(flow["level"]), escape(", ".join(flow["path"]) or "?"), escape(meets))
    out.print(table)
    for each in found["refused"]:
        say(f"not marked on {each['host']}: {each['flow']}, asked for DSCP {each['requested']}: {each['reason']}")
