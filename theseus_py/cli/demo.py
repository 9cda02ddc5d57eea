"""`theseus demo`: collectives and training on virtual hosts, then a job that heals itself when a NIC gets slow."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from theseus_py.cli.console import Failure, core, out

if TYPE_CHECKING:
    from theseus_py.demo.healing.run import Outcome
    from theseus_py.demo.results import Results

_DDP_NEEDS = {"torch": "torch", "sklearn": "scikit-learn"}
_PICTURE_NEEDS = {"matplotlib": "matplotlib"}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("demo")(demo)


def demo(
    quick: Annotated[bool, typer.Option("--quick", help="Less of everything: half a minute instead of two.")] = False,
    folder: Annotated[
        Path, typer.Option("--output", "--out", help="Where pictures, numbers and the trace go.", metavar="DIR")
    ] = Path("build/demo"),
) -> None:
    """Show Theseus at work: collectives, training under PyTorch, and a job that heals itself.

    First an AllReduce sweep with checked results, and a transformer trained under DDP over gloo and over Theseus, whose
    losses must be equal (without torch this is left out). Then a training run on 4 virtual hosts x 4 NICs: one NIC gets
    slow midway, and the job recovers by itself. Neither root nor namespaces are needed.
    """
    core()
    _prepare(folder)
    ddp, picture = _missing(_DDP_NEEDS), _missing(_PICTURE_NEEDS)
    if ddp:
        out.print(f"Left out, training under PyTorch: {', '.join(ddp)} not installed (pip install {' '.join(ddp)})")
    if picture:
        out.print(f"Left out, the pictures: {', '.join(picture)} not installed (pip install {' '.join(picture)})")
    results = _basics(quick, not ddp)
    outcome = _healing(quick)
    _write(folder, results, outcome, pictures=not picture)
    faults = results.faults() + outcome.faults()
    if faults:
        raise Failure("; ".join(faults))


def _missing(needs: dict[str, str]) -> list[str]:
    return [package for module, package in needs.items() if importlib.util.find_spec(module) is None]


def _prepare(folder: Path) -> None:
    """A folder that cannot be written is known before minutes are spent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "demo.json").touch()
    except OSError as error:
        raise ValueError(f"cannot write into {folder} (--output): {error.strerror}") from error


def _basics(quick: bool, with_torch: bool) -> Results:
    from theseus_py.demo import report
    from theseus_py.demo.progress import StageProgress
    from theseus_py.demo.run import LAYOUT, run
    from theseus_py.spawn import RankFailed

    out.print(f"[bold]1. Collectives and training[/bold]: {LAYOUT.describe()}, over loopback TCP between the hosts")
    try:
        with StageProgress(out) as progress:
            results = run(quick, progress.update, with_torch=with_torch)
    except RankFailed as failure:
        raise Failure(str(failure), failure.output) from failure
    out.print(report.render(results))
    return results


def _healing(quick: bool) -> Outcome:
    from theseus_py.demo.healing import report
    from theseus_py.demo.healing.run import QUICK, Timeline, run
    from theseus_py.demo.healing.screen import Screen
    from theseus_py.spawn import RankFailed

    out.print(f"\n[bold]2. A job that heals itself[/bold]: {escape(report.setup_text())}")
    try:
        with Screen(out) as screen:
            outcome = run(QUICK if quick else Timeline(), screen.look)
    except RankFailed as failure:
        raise Failure(str(failure), failure.output) from failure
    out.print(report.render(outcome))
    return outcome


def _write(folder: Path, results: Results, outcome: Outcome, *, pictures: bool) -> None:
    from theseus_py.demo import report
    from theseus_py.demo.healing import report as healing_report

    numbers: dict[str, Any] = {**results.to_dict(), "healing": healing_report.to_dict(outcome)}
    (folder / "demo.json").write_text(json.dumps(numbers, indent=1) + "\n")
    healing_report.write_trace(outcome, folder / "trace.json")
    if pictures:
        report.write_picture(results, folder / "collectives.png")
        healing_report.write_picture(outcome, folder / "healing.png")
        out.print(f"Pictures: {folder / 'healing.png'}, {folder / 'collectives.png'}", soft_wrap=True)
    out.print(
        f"Numbers: {folder / 'demo.json'}   Trace with the switches marked (chrome://tracing, Perfetto): "
        f"{folder / 'trace.json'}",
        soft_wrap=True,
    )
