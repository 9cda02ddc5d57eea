"""`theseus demo`: collectives and a real training run on virtual hosts, with a table, a picture and JSON at the end."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from theseus_py.cli.console import Failure, out

_NEEDS = {"torch": "torch", "sklearn": "scikit-learn", "matplotlib": "matplotlib"}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("demo")(demo)


def demo(
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer sizes and steps: seconds instead of half a minute.")
    ] = False,
    folder: Annotated[Path, typer.Option("--out", help="Where the picture and the JSON go.", metavar="DIR")] = Path(
        "theseus-demo"
    ),
) -> None:
    """Show Theseus at work: 4 ranks as 2 virtual hosts x 2 rails on this machine.

    An AllReduce sweep with checked results, then a transformer trained on real digits under PyTorch's DDP, once over
    gloo and once over Theseus, whose losses must be equal.
    """
    missing = [package for module, package in _NEEDS.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise Failure(f"the demo needs {', '.join(missing)}: pip install {' '.join(missing)}", exit_code=2)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "demo.json").touch()
    except OSError as error:
        raise ValueError(f"cannot write into {folder} (--out): {error.strerror}") from error

    from theseus_py.demo import report
    from theseus_py.demo.progress import StageProgress
    from theseus_py.demo.run import LAYOUT, run
    from theseus_py.spawn import RankFailed

    out.print(f"[bold]Theseus demo[/bold]: {LAYOUT.describe()}, over loopback TCP between the hosts")
    try:
        with StageProgress(out) as progress:
            results = run(quick, progress.update)
    except RankFailed as failure:
        raise Failure(str(failure), failure.output) from failure
    report.write_json(results, folder / "demo.json")
    report.write_picture(results, folder / "demo.png")
    out.print(report.render(results))
    out.print(f"Picture: {folder / 'demo.png'}   Numbers: {folder / 'demo.json'}", soft_wrap=True)
    if results.faults():
        raise Failure("; ".join(results.faults()))
