"""From what flows get to the health of NICs: a state machine that is told the time.

Down fast, up slowly. A NIC is compared with what others show, over several spans (evidence.py): what lost much shows in
few windows, what lost little needs more. It rises again after a steady second, and within a second of one change only
what is much worse counts. Health is never overestimated: it is rounded down to sixteenths, what a NIC shows is a lower
bound, and it is not believed to do more than it did. What is idle says nothing and stays as it was. A NIC that is
avoided because it was marked is probed; where nobody probes, it is tried again after a while.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from theseus_py.healing.blame import BUSY, FULL, Flow, Nic, Observation, Window
from theseus_py.healing.evidence import Evidence, Limits

STEPS = 16  # health is a multiple of 1 / STEPS
# A probe that gets so much each way found a sound NIC; if not quite, it will show soon enough.
_PROBED_SOUND = 0.85
_PROBED_SICK = 0.2  # of a NIC that ranks avoid
_BURSTLESS = 0.9  # of what a probe got, where that is less than full speed
_PROBES = 3  # each way, that count
# A NIC is at ease if it was in so many of its windows.
_MOSTLY = 0.75
_LONGEST_EASE = 5.0  # seconds of it that count
# A NIC shows that it can do more only by so much of its capacity, and so much more than it did: buckets let bursts
# through at any speed.
_TELLING = 0.1
_BURST = 1.25
# What is lost so soon after a NIC was taken for better was no gain.
_IN_VAIN_SECONDS = 10.0


@dataclass(frozen=True)
class Settings:
    """Times in seconds. A window is what lies between two steps, 20 ms by default."""

    limits: Limits = field(default_factory=Limits)
    in_a_row: int = 2  # of windows for which that holds
    stuck: float = 0.5  # seconds of it, where it is doubtful: a connection that lost packets stands still for less
    steady_up: float = 1.0  # of good windows, before health rises
    dwell: float = 1.0  # between two changes of one NIC
    windows_up: int = 8  # at least, within steady_up
    worth_a_change: float = 1.25  # times what a NIC was taken for: each change costs all ranks new plans
    tie_patience: float = 1.2  # then all NICs of a tie are marked, unless probes tell which it is
    rarest_probe: float = 4.0  # of a marked NIC: so often at least, however little it gets
    silence: float = 5.0  # of a marked NIC without a sign, until it is tried again; doubles each time in vain
    longest_silence: float = 300.0
    silence_in_use: float = 6.0  # times that, where plans still use the NIC
    at_ease: float = 0.7  # of the time that sound NICs are waited for: less, and a marked one could do more
    ease: float = 1.4  # times what it was taken for it is taken for then
    untold: float = 12.0  # times what it waits for ease, at least `steady_up`, until it is tried without
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
    # Out and in: when probes last ended, what they got since the last change, and how long the next one can wait.
    probed_at: list[float] = field(default_factory=lambda: [-math.inf, -math.inf])
    probe_again: list[float] = field(default_factory=lambda: [0.0, 0.0])
    probed: list[deque[float]] = field(default_factory=lambda: [deque(maxlen=_PROBES) for _ in range(2)])
    silence: float = 0.0
    tied_since: float = math.inf
    eases: deque[tuple[float, bool]] = field(default_factory=deque)  # time, and whether it was at ease in that window
    eased_at: float = -math.inf  # when it was last taken for better because it was at ease
    ease_patience: float = 0.0
    suspected: int = 0  # windows in a row
    suspected_since: float = math.inf
    avoided_since: float = math.inf  # by ranks, which then send little there that would tell
    sound_at: float = -math.inf  # when a probe last went through as if nothing were amiss


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
        *,
        health: Mapping[Nic, float] | None = None,
        usual: float = 0.0,
    ) -> None:
        """`health`, `usual`: what another monitor of the same cluster had found and learned (NICs that are left out are
        sound; 0: nothing was learned).
        """
        self.settings = settings or Settings()
        self._shape = hosts, rails
        given = None if capacity is None else np.zeros((hosts, rails)) + capacity
        self._seen = Evidence(hosts, rails, given, usual, self.settings.limits)
        self._changed_at = -math.inf
        self._inherited = bool(health)
        self._nics = {(host, rail): _Nic() for host in range(hosts) for rail in range(rails)}
        for nic, found in (health or {}).items():
            if nic in self._nics:
                self._nics[nic].health = _rounded_down(found)
        self.probes: tuple[Flow, ...] = ()  # flows that would tell what the last windows left open

    @property
    def health(self) -> NDArray[np.float64]:
        """Returns the map as it stands."""
        hosts, rails = self._shape
        return np.array([[self._nics[host, rail].health for rail in range(rails)] for host in range(hosts)])

    @property
    def usual(self) -> float:
        """Returns the bytes a second that it has learned of NICs; 0: nothing yet, or nothing to learn."""
        return self._seen.usual

    @property
    def capacity(self) -> NDArray[np.float64]:
        """Returns bytes a second of each NIC, as given or learned so far; 0: nothing seen yet."""
        return self._seen.capacity

    def step(
        self,
        now: float,
        observations: Mapping[Flow | tuple[int, int, int], Observation | tuple[float, ...]],
        probes: Mapping[Flow, float] | None = None,
    ) -> HealthChange | None:
        """Takes what the flows got since the last step; returns the new map if it changed.

        `observations`: by (source host, destination host, rail), bytes a second while backlogged, and the share of the
        time for which the flow was. Flows that are left out were idle. `probes`: what probes that ended since then got,
        as part of what a sound NIC gets.
        """
        if self._inherited:
            self._inherited = False
            for state in self._nics.values():
                state.changed_at = now  # whenever it was: patience begins anew
        self._seen.add({Flow(*flow): Observation(*seen) for flow, seen in observations.items()}, self.health)
        window = self._seen.steady
        for flow, part in (probes or {}).items():
            self._take_probe(now, flow, part)
        changed = tuple(nic for nic in sorted(self._nics) if self._consider(now, nic, window))
        self.probes = self._wanted_probes(now, window)
        if not changed:
            return None
        self._changed_at = now
        self._seen.forget()
        return HealthChange(now, tuple(map(tuple, self.health.tolist())), changed)

    def _consider(self, now: float, nic: Nic, window: Window) -> bool:
        """Takes in what the windows say of one NIC; returns whether its health changed."""
        state = self._nics[nic]
        self._note_avoided(now, nic, state)
        tied = nic in window.tied or nic in self._seen.ties
        state.tied_since = min(state.tied_since, now) if tied else math.inf
        if self._suspect(now, nic, state):
            return True
        if state.health == 1.0:
            return False
        self._note_ease(now, nic, window)
        seen = self._evidence(nic, window)
        if seen is not None:
            state.heard_at = now
            state.told.append((now, seen))
            while state.told[0][0] < now - 2.1 * self.settings.steady_up:
                state.told.popleft()
        ways_up = (self._up, self._probed_up, self._ease_up, self._try_again)
        return any(way(now, state) for way in ways_up)

    def _suspect(self, now: float, nic: Nic, state: _Nic) -> bool:
        if (shown := self._shown_by_probes(nic, state)) is not None:
            return self._lower(now, state, _rounded_down(shown))
        left = self._seen.suspects.get(nic)
        if left is None and self._loses_tie(now, nic, state):
            left = self._seen.ties[nic]
        state.suspected = 0 if left is None else state.suspected + 1
        state.suspected_since = math.inf if left is None else min(state.suspected_since, now)
        if left is None or state.suspected < self.settings.in_a_row:
            return False
        if self._seen.is_doubtful(nic) and now - state.suspected_since < self.settings.stuck:
            return False
        return self._lower(now, state, _rounded_down(left))

    def _note_avoided(self, now: float, nic: Nic, state: _Nic) -> None:
        """Keeps since when ranks avoid a NIC that is not marked, and probes of that time alone."""
        if state.health < 1.0:
            state.avoided_since = math.inf
        elif nic in self._seen.avoided:
            state.avoided_since = min(state.avoided_since, now)
        elif state.avoided_since < math.inf:
            state.avoided_since = math.inf
            for way in state.probed:
                way.clear()

    def _shown_by_probes(self, nic: Nic, state: _Nic) -> float | None:
        """Returns what probes got of a NIC that ranks avoid, if that was next to nothing, and if the NIC did not carry
        more meanwhile: then others had crowded them out.
        """
        if state.avoided_since == math.inf:
            return None
        best = [max(way) for way in state.probed if len(way) > 1]  # one may have lost its first packet
        if not best or min(best) > _PROBED_SICK:
            return None
        carried = max(float(self._seen.fine.moved[way][nic]) for way in range(2))
        return min(best) if carried < max(_PROBED_SICK, 2 * min(best)) else None

    def _loses_tie(self, now: float, nic: Nic, state: _Nic) -> bool:
        """Of NICs that may each be at fault all are, after a while, but those that probes found sound meanwhile."""
        if nic not in self._seen.ties or state.sound_at >= state.tied_since:
            return False
        rivals = [
            its for other, its in self._nics.items() if other in self._seen.ties and other[1] == nic[1] and other != nic
        ]
        alone = bool(rivals) and all(its.sound_at >= its.tied_since for its in rivals)
        return alone or now - state.tied_since >= self.settings.tie_patience

    def _lower(self, now: float, state: _Nic, left: float) -> bool:
        settings = self.settings
        if left >= state.health:
            return False
        if now - state.changed_at < settings.dwell and left > settings.limits.much_less * state.health:
            return False
        if now - self._changed_at < settings.dwell and left > settings.limits.hardly:
            return False  # what ranks do is about to change
        if now - state.changed_at > settings.longest_silence / 10:
            state.silence = state.ease_patience = 0.0  # another story than the last one
        elif now - state.eased_at < _IN_VAIN_SECONDS:
            state.ease_patience = min(2 * max(state.ease_patience, settings.steady_up), settings.longest_silence)
        return self._set(now, state, left)

    def _take_probe(self, now: float, flow: Flow, part: float) -> None:
        """What goes to or from a sound host tells of the other one. Whatever it says, the NIC is not silent."""
        for way, nic in ((0, (flow.src, flow.rail)), (1, (flow.dst, flow.rail))):
            other = (flow[1 - way], flow.rail)
            state = self._nics.get(nic)
            if state is not None and part >= _PROBED_SOUND:
                state.sound_at = now
            told = state is not None and (state.health < 1.0 or state.avoided_since < math.inf)
            if state is not None and told and self._nics[other].health == 1.0:
                state.probed[way].append(part)
                state.probed_at[way] = now
                # A probe takes from others what it gets: no news is a reason to ask less often.
                is_news = part >= max(self.settings.trial, self.settings.worth_a_change * state.health)
                again = max(self.settings.steady_up, 2 * state.probe_again[way])
                state.probe_again[way] = 0.0 if is_news else min(again, self.settings.rarest_probe)

    def _probed_up(self, now: float, state: _Nic) -> bool:
        """What a probe got, among other data, is the least that a NIC can do: the best of a few counts. Less than full
        speed is believed when there were so many, since what had piled up at a NIC goes first when it recovers.
        """
        if not all(state.probed):
            return False
        least = min(max(way) for way in state.probed)
        if least >= _PROBED_SOUND:
            return self._raise(now, state, 1.0)
        enough = all(len(way) == _PROBES and min(way) >= self.settings.trial for way in state.probed)
        return enough and self._raise(now, state, _BURSTLESS * least)

    def _raise(self, now: float, state: _Nic, left: float) -> bool:
        """Takes a NIC for better, if it is by enough."""
        settings = self.settings
        left = 1.0 if left >= FULL else _rounded_down(left)
        if now - state.changed_at < settings.dwell or left <= state.health:
            return False
        if left < min(1.0, settings.worth_a_change * state.health):
            return False
        state.silence = 0.0
        return self._set(now, state, left)

    def _note_ease(self, now: float, nic: Nic, window: Window) -> None:
        """A plan gives a marked NIC what it is taken for, so that data waits there as long as elsewhere. Where it waits
        much less while others are busy, the NIC has more.
        """
        state = self._nics[nic]
        busy = window.busy.max(axis=0)
        sound = [float(busy[other]) for other, its in self._nics.items() if its.health == 1.0 and busy[other] > 0]
        typical = float(np.median(sound)) if sound else 0.0
        if typical < BUSY and nic not in window.avoided:
            return
        # One that is sound again waits `health` of the time that others do, one that is not waits all of it.
        part = max(self.settings.at_ease, (1 + state.health) / 2)
        at_ease = nic not in window.avoided and bool(busy[nic] < part * typical)
        state.eases.append((now, at_ease))
        while state.eases[0][0] < now - 2 * _LONGEST_EASE:
            state.eases.popleft()

    def _is_at_ease(self, now: float, state: _Nic, seconds: float) -> bool:
        """Whether it was in most windows of so many seconds."""
        recent = [at_ease for at, at_ease in state.eases if at >= now - seconds]
        covered = bool(recent) and state.eases[0][0] <= now - 0.9 * seconds
        return covered and len(recent) >= self.settings.windows_up and float(np.mean(recent)) >= _MOSTLY

    def _ease_up(self, now: float, state: _Nic) -> bool:
        settings = self.settings
        patience = max(state.ease_patience, settings.steady_up)
        if state.health < settings.trial or now - state.changed_at < patience:
            return False
        # Plans that spread messages evenly have all NICs waited for alike, so that nothing tells: then it is tried.
        untold = bool(state.eases) and now - max(state.changed_at, *state.probed_at) >= settings.untold * patience
        if not untold and not self._is_at_ease(now, state, min(patience, _LONGEST_EASE)):
            return False
        state.eased_at = now
        more = 2.0 if untold else settings.ease
        return self._set(now, state, min(1.0, max(_rounded_down(more * state.health), state.health + 1 / STEPS)))

    def _evidence(self, nic: Nic, window: Window) -> float | None:
        """Returns what a marked NIC shows that it can do, in the worse of the directions that it was used in; None:
        nothing.
        """
        if nic in window.avoided:
            return None
        ways = [(way, *nic) for way in range(2) if window.moved[way][nic] >= _TELLING]
        return min((min(float(window.at_least[way]), _BURST * float(window.moved[way])) for way in ways), default=None)

    def _up(self, now: float, state: _Nic) -> bool:
        """Back to full speed after a steady while, to something between after two."""
        for whiles, least in ((1, FULL), (2, 0.0)):
            since = now - whiles * self.settings.steady_up
            recent = [seen for at, seen in state.told if at >= since]
            if len(recent) < self.settings.windows_up or state.told[0][0] > since:
                return False
            if (left := float(np.percentile(recent, 10))) >= least and self._raise(now, state, left):
                return True
        return False

    def _try_again(self, now: float, state: _Nic) -> bool:
        """A marked NIC of which nothing was heard for long is taken for better, so that plans use it more: one that is
        left alone tells nothing, and one that has all it needs is never waited for.
        """
        settings = self.settings
        state.silence = state.silence or settings.silence
        weak = state.health < settings.trial
        patience = state.silence if weak else state.silence * settings.silence_in_use
        if now - max(state.heard_at, *state.probed_at, state.changed_at) < patience:
            return False
        state.silence = min(2 * state.silence, settings.longest_silence)
        return self._set(now, state, settings.trial if weak else min(1.0, 2 * state.health))

    def _set(self, now: float, state: _Nic, health: float) -> bool:
        state.health, state.changed_at = health, now
        state.told.clear()
        for way in state.probed:
            way.clear()
        state.probe_again = [0.0, 0.0]
        state.eases.clear()
        return True

    def _wanted_probes(self, now: float, window: Window) -> tuple[Flow, ...]:
        """Returns flows of tied NICs with others that are not, and of marked NICs of which nothing is heard, or which
        could do more.
        """
        hosts, _ = self._shape
        wanted: set[Flow] = set()
        settings = self.settings
        avoided = {nic for nic, state in self._nics.items() if now - state.avoided_since >= settings.steady_up / 4}
        wondered = avoided | {
            nic
            for nic, state in self._nics.items()
            if state.health < 1.0
            and (
                now - max(state.heard_at, state.changed_at) >= settings.steady_up
                or self._is_at_ease(now, state, settings.steady_up / 2)
            )
        }
        for host, rail in window.tied | wondered:
            partners = [
                other
                for other in range(hosts)
                if other != host and (other, rail) not in window.tied and self._nics[other, rail].health == 1.0
            ]
            # Whoever avoids a NIC is avoided there as well: that says little of it.
            better = [other for other in partners if (other, rail) not in avoided] or partners
            state = self._nics[host, rail]
            for other in better[:1]:
                for way, flow in enumerate((Flow(host, other, rail), Flow(other, host, rail))):
                    if state.health == 1.0 or now - state.probed_at[way] >= state.probe_again[way]:
                        wanted.add(flow)
        return tuple(sorted(wanted))


def _rounded_down(health: float) -> float:
    return math.floor(min(max(health, 0.0), 1.0) * STEPS) / STEPS
