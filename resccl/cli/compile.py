"""`resccl compile SOURCE`: from an algorithm to a plan, proven and written to a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from resccl.cli.console import (
    CollectiveOption,
    RootOption,
    SchedulingOption,
    SetOption,
    SourceArgument,
    TopologyOption,
    out,
    say,
    table_of,
)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("compile")(compile_source)


def compile_source(  # lizard forgives: its parameters are the command's options
    source: SourceArgument,
    topology: TopologyOption,
    collective: CollectiveOption = None,
    root: RootOption = 0,
    settings: SetOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where the plan goes: NAME.plan, .json, or .xml (MSCCL).", metavar="FILE"),
    ] = None,
    scheduling: SchedulingOption = "hpds",
    allocation: Annotated[
        str,
        typer.Option(
            "--allocation",
            help="state_based, state_based_even, state_based_apart, per_connection_and_stage or per_connection.",
        ),
    ] = "state_based",
    loop: Annotated[str, typer.Option("--loop", help="micro_batches or sub_pipelines.")] = "micro_batches",
    fold: Annotated[bool, typer.Option("--fold/--no-fold", help="Combine what arrives in one step at once.")] = True,
    fuse: Annotated[bool, typer.Option("--fuse", help="Pass on between hosts in one instruction.")] = False,
    stagger: Annotated[bool, typer.Option("--stagger", help="Ranks that share a NIC begin in turn.")] = False,
    verified: Annotated[bool, typer.Option("--verify/--no-verify", help="Prove the plan.")] = True,
) -> None:
    """Compile an algorithm, prove the plan, and say what it is made of.

    A Python file's function gets what it asks for by name: hosts, gpus (a host), ranks, rails, topology; and what --set
    gives. A wrong transfer is reported with the line that made it.
    """
    from resccl import compiler
    from resccl.cli.source import LoadedPlan, check_output, load_algorithm, write_plan
    from resccl.topology import Topology

    if output is not None:
        check_output(output)
    where = Topology.parse(topology)
    algorithm = load_algorithm(source, where, collective, root, settings or [])
    began = time.perf_counter()
    plan = compiler.compile(  # the names are checked there
        algorithm,
        where,
        scheduling=scheduling,  # type: ignore[arg-type]
        allocation=allocation,  # type: ignore[arg-type]
        loop=loop,  # type: ignore[arg-type]
        fold=fold,
        fuse=fuse,
        stagger=stagger,
        verify=verified,
    )
    seconds = time.perf_counter() - began
    parts = plan.summary["rank_plans"]
    say(f"{algorithm.name}: {algorithm.collective} over {where}")
    table = table_of("what", "value", numbers=["value"])
    blocks = [part["thread_blocks"] for part in parts]
    for name, value in (
        ("transfers", f"{len(algorithm):,}"),
        ("chunks", f"{algorithm.chunks:,}"),
        ("sub-pipelines", f"{plan.summary['sub_pipelines']:,}"),
        ("thread blocks a rank", str(max(blocks)) if min(blocks) == max(blocks) else f"{min(blocks)} to {max(blocks)}"),
        ("instructions", f"{sum(part['instructions'] for part in parts):,}"),
        ("scratch chunks a rank", f"{max(part['scratch_chunks'] for part in parts):,}"),
        ("plan file", f"{len(plan.to_bytes()):,} bytes"),
        ("digest", f"{plan.digest:016x}"),
        ("verified" if verified else "not verified", f"{seconds:.2f} s"),
    ):
        table.add_row(name, value)
    out.print(table)
    if output is not None:
        write_plan(LoadedPlan(plan), output)
        say(f"written: {output}")
