"""`theseus sched add|remove|list`: the schedules of a running job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from theseus_py.cli.console import Failure, core, out
from theseus_py.cli.jobs import JobOption, agent_of
from theseus_py.cli.names import collective_of


def add(  # lizard forgives: its parameters are the command's options
    source: Annotated[
        str,
        typer.Argument(
            help="A plan file, MSCCL XML, MSCCL++ or TE-CCL JSON; FILE.py:function or MODULE:function of ResCCLang; "
            "a built-in algorithm (then every rank makes its own part).",
            metavar="FILE",
        ),
    ],
    usable: Annotated[
        str, typer.Option("--policy", "--usable", help="When it may run: an expression; empty: always.", metavar="EXPR")
    ] = "",
    score: Annotated[str, typer.Option("--score", help="The highest wins: an expression.", metavar="EXPR")] = "",
    replaces: Annotated[
        str, typer.Option("--replaces", help="Wins against this one where scores are equal.", metavar="NAME")
    ] = "",
    name: Annotated[str, typer.Option("--name", help="Its name (the plan's own).", metavar="NAME")] = "",
    collective: Annotated[
        str, typer.Option("--collective", help="Of a built-in algorithm: AllReduce, AllGather, ...")
    ] = "",
    root: Annotated[int, typer.Option("--root", help="Root of a built-in algorithm (-1: any).")] = -1,
    ranks: Annotated[int | None, typer.Option("--ranks", help="Ranks, for a program of ResCCLang.")] = None,
    hosts: Annotated[int, typer.Option("--hosts", help="Hosts they are spread over.")] = 1,
    rails: Annotated[int, typer.Option("--rails", help="Network rails per host.")] = 1,
    job: JobOption = "",
) -> None:
    """Publish a schedule to a running job. It is verified first; ranks switch at their next agreements."""
    fields: dict[str, Any]
    body: bytes | None = None
    if is_built_in(source):
        fields = {"algorithm": source, "collective": _collective_name(collective), "root": root}
        name = name or source.replace(":", "-")
    else:
        plan = _plan_of(source, ranks, (hosts, rails), collective or None)
        body = plan.to_bytes()
        rooted = plan.collective in ("Broadcast", "Reduce", "Gather", "Scatter")
        fields = {"collective": plan.collective, "root": plan.root if rooted else -1}
        fields |= {"plan_hash": core().hash_plan(body), "plan_bytes": len(body)}
        name = name or plan.name
    fields |= {"kind": "schedule", "name": name, "usable": usable, "score": score, "replaces": replaces}
    with agent_of(job) as agent:
        agent.append(fields, body)
        out.print(f"schedule '{name}' is part of job '{agent.job}'")


def remove(
    name: Annotated[str, typer.Argument(help="The schedule.", metavar="NAME")],
    job: JobOption = "",
) -> None:
    """Take a schedule away from a running job. Requests that run it end undisturbed."""
    with agent_of(job) as agent:
        agent.append({"kind": "removal", "name": name})
        out.print(f"schedule '{name}' is removed from job '{agent.job}'")


def list_(job: JobOption = "") -> None:
    """List the schedules of a running job."""
    from theseus_py.cli.status import schedules_of

    with agent_of(job) as agent:
        out.print(schedules_of(agent.status()["schedules"]))


def is_built_in(source: str) -> bool:
    """Whether every rank can make the schedule by itself: a built-in algorithm, or a generator with its arguments."""
    from resccl._core import built_in_names

    return not Path(source).exists() and source.partition(":")[0] in {"healed", *(row[0] for row in built_in_names())}


def _collective_name(text: str) -> str:
    if not text:
        raise Failure("which collective? say --collective, as a built-in algorithm serves several", exit_code=2)
    plain = collective_of(text)
    return "".join(part.capitalize() for part in plain.split("_"))


def _plan_of(source: str, ranks: int | None, shape: tuple[int, int], collective: str | None) -> Any:
    from theseus_py.cli.sched import load_source

    return load_source(source, ranks, shape, collective, "hpds")[0]
