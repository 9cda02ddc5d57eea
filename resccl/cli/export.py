"""`resccl export FILE`: plans for others: MSCCL XML; or as JSON, for people and programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resccl.cli.console import say


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("export")(export)


def export(
    file: Annotated[Path, typer.Argument(help="A plan, or a schedule of another tool.", metavar="FILE")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="NAME.xml: MSCCL XML. NAME.json: the plan as JSON. NAME.plan.")
    ],
    topology: Annotated[
        str | None, typer.Option("--topology", "-t", help="Where the file holds an algorithm: 2x8.", metavar="HxG[xR]")
    ] = None,
) -> None:
    """Write a plan in another form. A plan goes to XML only if the verifier accepts it."""
    from resccl.cli.source import check_output, load_plan, write_plan
    from resccl.topology import Topology

    check_output(output)
    write_plan(load_plan(file, Topology.parse(topology) if topology else None), output)
    say(f"written: {output}")
