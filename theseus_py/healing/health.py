"""From what flows get to the health of NICs: a state machine that is told the time.

Down fast, up slowly: a few windows of 20 ms that blame a NIC are enough to mark it, one steady second of better ones to
raise it again, and within a second of one change it takes a much worse NIC for the next. Health is never overestimated:
it is rounded down to sixteenths and taken from the worse windows. What is idle says nothing and stays as it was. A NIC
that is avoided because it was marked comes on the list of probes; if none is made, it is tried again after a while.
Where nobody says what NICs can do, a NIC is compared with the others, over several spans (history.py): what lost much
shows in few windows, what lost little needs more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile

import numpy as np
from numpy.typing import NDArray

from theseus_py.healing.blame import BUSY, FULL, Direction, Flow, Nic, Observation, Window, look
from theseus_py.healing.history import History

STEPS = 16  # health is a multiple of 1 / STEPS
# A span is looked at so often while it passes.
_LOOKS = 5
# A NIC is raised by so many probes in a row, each way.
_PROBES = 2
# A NIC shows that it can do more only by so much of its capacity: what is less may have gone in one burst.
_TELLING = 0.1


@dataclass(frozen=True)
class Settings:
    """Times in seconds. A window is what lies between two steps, 20 ms by default."""

    windows_down: int = 3  # in a row that blame a NIC, before it is marked
    windows_kept: int = 5  # of which the worse ones count
    steady_up: float = 1.0  # of good windows, before health rises
    dwell: float = 1.0  # between two changes of one NIC
    windows_up: int = 8  # at least, within steady_up
    worth_a_change: float = 1.25  # times what a NIC was taken for: each change costs all ranks new plans
    tie_patience: float = 0.5  # then all NICs of a tie are marked
    silence: float = 5.0  # of a marked NIC without a sign, until it is tried again; doubles each time in vain
    longest_silence: float = 300.0
    silence_in_use: float = 6.0  # times that, where plans still use the NIC
    # Where capacities are learned: over so many windows a NIC has to show no more than this part of what others do.
    spans: tuple[tuple[int, float], ...] = ((3, 0.3), (10, 0.6), (30, 0.85))
    doubt: float = 0.75  # times that, where another NIC is marked already: plans around it load the others unevenly
    still_less: float = 0.75  # times what a marked NIC is taken for it has to show, or less, to be taken for worse
    in_a_row: int = 2  # of windows for which that holds
    at_ease: float = 0.7  # of the time that sound NICs are waited for: less, and a marked one could do more
    ease: float = 1.4  # times what it was taken for it is taken for then
    trial: float = 4 / STEPS  # what it is then taken for: enough for a plan to use it a little


@dataclass(frozen=True)
class HealthChange:
    """The new map, hosts x rails, and the NICs in which it differs from the last one."""

    at: float
    health: tuple[tuple[float, ...], ...]
    changed: tuple[Nic, ...]


@dataclass
class _Nic:
    health: float = 1.0
    changed_at: float = -math.inf
    told: deque[tuple[float, float]] = field(default_factory=deque)  # time and health, of windows that said something
    heard_at: float = -math.inf
    silence: float = 0.0
    tied_since: float = math.inf
    at_ease_since: float = math.inf
    windows_at_ease: int = 0
    suspected: int = 0  # windows in a row
    probed: list[deque[float]] = field(default_factory=lambda: [deque(maxlen=_PROBES) for _ in range(2)])  # out, in


class Monitor:
    """The health of all NICs of a cluster. `capacity`: bytes a second of each (a number: of all), or None: learned, the
    same for all, as what most of them show.
    """

    def __init__(
        self,
        hosts: int,
        rails: int,
        capacity: float | NDArray[np.float64] | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.settings = settings or Settings()
        longest = max(windows for windows, _ in self.settings.spans)
        self._history = History(hosts, rails, longest) if capacity is None else None
        # By what was learned: what is left of each, where it is for certain this one, and where it may be another.
        self._suspects: dict[Nic, float] = {}
        self._ties: dict[Nic, float] = {}
        nothing = look({}, np.zeros((hosts, rails)))
        self._looks = [nothing for _ in self.settings.spans]  # the last over each span
        self._windows = 0
        self._capacity: NDArray[np.float64] = np.zeros((hosts, rails)) + (0.0 if capacity is None else capacity)
        self._nics = {(host, rail): _Nic() for host in range(hosts) for rail in range(rails)}
        self.probes: tuple[Flow, ...] = ()  # flows that would tell what the last windows left open

    @property
    def health(self) -> NDArray[np.float64]:
        """Returns the map as it stands."""
        hosts, rails = self._capacity.shape
        return np.array([[self._nics[host, rail].health for rail in range(rails)] for host in range(hosts)])

    @property
    def capacity(self) -> NDArray[np.float64]:
        """Returns bytes a second of each NIC, as given or learned so far; 0: nothing seen yet."""
        return np.array(self._capacity)

    def step(
        self,
        now: float,
        observations: Mapping[Flow | tuple[int, int, int], Observation | tuple[float, ...]],
        probes: Mapping[Flow, float] | None = None,
    ) -> HealthChange | None:
        """Takes what the flows got since the last step; returns the new map if it changed.

        `observations`: by (source host, destination host, rail), bytes a second while backlogged, and the share of the
        time for which the flow was. Flows that are left out were idle. `probes`: what probes that ended since then got,
        as part of what the same hosts got over a sound rail.
        """
        flows = {Flow(*flow): Observation(*seen) for flow, seen in observations.items()}
        window = look(flows, self._capacity) if self._history is None else self._look_back(self._history, flows)
        for flow, part in (probes or {}).items():
            self._take_probe(now, flow, part)
        changed = tuple(nic for nic in sorted(self._nics) if self._consider(now, nic, window))
        self.probes = self._wanted_probes(now, window)
        if not changed:
            return None
        if self._history is not None:
            self._history.forget()
        return HealthChange(now, tuple(map(tuple, self.health.tolist())), changed)

    def _look_back(self, history: History, flows: Mapping[Flow, Observation]) -> Window:
        """Compares NICs over several spans; returns a window that lasts as long as the middle one."""
        history.add(flows)
        shape = self._capacity.shape
        self._capacity = np.full(shape, history.usual)
        self._suspects, self._ties = {}, {}
        self._windows += 1
        for number, (windows, _) in enumerate(self.settings.spans):
            if self._windows % max(1, windows // _LOOKS) == 0:
                span = history.over(windows)
                capacity = np.full(shape, history.expected(span) if len(history) >= windows else 0.0)
                self._looks[number] = look(span, capacity, self._limit(number))
            self._note_suspects(self._looks[: number + 1])
        return self._looks[len(self._looks) // 2]

    def _note_suspects(self, looks: list[Window]) -> None:
        """Takes in the last of these, which go from short to long."""
        last, longest = looks[-1], len(looks) == len(self.settings.spans)
        limit = self._limit(len(looks) - 1)
        for nic in last.blamed | last.tied:
            health = self._nics[nic].health
            most = _extreme(nic, last, last.at_most)
            if most > limit or (health < 1 and (len(looks) == 1 or most > self.settings.still_less * health)):
                continue
            left = min(_extreme(nic, last, each.at_least) for each in looks[1 if health < 1 else 0 :])
            # One of a tie is not judged by the longest span, most of which may be over.
            marked = any(self._nics[other].health < 1 for other in last.tied if other[1] == nic[1])
            found = self._suspects if nic in last.blamed else None if longest or marked else self._ties
            if found is not None:
                found[nic] = min(left, found.get(nic, 1.0))

    def _limit(self, span: int) -> float:
        anyone = any(state.health < 1 for state in self._nics.values())
        return self.settings.spans[span][1] * (self.settings.doubt if anyone else 1.0)

    def _consider(self, now: float, nic: Nic, window: Window) -> bool:
        """Takes in what the window says of one NIC; returns whether its health changed."""
        state = self._nics[nic]
        self._note_ease(now, nic, window)
        tied = nic in window.tied or nic in self._ties
        state.tied_since = min(state.tied_since, now) if tied else math.inf
        tied_for_long = now - state.tied_since >= self.settings.tie_patience
        if self._suspect(now, nic, state, tied_for_long):
            return True
        blamed = nic in window.blamed or tied_for_long
        seen = self._evidence(nic, window, blamed)
        if seen is None:
            return self._probed_up(now, state) or self._ease_up(now, state) or self._try_again(now, state)
        state.heard_at = now
        state.told.append((now, 1.0 if seen >= FULL else seen))
        while state.told[0][0] < now - 2 * self.settings.steady_up:
            state.told.popleft()
        down = self._history is None and self._down(now, state)
        return down or self._up(now, state) or self._ease_up(now, state)

    def _take_probe(self, now: float, flow: Flow, part: float) -> None:
        """What goes to or from a sound host tells of the other one. Whatever it says, the NIC is not silent."""
        for way, nic in ((0, (flow.src, flow.rail)), (1, (flow.dst, flow.rail))):
            other = (flow[1 - way], flow.rail)
            state = self._nics.get(nic)
            if state is not None and state.health < 1.0 and self._nics[other].health == 1.0:
                state.probed[way].append(part)
                state.heard_at = now

    def _probed_up(self, now: float, state: _Nic) -> bool:
        settings = self.settings
        parts = [part for way in state.probed for part in way]
        if len(parts) < 2 * _PROBES or state.health == 1.0 or now - state.changed_at < settings.dwell:
            return False
        left = 1.0 if min(parts) >= FULL else _rounded_down(min(parts))
        if left < min(1.0, settings.worth_a_change * state.health) or left == state.health:
            return False
        state.silence = 0.0
        return self._set(now, state, left)

    def _note_ease(self, now: float, nic: Nic, window: Window) -> None:
        """A plan gives a marked NIC what it is taken for, so that data waits there as long as elsewhere. Where it waits
        much less while others are busy, the NIC has more.
        """
        state = self._nics[nic]
        if state.health == 1.0:
            return
        busy = window.busy.max(axis=0)
        sound = [float(busy[other]) for other, its in self._nics.items() if its.health == 1.0 and busy[other] > 0]
        typical = float(np.median(sound)) if sound else 0.0
        if nic in window.avoided:
            state.at_ease_since, state.windows_at_ease = math.inf, 0
        if typical < BUSY or nic in window.avoided:
            return
        if busy[nic] < self.settings.at_ease * typical:
            state.at_ease_since = min(state.at_ease_since, now)
            state.windows_at_ease += 1
        else:
            state.at_ease_since, state.windows_at_ease = math.inf, 0

    def _ease_up(self, now: float, state: _Nic) -> bool:
        settings = self.settings
        if state.health < settings.trial or state.health == 1.0 or now - state.changed_at < settings.dwell:
            return False
        if state.windows_at_ease < settings.windows_up or now - state.at_ease_since < settings.steady_up:
            return False
        return self._set(now, state, min(1.0, _rounded_down(settings.ease * state.health)))

    def _evidence(self, nic: Nic, window: Window, blamed: bool) -> float | None:
        """Returns what is left of the NIC by this window: of the worse direction if it is blamed, else of the better
        one, where that is more than it was taken for. None: nothing can be said.
        """
        host, rail = nic
        ways = range(2)
        if blamed:
            return _extreme(nic, window, window.at_least)
        state = self._nics[nic]
        if nic in window.avoided:
            return None
        telling = [way for way in ways if window.moved[way, host, rail] >= _TELLING]
        told = [float(window.at_least[way, host, rail]) for way in telling]
        best = max(told, default=0.0)
        busy = max(float(window.busy[way, host, rail]) for way in ways)
        if best >= FULL or best > state.health or (state.health == 1.0 and busy >= BUSY):
            return max(best, state.health)
        return None

    def _down(self, now: float, state: _Nic) -> bool:
        """Takes a NIC for worse by a few windows in a row."""
        settings = self.settings
        last = [seen for _, seen in islice(reversed(state.told), settings.windows_kept)]
        row = last[: settings.windows_down]
        if len(row) < settings.windows_down or max(row) >= state.health:
            return False
        bad = list(takewhile(lambda seen: seen < state.health, last))
        return self._lower(now, state, _rounded_down(float(np.percentile(bad, 10))))

    def _suspect(self, now: float, nic: Nic, state: _Nic, tied_for_long: bool) -> bool:
        """Takes a NIC for worse by a comparison with others."""
        left = self._suspects.get(nic, self._ties.get(nic) if tied_for_long else None)
        state.suspected = 0 if left is None else state.suspected + 1
        if left is None or state.suspected < self.settings.in_a_row:
            return False
        return self._lower(now, state, _rounded_down(left))

    def _lower(self, now: float, state: _Nic, left: float) -> bool:
        settings = self.settings
        soon = now - state.changed_at < settings.dwell
        if now - state.changed_at > settings.longest_silence / 10:
            state.silence = 0.0  # another story than the last one
        if left >= state.health or (soon and left > state.health / 4):
            return False
        return self._set(now, state, left)

    def _up(self, now: float, state: _Nic) -> bool:
        settings = self.settings
        if state.health == 1.0 or now - state.changed_at < settings.dwell:
            return False
        recent = [seen for at, seen in state.told if at >= now - settings.steady_up]
        if state.told[0][0] > now - settings.steady_up or len(recent) < settings.windows_up:
            return False
        left = float(np.percentile(recent, 10))
        left = 1.0 if left >= FULL else _rounded_down(left)
        if left < min(1.0, settings.worth_a_change * state.health) or left == state.health:
            return False
        state.silence = 0.0
        return self._set(now, state, left)

    def _try_again(self, now: float, state: _Nic) -> bool:
        """A marked NIC of which nothing was heard for long is taken for better, so that plans use it more: one that is
        left alone tells nothing, and one that has all it needs is never waited for.
        """
        settings = self.settings
        if state.health == 1.0:
            return False
        state.silence = state.silence or settings.silence
        weak = state.health < settings.trial
        patience = state.silence if weak else state.silence * settings.silence_in_use
        if now - max(state.heard_at, state.changed_at) < patience:
            return False
        state.silence = min(2 * state.silence, settings.longest_silence)
        return self._set(now, state, settings.trial if weak else min(1.0, 2 * state.health))

    def _set(self, now: float, state: _Nic, health: float) -> bool:
        state.health, state.changed_at = health, now
        state.told.clear()
        for way in state.probed:
            way.clear()
        state.at_ease_since, state.windows_at_ease = math.inf, 0
        return True

    def _wanted_probes(self, now: float, window: Window) -> tuple[Flow, ...]:
        """Returns flows of tied NICs with others that are not, and of marked NICs of which nothing is heard."""
        hosts, _ = self._capacity.shape
        wanted: set[Flow] = set()
        silent = {
            nic
            for nic, state in self._nics.items()
            if state.health < 1.0 and now - max(state.heard_at, state.changed_at) >= self.settings.steady_up
        }
        for host, rail in window.tied | silent:
            sound = [
                other
                for other in range(hosts)
                if other != host and (other, rail) not in window.tied and self._nics[other, rail].health == 1.0
            ]
            for other in sound[:1]:
                wanted |= {Flow(host, other, rail), Flow(other, host, rail)}
        return tuple(sorted(wanted))


def _extreme(nic: Nic, window: Window, speeds: Direction) -> float:
    """Returns the least of a NIC's `speeds` in the directions whose flows cannot be explained; 1: in none."""
    host, rail = nic
    ways = {way for flow in window.unexplained if flow.rail == rail for way in range(2) if flow[way] == host}
    return min((float(speeds[way, host, rail]) for way in ways if window.busy[way, host, rail] > 0), default=1.0)


def _rounded_down(health: float) -> float:
    return math.floor(min(max(health, 0.0), 1.0) * STEPS) / STEPS
