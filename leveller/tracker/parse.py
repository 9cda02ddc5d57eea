"""From the bytes of a log to iterations. Pure: bytes and their time of arrival in, iterations out."""

from __future__ import annotations

import re
from dataclasses import dataclass

from leveller.tracker.formats import FORMATS, Format, Position

__all__ = ["Iteration", "LineParser"]

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
# What launchers put before a rank's lines: torchrun "[rank3]:" and "[default3]:", mpirun "[1,3]<stdout>:", srun "3: ".
_RANK = re.compile(r"\s*(?:\[(?:rank|default)(\d{1,9})\]:|\[\d+,(\d{1,9})\]<std\w+>:|(\d{1,9}): )")
_END_OF_LINE = re.compile(rb"[\r\n]+")
_LONGEST_LINE = 1 << 16
_LONGEST_SEARCHED = 1 << 12


@dataclass(frozen=True, slots=True)
class Iteration:
    """Iteration `step`, counted as the log counts, was complete at `time`. Goes back where a job restarted."""

    step: int
    time: float


class LineParser:
    """Reads one job's log.

    Iterations follow from the difference of step numbers, never from the number of lines: a log may speak every tenth
    iteration, or once from each rank. `given`: the format; None finds it out, and keeps the first that fits.
    """

    def __init__(self, given: Format | None = None) -> None:
        self.format = given
        self._rest = b""
        self._skipping = False
        self._bar: int | None = None
        self._bar_is_full = False
        self._epoch = 0
        self._before = 0  # iterations of earlier epochs
        self._last: int | None = None
        self._last_in_epoch = 0
        self._back: Iteration | None = None
        self._rank: int | None = None  # the lowest that spoke

    def feed(self, data: bytes, now: float) -> list[Iteration]:
        """Takes what was read at `now`, and returns what is new. The last line may come in pieces."""
        *lines, self._rest = _END_OF_LINE.split(self._rest + data)
        if self._skipping and lines:
            lines[0], self._skipping = b"", False
        if len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest)
            self._rest, self._skipping = b"", True
        found: list[Iteration] = []
        for line in lines:
            found += self._read(line, now)
        return found

    def _read(self, raw: bytes, now: float) -> list[Iteration]:
        line = _ANSI.sub("", raw[:_LONGEST_SEARCHED].decode(errors="replace"))
        rank = _RANK.match(line)
        position = self._position(line[rank.end() :].lstrip() if rank is not None else line)
        if position is None:
            return []
        if not (speaks := self._speaks_for_all(rank)) and position.epoch is not None:
            return []
        step = self._step(position)
        if step is None or step == self._last:
            return []
        if self._last is None or step > self._last:
            self._last, self._back = step, None
            return [Iteration(step, now)]
        return self._went_back(step, now) if speaks else []

    def _speaks_for_all(self, rank: re.Match[str] | None) -> bool:
        """The lowest rank that spoke is believed when it goes back; the others may just be late."""
        if rank is None:
            return True
        number = int(next(filter(None, rank.groups())))
        if self._rank is None or number < self._rank:
            self._rank = number
        return number == self._rank

    def _went_back(self, step: int, now: float) -> list[Iteration]:
        """A rank that is late repeats old numbers; a job that restarted goes on from one. The second number tells."""
        if self._back is None or step <= self._back.step:
            self._back = Iteration(step, now)
            return []
        restarted = [self._back, Iteration(step, now)]
        self._last, self._back = step, None
        return restarted

    def _position(self, line: str) -> Position | None:
        if self.format is not None:
            return self.format.find(line)
        for each in FORMATS.values():
            if (position := each.find(line)) is not None:
                self.format = each
                return position
        return None

    def _step(self, position: Position) -> int | None:
        if position.epoch is not None:
            return self._step_over_epochs(position)
        # Bars of evaluations have a total of their own. The training's is there first, but for short ones before it.
        if position.total is not None:
            if self._bar is None or (self._bar_is_full and position.total > self._bar):
                self._bar = position.total
            if position.total != self._bar:
                return None
            self._bar_is_full = position.step >= position.total
        return position.step

    def _step_over_epochs(self, position: Position) -> int:
        assert position.epoch is not None
        if position.epoch > self._epoch:
            self._before += (position.total or 0) * (position.epoch - self._epoch)
        elif position.epoch < self._epoch:
            self._before = max(0, self._before - (position.total or 0) * (self._epoch - position.epoch))
        self._epoch = position.epoch
        return self._before + position.step
