"""How far a job has come: normalized progress rate (paper section 3.1)."""

from __future__ import annotations

from collections import deque

__all__ = ["Progress"]


class Progress:
    """R of one job: iterations completed, over the iterations that it would have completed alone.

    started: when the job began, in seconds; `ideal`: seconds of an iteration alone, None until it is measured, and may
    be set later. `window`: R of the last so many seconds instead of the whole life; it forgets old unfairness, and so
    recovers faster.
    """

    def __init__(self, started: float, ideal: float | None = None, window: float | None = None) -> None:
        if window is not None and not window > 0:
            raise ValueError(f"a window is longer than 0 seconds, not {window:g}")
        self.started = started
        self.ideal = ideal
        self.window = window
        self._completed = 0
        self._step: int | None = None
        self._history: deque[tuple[float, int]] = deque([(started, 0)])

    @property
    def completed(self) -> int:
        """Iterations completed, those done again after a restart from a checkpoint included."""
        return self._completed

    def record(self, step: int, now: float) -> None:
        """Takes note that iteration number `step` (counted from 1) is complete at `now`.

        The first number seen counts as that many only if the job began with us: it is what `completed` starts from. A
        number below the last one means a restart from a checkpoint: what is done again counts, as the network carries
        it again.
        """
        if step < 0:
            raise ValueError(f"iterations count up from 0, not from {step}")
        if self._step is None:
            self._completed += step
        elif step >= self._step:
            self._completed += step - self._step
        self._step = step
        self._history.append((now, self._completed))
        self._forget(now)

    def begin_at(self, step: int, now: float) -> None:
        """Says that the job stood at iteration `step` at `now`, when it was first seen: earlier ones do not count."""
        self.started = now
        self._step = step
        self._completed = 0
        self._history = deque([(now, 0)])

    def rate(self, now: float) -> float | None:
        """Returns R at `now`; None while no iteration is complete or the ideal time is not known.

        It is that of the last iteration's end, or less where the present iteration takes longer already: counting whole
        iterations at any moment would make a job look slow by up to one, the young and the slow ones most.
        """
        self._forget(now)
        since, before = (self.started, 0) if self.window is None else self._history[0]
        last, completed = self._history[-1]
        done = completed - before
        if self.ideal is None or completed == 0 or now <= since:
            return None
        at_least = (done + 1) * self.ideal / (now - since)
        return min(done * self.ideal / (last - since), at_least) if last > since else at_least if self.window else None

    def _forget(self, now: float) -> None:
        """Keeps one entry at or before the window's start, from which it is measured."""
        if self.window is None:
            while len(self._history) > 1:
                self._history.popleft()
            return
        while len(self._history) > 1 and self._history[1][0] <= now - self.window:
            self._history.popleft()
