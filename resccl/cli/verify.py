"""`resccl verify FILE`: is a plan right, whatever the interleaving? If not, the run that shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resccl.cli.console import Failure, say

_MOST_LINES = 40


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("verify")(verify)


def verify(
    file: Annotated[Path, typer.Argument(help="A plan, or a schedule of another tool.", metavar="FILE")],
    slots: Annotated[int, typer.Option("--slots", help="Messages that a connection holds; 0: rendezvous.", min=0)] = 8,
    topology: Annotated[
        str | None, typer.Option("--topology", "-t", help="Where the file holds an algorithm: 2x8.", metavar="HxG[xR]")
    ] = None,
    any_count: Annotated[
        bool, typer.Option("--any-count", help="For every count, not only those that divide into equal chunks.")
    ] = False,
    equal_bits: Annotated[
        bool, typer.Option("--equal-bits/--any-order", help="All ranks reduce a chunk in one order.")
    ] = True,
    most_blocks: Annotated[int, typer.Option("--max-tbs", help="Thread blocks that a rank may have; 0: any.")] = 0,
    full: Annotated[bool, typer.Option("--full", help="Print the whole interleaving.")] = False,
) -> None:
    """Prove a plan: right results, no race, no deadlock, for any number of micro-batches.

    Exit code 1: it is refused.
    """
    from resccl.cli.source import load_plan
    from resccl.errors import VerificationError
    from resccl.topology import Topology

    loaded = load_plan(file, Topology.parse(topology) if topology else None)
    for note in loaded.notes:
        say(f"note: {note}")
    plan = loaded.plan
    try:
        plan.verify(slots=slots, equal_bits=equal_bits, any_count=any_count, max_thread_blocks=most_blocks)
    except VerificationError as refusal:
        from resccl.refusal import lines_of

        lines = lines_of(plan, refusal)
        if not full and len(lines) > _MOST_LINES:
            left = len(lines) - _MOST_LINES
            lines = [lines[0], f"... {left} earlier instructions (--full prints them)", *lines[-_MOST_LINES + 1 :]]
        raise Failure(f"{file}: {refusal}", lines) from refusal
    say(
        f"right: {plan.name}, {plan.collective} over {plan.ranks} ranks, {plan.thread_blocks} TBs, "
        f"with {slots} slots a connection, in place and out of place"
    )
