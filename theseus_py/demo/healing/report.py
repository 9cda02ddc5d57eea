"""What the run showed: a table, a picture, JSON, and a trace."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from theseus_py.demo.healing.run import COMPUTE_SECONDS, FRACTION, GRADIENT_BYTES, LAYOUT, NIC, RATE, Outcome
from theseus_py.demo.healing.story import HEALING, Phase
from theseus_py.healing.floors import floor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CAPPED = ("capped, before the switch", "capped, after it")


@dataclass(frozen=True)
class Line:
    """A row of the table: medians in seconds, and the iteration as a multiple of the healthy one."""

    name: str
    steps: int
    network: float
    seconds: float
    ratio: float
    floor: float | None  # of the ratio; None: none that means something


def lines(outcome: Outcome) -> list[Line]:
    """Returns the rows, without those of which there was no iteration."""
    phases = outcome.story.phases()
    found = _lines(phases, phases[0], "")
    if outcome.contrast is not None:
        theirs = outcome.contrast.phases()
        found += _lines([theirs[1]], theirs[0], "same cap, healing off")
    return found


def _lines(phases: list[Phase], healthy: Phase, name: str) -> list[Line]:
    base, network = healthy.median("seconds"), healthy.median("network")
    found = []
    for phase in phases:
        seconds, moved = phase.median("seconds"), phase.median("network")
        if seconds is None or moved is None or base is None or network is None:
            continue
        # Compute does not get slower: the floor of an iteration is that of its network part.
        least = 1 + network / base * (network_floor() - 1) if phase.name in CAPPED else 1.0
        found.append(Line(name or phase.name, len(phase.steps), moved, seconds, seconds / base, least))
    return found


def network_floor() -> float:
    """What no schedule can beat: AllReduce under this cap, over AllReduce with healthy NICs."""
    health = np.ones((LAYOUT.hosts, LAYOUT.rails))
    health[NIC] = FRACTION
    return floor("AllReduce", health)


def setup_text() -> str:
    """What runs, and what about it is not real."""
    return (
        f"{LAYOUT.hosts} virtual hosts with one rank and {LAYOUT.rails} NICs of {8 * RATE / 1e6:.0f} Mbit/s each, "
        "paced on this machine's loopback. Each iteration: a real forward and backward pass in NumPy, a sleep up to "
        f"{COMPUTE_SECONDS * 1e3:.0f} ms that stands for a GPU's work, then an all-reduce of "
        f"{GRADIENT_BYTES / 2**20:.0f} MB of gradients. The training loop holds no word about NICs or healing."
    )


def render(outcome: Outcome) -> RenderableType:
    """Table, delays and verdict."""
    table = Table(title="A training run while one NIC gets slow", box=box.ROUNDED, title_justify="left")
    for heading in ("", "iterations", "all-reduce (ms)", "iteration (ms)", "x healthy", "at least"):
        table.add_column(heading, justify="right" if heading else "left")
    for line in lines(outcome):
        least = "" if line.floor is None else f"{line.floor:.2f}"
        cells = (f"{line.network * 1e3:.0f}", f"{line.seconds * 1e3:.0f}", f"{line.ratio:.2f}", least)
        table.add_row(line.name, str(line.steps), *cells)
    return Group(table, _delays(outcome), _verdict(outcome))


def _delays(outcome: Outcome) -> Text:
    story = outcome.story
    parts = []
    for event in ("first aid", "detected", "published", "switched"):
        delay = story.delay(event)
        if delay is not None:
            parts.append(f"{event} {delay * 1e3:.0f} ms")
    back = ""
    if story.all_returned:
        back = f" Back to normal {story.times['recovered'] - story.times['restored']:.1f} s after the NIC was."
    elif "restored" in story.times:
        back = " The run ended before the NIC had been tried again; until then its plan is used, which is right."
    note = "'At least' is what no schedule can beat; times are medians, and this machine's other load is in them."
    return Text(f"After the cap: {', '.join(parts)}.{back} {note}")


def _verdict(outcome: Outcome) -> Text:
    faults = outcome.faults()
    if faults:
        return Text("\n".join(f"FAILED: {fault}" for fault in faults), style="bold red")
    losses = outcome.story.losses
    return Text(
        f"OK: the job healed itself. Loss {losses[0]:.4f} to {losses[-1]:.4f}; all losses and weights are, bit for "
        f"bit, those of the same {len(losses)} steps on one host with nothing slow",
        style="bold green",
    )


def to_dict(outcome: Outcome) -> dict[str, Any]:
    """For JSON."""
    story = outcome.story
    return {
        "setup": setup_text(),
        "fraction": FRACTION,
        "nic": list(NIC),
        "network_floor": network_floor(),
        "table": [vars(line) for line in lines(outcome)],
        "seconds_after_the_cap": {name: story.delay(name) for name in story.times},
        "run": story.to_dict(),
        "reference_losses": outcome.reference_losses,
        "reference_fingerprint": outcome.reference_fingerprint,
        "contrast": None if outcome.contrast is None else outcome.contrast.to_dict(),
        "seconds": outcome.seconds,
        "faults": outcome.faults(),
    }


def write_trace(outcome: Outcome, path: Path) -> None:
    """A Chrome trace of every request of all ranks, with the events as marks (chrome://tracing, Perfetto)."""
    marks = [
        {
            "ph": "i",
            "s": "g",
            "name": event.name,
            "ts": event.at * 1e6,
            "pid": 0,
            "tid": "demo",
            "args": {"why": event.sentence},
        }
        for event in outcome.story.events
    ]
    path.write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": outcome.trace + marks}))


def write_picture(outcome: Outcome, path: Path) -> None:
    """A PNG: all iterations, those around the cap, slowdowns beside their floors, losses. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 8.5), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 3, height_ratios=(1.1, 1))
    whole = figure.add_subplot(grid[0, :])
    _draw_iterations(whole, outcome)
    whole.legend(fontsize=8)
    whole.set_title(
        f"Iterations of a training run on {LAYOUT.hosts} hosts x {LAYOUT.rails} NICs; NIC {NIC[1]} of host{NIC[0]} "
        f"gets {FRACTION:.0%} of its speed in the shaded time, and nobody tells the job",
        fontsize=11,
    )
    near = figure.add_subplot(grid[1, 0])
    _draw_iterations(near, outcome)
    _draw_events(near, outcome)
    _draw_slowdowns(figure.add_subplot(grid[1, 1]), outcome)
    _draw_losses(figure.add_subplot(grid[1, 2]), outcome)
    figure.savefig(path, dpi=110)


def _draw_iterations(axes: Axes, outcome: Outcome) -> None:
    story, start = outcome.story, outcome.story.steps[0][0].begin
    kinds = (("normal schedule", "C2", False), (f"{HEALING}*: planned around the slow NIC", "C0", True))
    for label, colour, heals in kinds:
        chosen = [step for step in story.steps[0] if step.schedule.startswith(HEALING) == heals]
        x = [step.end - start for step in chosen]
        axes.plot(x, [step.seconds * 1e3 for step in chosen], "o", ms=4, color=colour, label=label)
        axes.plot(x, [step.network * 1e3 for step in chosen], ".", ms=3, color=colour, alpha=0.4)
    if "capped" in story.times:
        end = story.times.get("restored", story.steps[0][-1].end)
        axes.axvspan(story.times["capped"] - start, end - start, color="C3", alpha=0.1)
    axes.set(xlabel="seconds", ylabel="ms (small dots: all-reduce alone)", ylim=(0, None))
    axes.grid(alpha=0.3)


def _draw_events(axes: Axes, outcome: Outcome) -> None:
    story, start = outcome.story, outcome.story.steps[0][0].begin
    capped, switched = story.times.get("capped"), story.times.get("switched")
    axes.set_title("Around the cap", fontsize=10)
    if capped is None:
        return
    end = capped if switched is None else switched
    axes.set_xlim(capped - start - 0.6, end - start + 1.2)
    first, last = axes.get_xlim()
    shown = [step.seconds * 1e3 for step in story.steps[0] if first <= step.end - start <= last]
    top = 1.4 * max(shown, default=1.0)
    axes.set_ylim(0, top)
    near = [event for event in story.events if event.at <= end]
    for number, event in enumerate(sorted(near, key=lambda each: each.at)):
        axes.axvline(event.at - start, color="0.3", lw=0.8, ls=":")
        axes.text(event.at - start, top * (0.95 - 0.07 * number), f" {event.name}", fontsize=8, clip_on=True)


def _draw_slowdowns(axes: Axes, outcome: Outcome) -> None:
    shown = lines(outcome)
    places = range(len(shown))
    colours = ["C7" if "off" in line.name else "C3" if line.name == CAPPED[0] else "C0" for line in shown]
    axes.barh(places, [line.ratio for line in shown], color=colours)
    for place, line in zip(places, shown, strict=True):
        axes.text(line.ratio, place, f" {line.ratio:.2f}", va="center", fontsize=8)
        if line.floor is not None:
            axes.plot([line.floor] * 2, [place - 0.4, place + 0.4], color="k", lw=1.5)
    axes.set_yticks(list(places), [line.name for line in shown], fontsize=8)
    axes.invert_yaxis()
    axes.set(
        xlim=(0, max((line.ratio for line in shown), default=1.0) * 1.15), xlabel="iteration, as a multiple of healthy"
    )
    axes.set_title("Slowdown (black: what no schedule can beat)", fontsize=10)


def _draw_losses(axes: Axes, outcome: Outcome) -> None:
    axes.plot(outcome.reference_losses, lw=4, alpha=0.35, color="C1", label="same seed, nothing slow")
    axes.plot(outcome.story.losses, lw=1.2, color="C0", label="this run")
    same = outcome.story.losses == outcome.reference_losses
    axes.set(xlabel="iteration", yscale="log")
    axes.set_title(f"Loss ({'the same bits' if same else 'DIFFERENT'})", fontsize=10)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
