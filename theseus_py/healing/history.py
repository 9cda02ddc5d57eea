"""What flows got over longer spans than one window, and what NICs may be expected to do.

TCP, bursts that NICs and switches let through, and the scheduler make single windows of 20 ms say anything between half
and twice a NIC's speed. Over 60 ms healthy NICs were seen at 0.5 of their speed and more, over 200 ms at 0.77, over
600 ms at 0.92. So what lost most shows first, and less needs longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from theseus_py.healing.blame import Flow, Observation, capacity_evidence

# A NIC tells what others can do now if data waited there for so much of the time, as a rule to all peers at once. What
# NICs can do at all it tells if data waited there nearly all the time.
_TELLING = 0.05
_FULL_TIME = 0.8
# Of those that tell: more than half may share a rail with one that is slow, and do less on its account.
_BETTER_ONES = 75
# The usual speed is looked at over so many windows, and so many looks count: a bad phase does not become the rule.
_USUAL_WINDOWS = 3
_LOOKS_KEPT = 512
_FEW_LOOKS = 16


class History:
    """The last `longest` windows of all flows. `capacity`: bytes a second of each NIC, hosts x rails; or None: learned,
    the same for all, as what most of them show.
    """

    def __init__(
        self, hosts: int, rails: int, longest: int, capacity: NDArray[np.float64] | None, usual: float = 0.0
    ) -> None:
        """`usual`: bytes a second that were learned before; 0: nothing was."""
        self._unit = np.ones((hosts, rails)) if capacity is None else capacity
        self._given = capacity is not None
        self._windows: deque[Mapping[Flow, Observation]] = deque(maxlen=longest)
        self._usual: deque[float] = deque(maxlen=_LOOKS_KEPT)
        if usual > 0:
            self._usual.extend([usual] * _FEW_LOOKS)
        self._until_next = _USUAL_WINDOWS

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def capacity(self) -> NDArray[np.float64]:
        """Bytes a second of each NIC while data waits, most of the time; 0: not known yet."""
        return self._usual_part() * self._unit

    @property
    def is_given(self) -> bool:
        """Whether it was told what NICs can do."""
        return self._given

    @property
    def usual(self) -> float:
        """What was learned, bytes a second; 0: too little yet, or nothing to learn."""
        return 0.0 if self._given or not self.knows else self._usual_part()

    @property
    def knows(self) -> bool:
        """Whether it knows what is usual, and not only what there is at the moment."""
        return self._given or len(self._usual) >= _FEW_LOOKS

    def forget(self) -> None:
        """Drops all windows: what follows goes by other plans. What is usual stays."""
        self._windows.clear()

    def add(self, flows: Mapping[Flow, Observation]) -> None:
        """Takes in one window."""
        self._windows.append(flows)
        self._until_next -= 1
        if self._given or self._until_next > 0 or len(self) < _USUAL_WINDOWS:
            return
        self._until_next = _USUAL_WINDOWS
        part = self._typical(self.over(_USUAL_WINDOWS), _FULL_TIME, 50)
        if part > 0:
            self._usual.append(part)

    def over(self, windows: int) -> dict[Flow, Observation]:
        """Returns what each flow got in the last `windows` windows together."""
        count = min(windows, len(self._windows))
        moved: dict[Flow, float] = {}
        waited: dict[Flow, float] = {}
        avoided: set[Flow] = set()
        span = 0.0
        for number in range(len(self._windows) - count, len(self._windows)):
            flows = self._windows[number]
            span += max((seen.seconds for seen in flows.values()), default=0.02)
            for flow, (goodput, backlogged, seconds, is_avoided) in flows.items():
                waited[flow] = waited.get(flow, 0.0) + backlogged * seconds
                moved[flow] = moved.get(flow, 0.0) + goodput * backlogged * seconds
                if is_avoided:
                    avoided.add(flow)
        return {
            flow: Observation(moved[flow] / max(time, 1e-9), min(1.0, time / span), span, flow in avoided)
            for flow, time in waited.items()
        }

    def expected(self, flows: Mapping[Flow, Observation]) -> NDArray[np.float64]:
        """Returns the bytes a second that healthy NICs would have shown in a span: no more than is usual, and no more
        than the better ones showed in that very span, since whoever lacks processor time lacks it on all NICs. 0: not
        known yet.
        """
        now, usual = self._typical(flows, _TELLING, _BETTER_ONES), self._usual_part()
        return (min(now, usual) if min(now, usual) > 0 else now or usual) * self._unit

    def _usual_part(self) -> float:
        if self._given:
            return 1.0
        return float(np.median(self._usual)) if self._usual else 0.0

    def _typical(self, flows: Mapping[Flow, Observation], least: float, percentile: float) -> float:
        moved, _, longest = capacity_evidence(flows, *self._unit.shape)
        telling = longest >= least
        if 2 * np.count_nonzero(telling) < telling.size:
            return 0.0
        return float(np.percentile((moved / self._unit)[telling] / longest[telling], percentile))
