"""`resccl show`: the tasks, the sub-pipelines and the thread blocks of a schedule, as text and as a picture."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resccl.cli.console import CollectiveOption, Failure, RootOption, SchedulingOption, SetOption, say

if TYPE_CHECKING:
    from resccl.compiler import Analysis
    from resccl.plan import Plan


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("show")(show)


def show(
    source: Annotated[
        str,
        typer.Argument(help="A plan, a schedule of another tool, or an algorithm as for compile.", metavar="SOURCE"),
    ],
    topology: Annotated[
        str | None, typer.Option("--topology", "-t", help="2x8; default for files: one host.", metavar="HxG[xR]")
    ] = None,
    collective: CollectiveOption = None,
    root: RootOption = 0,
    settings: SetOption = None,
    scheduling: SchedulingOption = "hpds",
    rank: Annotated[int, typer.Option("--rank", "-r", help="Whose thread blocks.")] = 0,
    most: Annotated[int, typer.Option("--most", help="Lines and columns of each part of the text.", min=1)] = 40,
    picture: Annotated[
        Path | None, typer.Option("--output", "-o", help="A picture: NAME.png or NAME.svg.", metavar="FILE")
    ] = None,
) -> None:
    """Show what a schedule does: its tasks and what they wait for, the sub-pipelines, and a rank's thread blocks."""
    from resccl.cli.source import PLAN_FILES
    from resccl.show import dag_text, pipeline_text, timeline, timeline_legend, timeline_text

    if Path(source).suffix in PLAN_FILES:
        plan, analysis, notes = _from_file(Path(source), topology, scheduling)
    else:
        plan, analysis, notes = _from_algorithm(source, topology, collective, root, settings or [], scheduling)
    say(f"{plan.name}: {plan.collective} over {plan.ranks} ranks, {plan.thread_blocks} TBs a rank")
    for note in notes:
        say(f"note: {note}")
    if analysis is not None:
        say(f"\nTasks: {analysis.tasks} ({len(analysis.transfers)} transfers over {len(analysis.links)} links)")
        for line in dag_text(analysis, most):
            say(line)
        say(f"\nSub-pipelines: {analysis.sub_pipelines} ({scheduling})")
        for line in pipeline_text(analysis, most):
            say(line)
    when = None
    try:
        when = timeline(plan, rank)
        say(f"\nThread blocks of rank {rank}, one micro-batch, a unit an instruction")
        for line in timeline_text(when, most):
            say(line)
        say(timeline_legend())
    except ValueError as error:
        if analysis is None or not 0 <= rank < plan.ranks:
            raise
        say(f"note: no time line: {error}")
    if picture is not None:
        from resccl.draw import draw

        if importlib.util.find_spec("matplotlib") is None:
            raise Failure("pictures need matplotlib: pip install matplotlib", exit_code=2)
        draw(picture, f"{plan.name}: {plan.collective} over {plan.ranks} ranks", analysis, when)
        say(f"written: {picture}")


def _from_algorithm(
    source: str, topology: str | None, collective: str | None, root: int, settings: list[str], scheduling: str
) -> tuple[Plan, Analysis, list[str]]:
    from resccl import compiler
    from resccl.cli.source import load_algorithm
    from resccl.topology import Topology

    if topology is None:
        raise ValueError(
            f"'{source}' is no file of a plan (.plan, .json, .xml); an algorithm needs --topology, say 2x4"
        )
    where = Topology.parse(topology)
    algorithm = load_algorithm(source, where, collective, root, settings)
    plan = compiler.compile(algorithm, where, scheduling=scheduling)  # type: ignore[arg-type]
    return plan, compiler.analyse(algorithm, where, scheduling=scheduling), []  # type: ignore[arg-type]


def _from_file(file: Path, topology: str | None, scheduling: str) -> tuple[Plan, Analysis | None, list[str]]:
    """A plan's tasks are those of the algorithm that it carries out, where an algorithm can say the same."""
    from resccl import compiler
    from resccl.cli.source import load_plan
    from resccl.formats import raise_algorithm
    from resccl.lang import Algorithm
    from resccl.show import is_small
    from resccl.topology import Topology

    where = Topology.parse(topology) if topology else None
    loaded = load_plan(file, where)
    plan = loaded.plan
    if not is_small(plan):
        return plan, None, [*loaded.notes, "no tasks shown: the plan is too large to be taken apart"]
    try:
        algorithm = Algorithm.from_dict(raise_algorithm(plan.to_dict()))
        where = where or Topology.uniform(1, plan.ranks)
        return plan, compiler.analyse(algorithm, where, scheduling=scheduling), loaded.notes  # type: ignore[arg-type]
    except ValueError as error:
        return plan, None, [*loaded.notes, f"no tasks shown: {error}"]
