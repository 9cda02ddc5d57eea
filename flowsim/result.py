"""What a run found: times, bytes and loads, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Timeline:
    """Every change of a rate, in order of time: from `time[i]` on, flow `flow[i]` moves `rate[i]` bytes a second.

    All of shape (changes,). A flow's last entry has rate 0. A flow without an entry has moved nothing.
    """

    time: NDArray[np.float64]
    flow: NDArray[np.int32]
    rate: NDArray[np.float64]

    def of(self, flow: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the times and rates of one flow."""
        mine = self.flow == flow
        return self.time[mine], self.rate[mine]


@dataclass(frozen=True)
class Result:
    """The outcome of `Network.run`. Times are in seconds, from 0.

    By activity (shape (activities,)); infinite where the run ended before it came to that:
      start: when a flow had all it waits for (its latency comes after), or when a task got its executor
      finish: when it was done
      moved: bytes of a flow that have been moved; 0 for a task
    By link (shape (links,)):
      link_bytes: bytes moved
      link_busy: seconds in which anything moved
      link_offered: bytes the link could have moved from 0 to `end`
    By executor (shape (executors,)):
      executor_busy: seconds in which a task ran
    """

    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    moved: NDArray[np.float64]
    link_bytes: NDArray[np.float64]
    link_busy: NDArray[np.float64]
    link_offered: NDArray[np.float64]
    executor_busy: NDArray[np.float64]
    #: When the last activity finished, or `until`.
    end: float
    #: Moments at which anything happened.
    instants: int
    rate_changes: int
    #: None unless `run(timeline=True)`.
    timeline: Timeline | None

    @property
    def link_utilisation(self) -> NDArray[np.float64]:
        """Bytes moved over bytes offered, from 0 to 1, shape (links,); 0 where nothing was offered."""
        offered = self.link_offered
        return np.divide(self.link_bytes, offered, out=np.zeros_like(offered), where=offered > 0)
