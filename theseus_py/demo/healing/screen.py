"""Shows the run while it goes on: live on a terminal; elsewhere its events, and a line now and then."""

from __future__ import annotations

import statistics
import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from theseus_py.demo.healing.story import HEALING, Step, Story

_BARS = "▁▂▃▄▅▆▇█"
_SHOWN = 72  # iterations
_SLOW = 1.3  # times the usual one
_LINE_SECONDS = 2.0
_PHASES = {
    "starting": "starting",
    "healthy": "all NICs healthy",
    "capped": "one NIC slow",
    "restored": "NIC whole again, until it has been tried and is trusted",
    "ending": "ending",
}


class Screen:
    """Give it to `run` as its look. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._told = 0
        self._line_at = 0.0

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def look(self, story: Story, phase: str) -> None:
        """Something is new."""
        for event in story.events[self._told :]:
            self._console.print(event_text(story, event.at, event.name, event.sentence))
            self._told += 1
        if self._live is not None:
            self._live.update(_panel(story, phase), refresh=True)
        elif phase not in _PHASES or time.monotonic() - self._line_at >= _LINE_SECONDS:
            self._line_at = time.monotonic()
            self._console.print(_line(story, phase))


def event_text(story: Story, at: float, name: str, sentence: str) -> Text:
    """One event: seconds since the first iteration, name, and why it matters."""
    style = {"capped": "bold red", "detected": "yellow", "first aid": "yellow"}.get(name, "bold green")
    return Text.assemble((f"{at - story.steps[0][0].begin:7.2f} s  ", "dim"), (name, style), ": ", sentence)


def usual_seconds(story: Story) -> float:
    """The median iteration of the healthy stretch, as far as it goes."""
    healthy = story.phases()[0].steps or story.steps[0]
    return statistics.median(step.seconds for step in healthy) if healthy else 0.0


def _line(story: Story, phase: str) -> str:
    if not story.steps[0]:
        return f"    ... {phase}"
    last = story.steps[0][-1]
    return (
        f"    ... {escape(_PHASES.get(phase, phase))}: iteration {last.step + 1} took {last.seconds * 1e3:.0f} ms, "
        f"all-reduce {last.network * 1e3:.0f} ms on {last.schedule}"
    )


def _panel(story: Story, phase: str) -> RenderableType:
    steps = story.steps[0]
    grid = Table.grid(padding=(0, 2))
    grid.add_row("now", Text(_PHASES.get(phase, phase), style="bold"))
    if steps:
        grid.add_row("schedule", Text(steps[-1].schedule, style="cyan" if _heals(steps[-1]) else "green"))
        grid.add_row("iterations", Text(f"{len(steps)}: {steps[-1].seconds * 1e3:.0f} ms, loss {steps[-1].loss:.4f}"))
        grid.add_row("", bars(steps[-_SHOWN:], usual_seconds(story)))
    grid.add_row("NICs", _nics(story))
    return Group(Text(), grid)


def _heals(step: Step) -> bool:
    return step.schedule.startswith(HEALING)


def bars(steps: list[Step], usual: float) -> Text:
    """Iteration times as bars, full at three times the usual one; red: slow, blue: on a plan around a slow NIC."""
    text = Text()
    for step in steps:
        ratio = step.seconds / usual if usual else 1.0
        height = min(len(_BARS) - 1, int(ratio / 3 * len(_BARS)))
        text.append(_BARS[height], "red" if ratio > _SLOW else "cyan" if _heals(step) else "green")
    return text


def _nics(story: Story) -> Table:
    """The health map that the agents have agreed on, a row a host."""
    health = dict(story.health)
    grid = Table.grid(padding=(0, 1))
    for host in range(story.ranks):
        cells = [Text(f"host{host}", style="dim")]
        for rail in range(story.rails):
            value = health.get(host * story.rails + rail, 1.0)
            style = "green" if value == 1 else "yellow" if value >= 0.5 else "red"
            cells.append(Text(f"{_BARS[max(0, round(value * 8) - 1)]} {value:.2f}", style=style))
        grid.add_row(*cells)
    return grid
