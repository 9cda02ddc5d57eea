"""Pictures of a schedule, PNG or SVG: tasks and their dependencies, sub-pipelines over links, thread blocks over time.

The same schedule gives the same SVG. What would be too much to look at is cut, and the picture says so.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resccl.compiler import Analysis
from resccl.show import Timeline, transfers_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_TASKS = 240
_MOST_LINKS = 96
_MOST_COLUMNS = 200
_MOST_BLOCKS = 64
_REDUCING = ("RecvReduceCopy", "RecvReduceSend", "RecvReduceCopySend", "Reduce", "Fold")
_COLOURS = {"send": "#4878a8", "receive": "#7fb77e", "reduce": "#d98e4a", "inside the rank": "#9a9a9a"}


def draw(path: Path, title: str, analysis: Analysis | None, line: Timeline | None) -> None:
    """Write the picture; the ending of `path` (.png or .svg) says what it is. ValueError: another ending."""
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"{path}: pictures end in .png or .svg")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    heights = [5.0, 4.0] if analysis is not None else []
    if line is not None:
        heights.append(1.2 + 0.22 * min(line.thread_blocks, _MOST_BLOCKS))
    with matplotlib.rc_context({"svg.hashsalt": "resccl", "font.size": 8}):
        figure, all_axes = pyplot.subplots(
            len(heights),
            1,
            figsize=(12, sum(heights) + 0.8),
            squeeze=False,
            height_ratios=heights,
            layout="constrained",
        )
        axes = list(all_axes[:, 0])
        figure.suptitle(title)
        if analysis is not None:
            _draw_dag(axes[0], analysis)
            _draw_pipelines(axes[1], analysis)
        if line is not None:
            _draw_timeline(axes[-1], line)
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)


def _draw_dag(axes: Axes, analysis: Analysis) -> None:
    """A column a level of dependency, a row a chunk; filled: inside a host; colour: the sub-pipeline."""
    shown = min(analysis.tasks, _MOST_TASKS)
    level = np.zeros(shown, dtype=np.int64)
    for task in range(shown):
        before = [each for each in analysis.predecessors_of(task).tolist() if each < shown]
        level[task] = 1 + max((level[each] for each in before), default=-1)
    row: dict[int, int] = defaultdict(int)
    place = np.zeros((shown, 2))
    for task in range(shown):
        column = int(level[task])
        place[task] = column, row[column]
        row[column] += 1
    for task in range(shown):
        for before in analysis.predecessors_of(task).tolist():
            if before < shown:
                axes.plot(*zip(place[before], place[task], strict=True), color="#bbbbbb", linewidth=0.6, zorder=1)
    for far, marker, label in ((False, "o", "inside a host"), (True, "s", "between hosts")):
        some = np.flatnonzero(analysis.between_hosts[:shown] == far)
        if len(some):
            colours = analysis.sub_pipeline[some]
            axes.scatter(
                place[some, 0],
                place[some, 1],
                s=26,
                c=colours,
                cmap="viridis",
                vmin=0,
                vmax=max(analysis.sub_pipelines - 1, 1),
                marker=marker,
                zorder=2,
                label=label,
            )
    if shown <= 60:
        for task in range(shown):
            text = f"c{analysis.transfers_of(task)[0][3]} {transfers_text(analysis, task)}"
            axes.annotate(text, place[task], xytext=(4, 2), textcoords="offset points", fontsize=6)
    axes.legend(loc="upper right", fontsize=7)
    axes.set(xlabel="level of dependency", yticks=[], xticks=range(int(level.max(initial=0)) + 1))
    axes.set_title(
        f"Tasks and data dependencies; colour: sub-pipeline{_cut(shown, analysis.tasks, 'tasks')}", loc="left"
    )


def _draw_pipelines(axes: Axes, analysis: Analysis) -> None:
    """A row a link, a column a sub-pipeline; coloured where a task of that sub-pipeline uses the link."""
    from matplotlib.ticker import MaxNLocator

    links, columns = min(len(analysis.links), _MOST_LINKS), min(analysis.sub_pipelines, _MOST_COLUMNS)
    grid = np.full((links, max(columns, 1)), np.nan)
    for task in range(analysis.tasks):
        column = int(analysis.sub_pipeline[task])
        for link in analysis.links_of(task).tolist():
            if link < links and column < columns:
                grid[link, column] = analysis.transfers_of(task)[0][3]
    axes.imshow(grid, aspect="auto", interpolation="nearest", cmap="turbo")
    if links <= 40:
        axes.set_yticks(range(links), [analysis.link_name(link) for link in range(links)], fontsize=6)
    else:
        axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    note = _cut(links, len(analysis.links), "links") + _cut(columns, analysis.sub_pipelines, "sub-pipelines")
    axes.set(xlabel="sub-pipeline", ylabel="link")
    axes.set_title(f"Sub-pipelines; colour: chunk{note}", loc="left")


def _draw_timeline(axes: Axes, line: Timeline) -> None:
    """A row a thread block; a box an instruction, in units of one instruction each."""
    blocks, length = min(line.thread_blocks, _MOST_BLOCKS), min(line.length, _MOST_COLUMNS)
    seen: set[str] = set()
    for cell in line.cells:
        if cell.tb >= blocks or cell.time >= length:
            continue
        kind = _kind(cell.opcode)
        options: dict[str, Any] = {} if kind in seen else {"label": kind}
        seen.add(kind)
        axes.barh(cell.tb, 0.94, left=cell.time, height=0.8, color=_COLOURS[kind], **options)
        if length <= 40 and cell.chunk >= 0:
            axes.text(cell.time + 0.47, cell.tb, str(cell.chunk), ha="center", va="center", fontsize=6)
    axes.set(xlim=(0, max(length, 1)), ylim=(blocks - 0.5, -0.5), xlabel="time, in instructions", ylabel="TB")
    if seen:
        axes.legend(loc="upper right", fontsize=7, ncols=len(seen))
    note = _cut(blocks, line.thread_blocks, "TBs") + _cut(length, line.length, "units of time")
    axes.set_title(f"Thread blocks of rank {line.rank}, one micro-batch; number: chunk{note}", loc="left")


def _kind(opcode: str) -> str:
    if opcode in _REDUCING:
        return "reduce"
    if opcode.startswith("Recv"):
        return "receive"
    return "send" if opcode == "Send" else "inside the rank"


def _cut(shown: int, there: int, what: str) -> str:
    return f" (the first {shown} of {there} {what})" if shown < there else ""
