"""`theseus explain COLLECTIVE`: which algorithm a request would run on, and why."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from theseus_py.cli.console import core, out


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("explain")(explain)


def explain(
    collective: Annotated[str, typer.Argument(help="all_reduce, all_gather, reduce_scatter, broadcast...")],
    size: Annotated[
        str, typer.Option("--bytes", "-b", help="Size of the request, as in theseus perf.", metavar="SIZE")
    ] = "1M",
    ranks: Annotated[int, typer.Option("--ranks", help="Ranks in the communicator.")] = 2,
    hosts: Annotated[int, typer.Option("--hosts", help="Hosts they are spread over.")] = 1,
    rails: Annotated[int, typer.Option("--rails", help="Network rails per host.")] = 1,
    algo: Annotated[
        str | None, typer.Option("--algo", help="As THESEUS_ALGO, which is the default here.", metavar="LIST")
    ] = None,
) -> None:
    """Say which algorithm a request would run on, what else was considered, and why."""
    from theseus_py.cli.names import collective_of
    from theseus_py.dtypes import Collective
    from theseus_py.perf.options import parse_size
    from theseus_py.spawn import Layout

    layout = Layout(ranks, hosts, rails)
    name = collective_of(collective)
    number = Collective[{"alltoall": "ALL_TO_ALL", "sendrecv": "SEND_RECV"}.get(name, name.upper())]
    wanted = algo if algo is not None else os.environ.get("THESEUS_ALGO", os.environ.get("NCCL_ALGO", ""))
    bytes_asked = parse_size(size)
    found = core().explain(int(number), bytes_asked, layout.ranks, layout.hosts, layout.rails, wanted)

    out.print(f"{name}, {size}, {layout.describe()}")
    chosen = found["chosen"]
    if not chosen:
        out.print(found["reason"], markup=False)
        return
    out.print(Text.assemble("chosen: ", (chosen, "bold green"), f" ({found['reason']})"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("algorithm")
    table.add_column("predicted", justify="right")
    table.add_column("why")
    for algorithm, usable, score, reason in sorted(found["candidates"], key=lambda each: (not each[1], each[2])):
        predicted = _time_text(score) if usable else "not usable"
        table.add_row(algorithm, predicted, escape(reason), style="bold" if algorithm == chosen else None)
    out.print(table)


def _time_text(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
