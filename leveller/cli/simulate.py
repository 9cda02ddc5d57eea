"""`leveller simulate`: what policies would do to jobs, without a cluster."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from leveller.cli.console import Failure, out, say, table_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXAMPLES = ("two", "three", "cluster")
_MOST_BYTES = 4 << 20


class Transfer(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes over named links."""

    path: list[str]
    bytes: float


class Phase(msgspec.Struct, forbid_unknown_fields=True):
    """Computing, then transfers with computing beside them."""

    compute: float = 0.0
    beside: float = 0.0
    transfers: list[Transfer] = []


class Job(msgspec.Struct, forbid_unknown_fields=True):
    """A job that repeats its phases."""

    name: str
    phases: list[Phase]
    start: float = 0.0
    weight: float = 1.0
    gpus: int = 1


class Scenario(msgspec.Struct, forbid_unknown_fields=True):
    """The file: capacities of links in bytes a second, and jobs."""

    links: dict[str, float]
    job: list[Job]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("simulate")(simulate)


def simulate(
    file: Annotated[Path | None, typer.Argument(help="Links and jobs (TOML).", metavar="FILE")] = None,
    example: Annotated[str, typer.Option(help=f"Instead of a file: {', '.join(EXAMPLES)}.")] = "",
    seed: Annotated[int, typer.Option(help="Of --example cluster.", min=0)] = 0,
    duration: Annotated[float, typer.Option(help="Seconds; 0: 300 of the longest iterations.", min=0.0)] = 0.0,
    period: Annotated[
        float, typer.Option(help="Seconds between rankings; 0: at every iteration's end.", min=0.0)
    ] = 0.0,
    levels: Annotated[int, typer.Option(help="Levels of LEVELLER and Crux.", min=1, max=64)] = 6,
    slack: Annotated[bool, typer.Option(help="What computing hides goes last as long as it does.")] = False,
    png: Annotated[Path | None, typer.Option(help="Draw what each job does at first.", metavar="FILE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Let jobs share a fluid network under LEVELLER, fair share, Crux and CASSINI, and show R of each."""
    from leveller.core.baselines.cassini import Cassini
    from leveller.core.baselines.crux import Crux
    from leveller.core.baselines.fair import FairShare
    from leveller.core.levels import LowestRateFirst
    from leveller.core.model import LevelPolicy
    from leveller.sim import simulate as run
    from leveller.sim.optimum import bound
    from leveller.sim.simulate import ideal_time

    jobs, capacities = _scenario(file, example, seed)
    longest = max(ideal_time(job, capacities) for job in jobs)
    policies: list[LevelPolicy] = [FairShare(), Crux(levels), Cassini(), LowestRateFirst(levels)]
    length = duration or 300 * longest
    outcomes = {
        each.name: run(jobs, capacities, each, length, period=period, slack=slack, timeline=png is not None)
        for each in policies
    }
    limit = bound(jobs, capacities)
    if png is not None:
        from leveller.sim.draw import draw

        draw(png, outcomes, min(length, 6 * longest))
    if as_json:
        return say(
            json.dumps({"bound": limit, "rates": {name: each.rates for name, each in outcomes.items()}}, indent=1)
        )
    table = table_of("job", *outcomes, numbers=list(outcomes))
    for job in jobs if len(jobs) <= 20 else []:
        table.add_row(escape(job.id), *(f"{each.rates[job.id]:.3f}" for each in outcomes.values()))
    table.add_row("lowest R", *(f"{each.least:.3f}" for each in outcomes.values()), style="bold")
    table.add_row("average R", *(f"{each.mean:.3f}" for each in outcomes.values()))
    out.print(table)
    say(f"No schedule gives all jobs more than {limit:.3f}. {length:g} s were simulated.")


def _scenario(file: Path | None, example: str, seed: int) -> tuple[list[Any], dict[str, float]]:
    from leveller.sim import examples
    from leveller.sim.clusters import generate

    if (file is None) == (not example):
        raise Failure(f"name a file, or one --example: {', '.join(EXAMPLES)}", exit_code=2)
    if file is not None:
        return _read(file)
    if example == "cluster":
        cluster = generate(seed)
        return list(cluster.jobs), dict(cluster.capacities)
    if example not in EXAMPLES:
        raise Failure(f"unknown example '{example}': choose {', '.join(EXAMPLES)}", exit_code=2)
    return (examples.two() if example == "two" else examples.three()), examples.LINK


def _read(file: Path) -> tuple[list[Any], dict[str, float]]:
    from leveller import sim

    data = file.read_bytes()
    if len(data) > _MOST_BYTES:
        raise Failure(f"{file} has more than {_MOST_BYTES >> 20} MiB", exit_code=2)
    try:
        said = msgspec.convert(tomllib.loads(data.decode()), Scenario)
        if not said.job:
            raise ValueError("there is no [[job]]")
        if bad := [name for name, capacity in said.links.items() if not capacity > 0]:
            raise ValueError(f"link {bad[0]} carries nothing")
        jobs = [
            sim.Job(
                each.name,
                [
                    sim.Phase(
                        phase.compute,
                        tuple(sim.Transfer(tuple(t.path), t.bytes) for t in phase.transfers),
                        phase.beside,
                    )
                    for phase in each.phases
                ],
                start=each.start,
                weight=each.weight,
                gpus=each.gpus,
            )
            for each in said.job
        ]
        for job in jobs:
            if missing := {link for path in job.paths() for link in path} - said.links.keys():
                raise ValueError(f"job {job.id} crosses link {min(missing)}, which is not among the links")
    except ValueError as error:
        raise Failure(f"{file}: {error}", exit_code=2) from None
    return jobs, said.links
