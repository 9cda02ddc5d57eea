"""From what flows get to the health of NICs: a state machine that is told the time.

Down fast, up slowly: a few windows of 20 ms that blame a NIC are enough to mark it, one steady second of better ones to
raise it again, and within a second of one change it takes a much worse NIC for the next. Health is never overestimated:
it is rounded down to sixteenths and taken from the worse windows. What is idle says nothing and stays as it was. A NIC
that is avoided because it was marked comes on the list of probes; if none is made, it is tried again after a while.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile

import numpy as np
from numpy.typing import NDArray

from theseus_py.healing.blame import BUSY, FULL, Flow, Nic, Observation, Window, capacity_evidence, look

STEPS = 16  # health is a multiple of 1 / STEPS


@dataclass(frozen=True)
class Settings:
    """Times in seconds. A window is what lies between two steps, 20 ms by default."""

    windows_down: int = 3  # in a row that blame a NIC, before it is marked
    windows_kept: int = 5  # of which the worse ones count
    steady_up: float = 1.0  # of good windows, before health rises
    dwell: float = 1.0  # between two changes of one NIC
    windows_up: int = 8  # at least, within steady_up
    tie_patience: float = 0.5  # then all NICs of a tie are marked
    silence: float = 5.0  # of a marked NIC without a sign, until it is tried again; doubles each time in vain
    longest_silence: float = 300.0
    silence_in_use: float = 6.0  # times that, where plans still use the NIC
    doubtful: float = 0.6  # a learned capacity may be that of a burst: less than this has to be lost
    very_doubtful: float = 0.3  # the same, where another NIC is marked already
    at_ease: float = 0.5  # of the time that sound NICs are waited for: less, and a marked one could do more
    trial: float = 4 / STEPS  # what it is then taken for: enough for a plan to use it a little
    learned_windows: int = 5  # a capacity that is not given is the best mean of so many windows


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


class Monitor:
    """The health of all NICs of a cluster. `capacity`: bytes a second of each (a number: of all), or None: learned as
    the best that was ever seen of the NIC, in either direction.
    """

    def __init__(
        self,
        hosts: int,
        rails: int,
        capacity: float | NDArray[np.float64] | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self._learns = capacity is None
        self._capacity: NDArray[np.float64] = np.zeros((hosts, rails)) + (0.0 if capacity is None else capacity)
        self._recent: deque[NDArray[np.float64]] = deque(maxlen=self.settings.learned_windows)
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
        self, now: float, observations: Mapping[Flow | tuple[int, int, int], Observation | tuple[float, float]]
    ) -> HealthChange | None:
        """Takes what the flows got since the last step; returns the new map if it changed.

        `observations`: by (source host, destination host, rail), bytes a second while backlogged, and the share of the
        time for which the flow was. Flows that are left out were idle.
        """
        flows = {Flow(*flow): Observation(*seen) for flow, seen in observations.items()}
        if self._learns:
            self._learn(flows)
        window = look(flows, self._capacity)
        changed = tuple(nic for nic in sorted(self._nics) if self._consider(now, nic, window))
        self.probes = self._wanted_probes(now, window)
        if not changed:
            return None
        return HealthChange(now, tuple(map(tuple, self.health.tolist())), changed)

    def _learn(self, flows: Mapping[Flow, Observation]) -> None:
        moved, _, _ = capacity_evidence(flows, *self._capacity.shape)
        self._recent.append(moved)
        if len(self._recent) == self.settings.learned_windows:
            best = np.mean(np.array(self._recent), axis=0).max(axis=0)
            self._capacity = np.maximum(self._capacity, best)

    def _consider(self, now: float, nic: Nic, window: Window) -> bool:
        """Takes in what the window says of one NIC; returns whether its health changed."""
        state = self._nics[nic]
        self._note_ease(now, nic, window)
        state.tied_since = min(state.tied_since, now) if nic in window.tied else math.inf
        blamed = nic in window.blamed or now - state.tied_since >= self.settings.tie_patience
        seen = self._evidence(nic, window, blamed)
        if seen is None:
            return self._ease_up(now, state) or self._try_again(now, state)
        state.heard_at = now
        state.told.append((now, 1.0 if seen >= FULL else seen))
        while state.told[0][0] < now - 2 * self.settings.steady_up:
            state.told.popleft()
        return self._down(now, state) or self._up(now, state) or self._ease_up(now, state)

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
        if typical < BUSY:
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
        return self._set(now, state, min(1.0, 2 * state.health))

    def _evidence(self, nic: Nic, window: Window, blamed: bool) -> float | None:
        """Returns what is left of the NIC by this window: of the worse direction if it is blamed, else of the better
        one, where that is more than it was taken for. None: nothing can be said.
        """
        host, rail = nic
        ways = range(2)
        if blamed:
            ways_blamed = {way for flow in window.unexplained if flow.rail == rail for way in ways if flow[way] == host}
            return min((float(window.at_least[way, host, rail]) for way in ways_blamed), default=None)
        state = self._nics[nic]
        told = [float(window.at_least[way, host, rail]) for way in ways if window.busy[way, host, rail] > 0]
        best = max(told, default=0.0)
        busy = max(float(window.busy[way, host, rail]) for way in ways)
        if best >= FULL or best > state.health or (state.health == 1.0 and busy >= BUSY):
            return max(best, state.health)
        return None

    def _down(self, now: float, state: _Nic) -> bool:
        settings = self.settings
        last = [seen for _, seen in islice(reversed(state.told), settings.windows_kept)]
        row = last[: settings.windows_down]
        if len(row) < settings.windows_down or max(row) >= state.health:
            return False
        bad = list(takewhile(lambda seen: seen < state.health, last))
        left = _rounded_down(float(np.percentile(bad, 10)))
        if self._learns and left > (settings.very_doubtful if self._heals_others(state) else settings.doubtful):
            return False
        soon = now - state.changed_at < settings.dwell
        if now - state.changed_at > settings.longest_silence / 10:
            state.silence = 0.0  # another story than the last one
        if left >= state.health or (soon and left > state.health / 4):
            return False
        return self._set(now, state, left)

    def _heals_others(self, state: _Nic) -> bool:
        """Plans around one NIC load the others unevenly, and make them look slower than they are."""
        return any(other.health < 1.0 for other in self._nics.values() if other is not state)

    def _up(self, now: float, state: _Nic) -> bool:
        settings = self.settings
        if state.health == 1.0 or now - state.changed_at < settings.dwell:
            return False
        recent = [seen for at, seen in state.told if at >= now - settings.steady_up]
        if state.told[0][0] > now - settings.steady_up or len(recent) < settings.windows_up:
            return False
        left = float(np.percentile(recent, 10))
        left = 1.0 if left >= FULL else _rounded_down(left)
        if left <= state.health:
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


def _rounded_down(health: float) -> float:
    return math.floor(min(max(health, 0.0), 1.0) * STEPS) / STEPS
