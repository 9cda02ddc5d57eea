"""Which NICs show less than they should, over several spans of time: what lost much shows in few windows, what lost
little needs more. What follows from it is health.py's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from theseus_py.healing.blame import Direction, Flow, Nic, Observation, Window, look
from theseus_py.healing.history import History

# A span is looked at so often while it passes.
_LOOKS = 5
# Which of the spans shows what a NIC can do, and from which on a marked one is judged finely.
_STEADY = 1
_FINE = 2


@dataclass(frozen=True)
class Limits:
    """Below which a NIC is suspected. Parts of what a healthy one shows."""

    # Over so many windows it shows no more than this.
    spans: tuple[tuple[int, float], ...] = ((3, 0.3), (10, 0.6), (30, 0.75), (100, 0.88))
    # Times that, where another NIC is marked already, since plans around it load the others unevenly, or where it is
    # not known yet what is usual.
    doubt: float = 0.75
    sure: float = 1.5  # times that of the shortest span, where it is given what NICs can do
    # In doubt short spans tell only of a NIC that shows no more than this.
    hardly: float = 0.15
    still_less: float = 0.9  # times what a marked NIC is taken for it has to show, or less, to be taken for worse
    much_less: float = 0.25  # the same over short spans


class Evidence:
    """What the last windows show of the NICs of a cluster, hosts x rails. `capacity`: bytes a second of each, or None:
    learned. `usual`: what was learned of that before; 0: nothing was.
    """

    def __init__(
        self, hosts: int, rails: int, capacity: NDArray[np.float64] | None, usual: float, limits: Limits
    ) -> None:
        self._limits = limits
        longest = max(windows for windows, _ in limits.spans)
        self._history = History(hosts, rails, longest, capacity, usual)
        self._nothing = look({}, np.zeros((hosts, rails)))
        self._looks = [self._nothing for _ in limits.spans]  # the last over each span
        self._windows = 0
        self._health = np.ones((hosts, rails))  # before this window
        # What is left of NICs that have less than they should, where it is for certain that one, and where it may be
        # another.
        self.suspects: dict[Nic, float] = {}
        self.ties: dict[Nic, float] = {}
        # Ends of flows that ranks avoid, where the other end is not known to be slow.
        self.avoided: frozenset[Nic] = frozenset()

    @property
    def usual(self) -> float:
        """Returns the bytes a second that were learned; 0: nothing yet, or nothing to learn."""
        return self._history.usual

    @property
    def capacity(self) -> NDArray[np.float64]:
        """Returns bytes a second of each NIC, as given or learned so far; 0: nothing seen yet."""
        return self._history.capacity

    @property
    def steady(self) -> Window:
        """Returns what the span showed that is long enough to tell what a NIC can do."""
        return self._looks[_STEADY]

    @property
    def fine(self) -> Window:
        """Returns what the first of the long spans showed."""
        return self._looks[_FINE]

    def is_doubtful(self, nic: Nic | None = None) -> bool:
        """Returns whether what is not usual may have other causes than a sick NIC, beside `nic`."""
        others = int(np.count_nonzero(self._health < 1)) - (nic is not None and bool(self._health[nic] < 1))
        return not self._history.knows or others > 0

    def forget(self) -> None:
        """Drops all windows, since what follows goes by other plans. What is usual stays."""
        self._history.forget()
        self._looks = [self._nothing for _ in self._looks]

    def add(self, flows: Mapping[Flow, Observation], health: NDArray[np.float64]) -> None:
        """Takes in one window; compares NICs, which are taken to have `health`, over all spans that it ends."""
        history = self._history
        history.add(flows)
        self.suspects, self.ties = {}, {}
        self._health = health
        shortest = history.over(self._limits.spans[0][0])
        self.avoided = frozenset(
            (flow[way], flow.rail)
            for flow, seen in shortest.items()
            for way in range(2)
            if seen.avoided and health[flow[1 - way], flow.rail] == 1
        )
        self._windows += 1
        for number, (windows, _) in enumerate(self._limits.spans):
            if self._windows % max(1, windows // _LOOKS) == 0:
                span = shortest if number == 0 else history.over(windows)
                expected = history.expected(span)
                known = len(history) >= windows and bool(expected.any())
                self._looks[number] = look(span, expected, self._limit(number)) if known else self._nothing
            self._note_suspects(number)
        self._acquit_slow_hosts()

    def _limit(self, span: int) -> float:
        sure = self._limits.sure if span == 0 and self._history.is_given else 1.0
        return self._limits.spans[span][1] * sure * (self._limits.doubt if self.is_doubtful() else 1.0)

    def _note_suspects(self, number: int) -> None:
        """Takes in what a span shows, and the shorter ones show of the same NICs."""
        last = self._looks[number]
        for nic in last.blamed | last.tied:
            limit = self._limit(number)
            if number < _FINE and self.is_doubtful(nic):
                limit = min(limit, self._limits.hardly)
            health = self._health[nic]
            most = _least(nic, last, last.at_most)
            less = self._limits.still_less if number >= _FINE else self._limits.much_less
            if most > limit or (health < 1 and most > less * health):
                continue
            shorter = self._looks[min(number, _FINE) if health < 1 or number >= _FINE else 0 : number + 1]
            left = min(_least(nic, last, each.at_least) for each in shorter)
            # One of a tie is not judged by long spans, most of which may be over.
            marked = any(self._health[other] < 1 for other in last.tied if other[1] == nic[1])
            found = self.suspects if nic in last.blamed else None if number > _STEADY or marked else self.ties
            if found is not None:
                found[nic] = min(left, found.get(nic, 1.0))

    def _acquit_slow_hosts(self) -> None:
        """A host all of whose NICs seem slow alike lacks something else, and no plan over its NICs would help."""
        hosts, rails = self._health.shape
        for host in range(hosts):
            left = [self.suspects[host, rail] for rail in range(rails) if (host, rail) in self.suspects]
            if rails > 1 and len(left) == rails and min(left) > self._limits.hardly:
                for rail in range(rails):
                    del self.suspects[host, rail]


def _least(nic: Nic, window: Window, speeds: Direction) -> float:
    """Returns the least of a NIC's `speeds` in the directions whose flows cannot be explained; 1: in none."""
    host, rail = nic
    ways = {way for flow in window.unexplained if flow.rail == rail for way in range(2) if flow[way] == host}
    return min((float(speeds[way, host, rail]) for way in ways if window.busy[way, host, rail] > 0), default=1.0)
