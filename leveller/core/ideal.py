"""How long an iteration takes a job that is alone on the network."""

from __future__ import annotations

from statistics import median

__all__ = ["IdealTime"]

#: An iteration that takes so many times the median holds something else as well: an evaluation, a checkpoint.
_UNUSUAL = 1.8
_MOST_KEPT = 256


class IdealTime:
    """The median duration of an iteration, without the first one (it warms up) and those that hold something else.

    To be fed while the job is alone; `restart` begins anew.
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._durations: list[float] = []

    def restart(self) -> None:
        """Forgets all: what comes was measured under other circumstances."""
        self._last = None
        self._durations.clear()

    def record(self, step: int, now: float) -> None:
        """Takes note that iteration `step` is complete at `now`, in seconds. Steps that go back begin a new stretch."""
        if self._last is not None and step > self._last[0] and now > self._last[1]:
            steps = step - self._last[0]
            self._durations += [(now - self._last[1]) / steps] * min(steps, _MOST_KEPT)
            del self._durations[:-_MOST_KEPT]
        if self._last is None or step != self._last[0]:
            self._last = (step, now)

    @property
    def iterations(self) -> int:
        """How many durations are known."""
        return len(self._durations)

    @property
    def value(self) -> float | None:
        """Seconds of an iteration; None as long as there is none."""
        if not self._durations:
            return None
        usual = _UNUSUAL * median(self._durations)
        return median(each for each in self._durations if each <= usual)
