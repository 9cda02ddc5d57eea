"""Shows how far the demo's stages are: live bars on a terminal, one line every quarter elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class StageProgress:
    """Stages appear when they first report. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Progress | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description:<24}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
            self._bars = Progress(*columns, MofNCompleteColumn(), TimeElapsedColumn(), console=console)
        self._tasks: dict[str, TaskID] = {}
        self._quarters: dict[str, int] = {}

    def __enter__(self) -> StageProgress:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def update(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` units of `stage` are behind us."""
        if self._bars is None:
            quarter = 4 * done // max(total, 1)
            if quarter != self._quarters.get(stage):
                self._quarters[stage] = quarter
                self._console.print(f"{stage}: {25 * quarter} %")
            return
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(self._tasks[stage], completed=done, total=total)
