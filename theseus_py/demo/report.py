"""Shows what the demo's first half found: tables for the terminal, and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from theseus_py.demo.results import OURS, REFERENCE, Results
from theseus_py.perf.report import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TABLE_SIZES = {8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20}


def size_text(size: int) -> str:
    """8 B, 64 KB, 1 MB: units of 1024."""
    for unit, scale in (("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:g} {unit}"
    return f"{size} B"


def render(results: Results) -> RenderableType:
    """The tables and the verdict."""
    trained = [_training_table(results)] if results.trainings else []
    return Group(_sweep_table(results), *trained, _verdict(results))


def _sweep_table(results: Results) -> Table:
    table = Table(title=f"AllReduce, float32, {results.layout}", box=box.ROUNDED, title_justify="left")
    for heading in ("size", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "in place (us)", "wrong"):
        table.add_column(heading, justify="right")
    for row in _shown(results):
        in_place = row.in_place or row.out_of_place
        wrong = sum(timing.wrong or 0 for timing in row.timings())
        table.add_row(
            size_text(row.size),
            f"{row.out_of_place.microseconds:,.1f}",
            f"{row.out_of_place.algorithm_gbps:.3f}",
            f"{row.out_of_place.bus_gbps:.3f}",
            f"{in_place.microseconds:,.1f}",
            Text(str(wrong), style="red" if wrong else "green"),
        )
    return table


def _shown(results: Results) -> list[Row]:
    chosen = [row for row in results.rows if row.size in _TABLE_SIZES]
    return chosen or list(results.rows)


def _training_table(results: Results) -> Table:
    ours = results.trainings[OURS]
    title = (
        f"Training a transformer ({ours.parameters:,} parameters) on scikit-learn's digits under DDP, "
        f"{len(ours.loss)} steps"
    )
    table = Table(title=title, box=box.ROUNDED, title_justify="left")
    for heading in ("backend", "first loss", "last loss", "unseen digits right", "ms a step"):
        table.add_column(heading, justify="left" if heading == "backend" else "right")
    for name in (REFERENCE, OURS):
        training = results.trainings[name]
        table.add_row(
            name,
            f"{training.loss[0]:.6f}",
            f"{training.loss[-1]:.6f}",
            f"{training.accuracy:.1%}",
            f"{training.typical_milliseconds:.1f}",
        )
    return table


def _verdict(results: Results) -> Text:
    faults = results.faults()
    if faults:
        return Text("\n".join(f"FAILED: {fault}" for fault in faults), style="bold red")
    trained = (
        f"losses equal step for step within rounding (largest difference {results.loss_difference:.1e})"
        if results.trainings
        else "nothing was trained"
    )
    return Text(f"OK: every AllReduce right; {trained}; {results.seconds:.0f} s", style="bold green")


def write_picture(results: Results, path: Path) -> None:
    """A PNG of bandwidth over size and, where something was trained, losses and time per step. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    bandwidth, *others = figure.subplots(1, 3 if results.trainings else 1, squeeze=False)[0]
    sizes = [row.size for row in results.rows]
    bandwidth.plot(sizes, [row.out_of_place.bus_gbps for row in results.rows], "o-", label="out of place", ms=4)
    bandwidth.plot(
        sizes, [(row.in_place or row.out_of_place).bus_gbps for row in results.rows], "s--", label="in place", ms=4
    )
    bandwidth.set(xscale="log", yscale="log", xlabel="size (bytes)", ylabel="bus bandwidth (GB/s)")
    bandwidth.set_title(f"AllReduce, {results.layout}", fontsize=10)
    bandwidth.legend(fontsize=8)
    bandwidth.grid(alpha=0.3)
    if others:
        _draw_trainings(others[0], others[1], results)
    figure.savefig(path, dpi=110)


def _draw_trainings(loss: Axes, step: Axes, results: Results) -> None:
    styles: dict[str, dict[str, Any]] = {
        REFERENCE: {"lw": 4, "alpha": 0.35, "color": "C1"},
        OURS: {"lw": 1.2, "color": "C0"},
    }
    for name, style in styles.items():
        training = results.trainings[name]
        loss.plot(range(1, len(training.loss) + 1), training.loss, label=name, **style)
        label = f"{name} (median {training.typical_milliseconds:.1f} ms)"
        step.plot(range(1, len(training.loss) + 1), training.milliseconds, label=label, lw=1, color=style["color"])
    loss.set(xlabel="step", ylabel="loss")
    loss.set_title(f"Losses (largest difference {results.loss_difference:.1e})", fontsize=10)
    step.set(xlabel="step", ylabel="ms", ylim=(0, None))
    step.set_title("Time per training step", fontsize=10)
    for axes in (loss, step):
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
