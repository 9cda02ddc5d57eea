"""`resccl tbs`: thread blocks and their idle time, as the paper's Table 3."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from resccl.cli.console import err, out, say, table_of


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("tbs")(tbs)


def tbs(
    files: Annotated[
        list[Path] | None, typer.Option("--file", "-f", help="A schedule of another tool instead.", metavar="FILE")
    ] = None,
    topology: Annotated[
        str | None, typer.Option("--topology", "-t", help="Of --file; default: one host.", metavar="HxG[xR]")
    ] = None,
    idle: Annotated[bool, typer.Option("--idle/--no-idle", help="Simulate how idle they are: some seconds.")] = True,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the numbers there as well.", metavar="FILE")
    ] = None,
) -> None:
    """Count thread blocks per GPU: MSCCL's allocation, the paper's and ours, on 2x4, 2x8, 4x4 and 4x8."""
    rows = _rows_of_files(files, topology) if files else _table3(idle)
    if json_file is not None:
        json_file.write_text(json.dumps(rows, indent=1, default=asdict) + "\n")


def _rows_of_files(files: list[Path], topology: str | None) -> list[dict[str, object]]:
    rows = [_row_of_file(file, topology) for file in files]
    table = table_of("file", "collective", "ranks", "as given", "ours", numbers=["ranks", "as given", "ours"])
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row.values()))
    out.print(table)
    return rows


def _table3(idle: bool) -> list[dict[str, object]]:
    from resccl.tbs import SHAPES, SIZE

    with err.status("simulating") if idle else nullcontext():
        rows = _count_all(idle)
    shapes = [f"{hosts}x{gpus}" for hosts, gpus in SHAPES]
    table = table_of("algorithm", "by", *shapes, numbers=shapes)
    for row in rows:
        table.add_row(*map(str, row.values()), style="bold" if row["by"] == "ours" else None)
    out.print(table)
    say("Most thread blocks of a GPU; hosts x GPUs. MSCCL: one for each connection and stage. ResCCL: as in the paper.")
    if idle:
        say(f"After the point: the share of their life that they wait; simulated, {SIZE >> 20} MB, a NIC for two GPUs.")
    return rows


def _count_all(idle: bool) -> list[dict[str, object]]:
    from resccl.tbs import ALGORITHMS, COUNTS, SHAPES, rails_of
    from resccl.topology import Topology

    rows: list[dict[str, object]] = []
    for name, build in ALGORITHMS.items():
        for label, count in COUNTS.items():
            counts = {}
            for hosts, gpus in SHAPES:
                where = Topology.uniform(hosts, gpus, rails_of(gpus))
                counts[f"{hosts}x{gpus}"] = count(build(hosts, gpus, where.rails), where, idle)
            rows.append({"algorithm": name, "by": label, **counts})
    return rows


def _row_of_file(file: Path, topology: str | None) -> dict[str, object]:
    from resccl.cli.source import load_plan
    from resccl.formats import raise_algorithm
    from resccl.lang import Algorithm
    from resccl.tbs import count_ours
    from resccl.topology import Topology

    plan = load_plan(file, Topology.parse(topology) if topology else None).plan
    row: dict[str, object] = {
        "file": file.name,
        "collective": plan.collective,
        "ranks": plan.ranks,
        "as given": plan.thread_blocks,
    }
    try:
        algorithm = Algorithm.from_dict(raise_algorithm(plan.to_dict()))
        where = Topology.parse(topology) if topology else Topology.uniform(1, plan.ranks)
        row["ours"] = count_ours(algorithm, where)
    except ValueError as error:
        row["ours"] = f"none: {error}"
    return row
