"""`resccl import FILE...`: schedules of other tools become plans of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from resccl.cli.console import Failure, out, say, table_of


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("import")(import_files)


def import_files(
    files: Annotated[
        list[Path], typer.Argument(help="MSCCL XML, MSCCL++ JSON, TE-CCL JSON; or folders of them.", metavar="FILE...")
    ],
    topology: Annotated[
        str | None, typer.Option("--topology", "-t", help="Where a file holds an algorithm: 2x8.", metavar="HxG[xR]")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The plan of one file, or the folder for several.", metavar="PATH"),
    ] = None,
    verified: Annotated[bool, typer.Option("--verify/--no-verify", help="Prove each plan.")] = True,
) -> None:
    """Import schedules, prove them, and write them as plans. What cannot be imported is named with the reason.

    Exit code 1: some were refused; the good ones are written all the same.
    """
    from resccl.cli.source import load_plan, write_plan
    from resccl.errors import ResCCLError
    from resccl.topology import Topology

    where = Topology.parse(topology) if topology else None
    several = len(files) > 1 or files[0].is_dir()
    table = table_of("file", "format", "collective", "ranks", "TBs", "verdict", numbers=["ranks", "TBs"])
    notes: list[str] = []
    refused = 0
    for file in _expanded(files):
        try:
            loaded = load_plan(file, where)
            if verified:
                loaded.plan.verify()
        except (ResCCLError, ValueError, OSError) as error:
            refused += 1
            table.add_row(escape(file.name), "", "", "", "", escape(f"refused: {error}"))
            continue
        plan = loaded.plan
        notes += [f"{file.name}: {note}" for note in loaded.notes]
        row = (loaded.format, plan.collective, str(plan.ranks), str(plan.thread_blocks))
        table.add_row(escape(file.name), *row, "right" if verified else "not verified")
        if output is not None:
            write_plan(loaded, _target(output, file, several))
    out.print(table)
    for note in notes:
        say(f"note: {note}")
    if refused:
        raise Failure(f"{refused} file{'s' if refused > 1 else ''} refused")


def _expanded(files: list[Path]) -> list[Path]:
    """Return the files, and those in the folders: all but hidden ones and pages for people."""
    found: list[Path] = []
    for file in files:
        inside = sorted(each for each in file.iterdir() if each.is_file()) if file.is_dir() else [file]
        found += [
            each for each in inside if not file.is_dir() or not (each.name.startswith(".") or each.suffix == ".md")
        ]
    if not found:
        raise ValueError(f"{files[0]}: there is no file in it")
    return found


def _target(output: Path, file: Path, several: bool) -> Path:
    if not several:
        return output
    output.mkdir(parents=True, exist_ok=True)
    return output / f"{file.stem}.plan"
