"""Which probes to send when, and the paths that follow from the answers. Pure: time, answers and nonces come in.

A flow is probed in rounds. A round asks the routers 1, 2, ... hops away until `gap` of them in a row stay silent,
however often they are asked: those are beyond the destination, which does not answer. Silence on the way is a router
that answers nobody, or that was asked too often: its place in the path is a question mark.
"""

from __future__ import annotations

import heapq
import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from leveller.core.model import FiveTuple
from leveller.probe.packets import Answer

__all__ = ["Limits", "Probe", "Search", "links"]


@dataclass(frozen=True)
class Limits:
    """How much is asked.

    rate: probes a second at most, over all flows; burst: how many of them at once
    patience: seconds to the first repetition; it doubles with each
    attempts: how often a router is asked in a round
    gap: routers in a row that stay silent before the path is taken to end
    farthest: hops at most
    again: seconds from the end of a round to the next round of the flow
    keep: seconds after which a flow that nobody wants any more is forgotten
    flows: how many are known at once; the one that was longest not asked for goes
    """

    rate: float = 100.0
    burst: int = 16
    patience: float = 0.25
    attempts: int = 3
    gap: int = 2
    farthest: int = 16
    again: float = 60.0
    keep: float = 600.0
    flows: int = 4096

    def __post_init__(self) -> None:
        for name in ("rate", "burst", "patience", "attempts", "gap", "farthest", "again", "keep", "flows"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is to be above 0, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Probe:
    """To be sent now."""

    flow: FiveTuple
    hops: int
    nonce: int


@dataclass(slots=True)
class _Round:
    routers: dict[int, str] = field(default_factory=dict)  # by hops
    silent: set[int] = field(default_factory=set)
    nonces: dict[int, int] = field(default_factory=dict)  # nonce -> hops, of probes under way
    horizon: int = 0


@dataclass(slots=True)
class _Known:
    round: _Round | None = None
    routers: dict[int, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    rounds: int = 0
    wanted: float = 0.0
    version: int = 0  # what was planned for an earlier round is void


class Search:
    """Paths of flows, kept up to date. `nonce`: gives 32 bits that nobody can guess."""

    def __init__(self, nonce: Callable[[], int], limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._nonce = nonce
        self._flows: OrderedDict[FiveTuple, _Known] = OrderedDict()
        # (time, order, flow, version, hops, attempt); hops 0 starts a round
        self._plan: list[tuple[float, int, FiveTuple, int, int, int]] = []
        self._order = 0
        self._tokens = float(self.limits.burst)
        self._filled: float | None = None

    def want(self, flow: FiveTuple, now: float) -> bool:
        """Keeps the path of `flow` up to date from now on; False where it was so already, or cannot be: no TCP."""
        flow = _plain(flow)
        if flow in self._flows:
            self._flows.move_to_end(flow)
            self._flows[flow].wanted = now
            return False
        if flow.protocol != "tcp":
            return False
        if len(self._flows) >= self.limits.flows:
            self._flows.popitem(last=False)
        self._flows[flow] = _Known(wanted=now)
        self._begin(flow, now)
        return True

    def again(self, flow: FiveTuple, now: float) -> None:
        """Something changed: probes `flow` anew, now. The path known stays until the new one is."""
        flow = _plain(flow)
        if flow in self._flows:
            self._begin(flow, now)

    def forget(self, flow: FiveTuple) -> None:
        """The flow ended."""
        self._flows.pop(_plain(flow), None)

    def path_of(self, flow: FiveTuple) -> tuple[str, ...]:
        """Returns the path that the last round found; nothing as long as none is over."""
        known = self._flows.get(_plain(flow))
        return known.path if known is not None else ()

    def rounds_of(self, flow: FiveTuple) -> int | None:
        """Returns how many rounds are over; None for a flow that is not wanted."""
        known = self._flows.get(_plain(flow))
        return known.rounds if known is not None else None

    def due(self, now: float) -> list[Probe]:
        """Returns what to send now."""
        self._fill(now)
        probes: list[Probe] = []
        while self._plan and self._plan[0][0] <= now:
            _, _, flow, version, hops, attempt = self._plan[0]
            known = self._flows.get(flow)
            if known is None or known.version != version:
                heapq.heappop(self._plan)
            elif hops == 0:
                heapq.heappop(self._plan)
                self._extend(flow, known, now)
            else:
                if self._asks(known, hops, attempt):
                    if self._tokens < 1:
                        break
                    self._tokens -= 1
                    probes.append(self._probe(flow, known, hops, attempt, now))
                heapq.heappop(self._plan)
                self._settle(flow, known, hops, attempt, now)
        return probes

    def wait(self, now: float) -> float | None:
        """Returns the seconds until `due` has something to do; None: when another flow is wanted."""
        if not self._plan:
            return None
        self._fill(now)
        token = max(0.0, (1 - self._tokens) / self.limits.rate)
        return max(self._plan[0][0] - now, token, 0.0)

    def took(self, answer: Answer, now: float) -> bool:
        """Takes an answer; False where it answers nothing that was asked, and changes nothing."""
        known = self._flows.get(answer.flow)
        round = known.round if known is not None else None
        if known is None or round is None or (hops := round.nonces.pop(answer.nonce, None)) is None:
            return False
        if hops in round.routers:
            return False
        round.routers[hops] = answer.router
        round.silent.discard(hops)
        self._extend(answer.flow, known, now)
        return True

    def _begin(self, flow: FiveTuple, now: float) -> None:
        known = self._flows[flow]
        known.version += 1
        known.round = _Round()
        self._schedule(now, flow, known, 0, 0)

    def _schedule(self, time: float, flow: FiveTuple, known: _Known, hops: int, attempt: int) -> None:
        self._order += 1
        heapq.heappush(self._plan, (time, self._order, flow, known.version, hops, attempt))

    def _extend(self, flow: FiveTuple, known: _Known, now: float) -> None:
        """Asks as far as the last router that answered, and `gap` further; ends the round where all was asked."""
        if (round := known.round) is None:
            # The pause between two rounds is over.
            if now - known.wanted > self.limits.keep:
                self.forget(flow)
            else:
                self._begin(flow, now)
            return
        horizon = min(max(round.routers, default=0) + self.limits.gap, self.limits.farthest)
        for hops in range(round.horizon + 1, horizon + 1):
            self._schedule(now, flow, known, hops, 0)
        round.horizon = max(round.horizon, horizon)
        if all(hops in round.routers or hops in round.silent for hops in range(1, round.horizon + 1)):
            known.routers = _remembered(known.routers, round.routers)
            known.path = links(flow, known.routers)
            known.rounds += 1
            known.round = None
            known.version += 1
            self._schedule(now + self.limits.again, flow, known, 0, 0)

    def _asks(self, known: _Known, hops: int, attempt: int) -> bool:
        return known.round is not None and hops not in known.round.routers and attempt < self.limits.attempts

    def _probe(self, flow: FiveTuple, known: _Known, hops: int, attempt: int, now: float) -> Probe:
        assert known.round is not None
        while (nonce := self._nonce()) in known.round.nonces:
            pass
        known.round.nonces[nonce] = hops
        self._schedule(now + self.limits.patience * 2**attempt, flow, known, hops, attempt + 1)
        return Probe(flow, hops, nonce)

    def _settle(self, flow: FiveTuple, known: _Known, hops: int, attempt: int, now: float) -> None:
        """A router that was asked often enough is silent."""
        round = known.round
        if round is not None and attempt >= self.limits.attempts and hops not in round.routers:
            round.silent.add(hops)
            self._extend(flow, known, now)

    def _fill(self, now: float) -> None:
        if self._filled is not None:
            gained = max(0.0, now - self._filled) * self.limits.rate
            self._tokens = min(float(self.limits.burst), self._tokens + gained)
        self._filled = now


def _remembered(before: dict[int, str], now: dict[int, str]) -> dict[int, str]:
    """Routers limit how often they answer: one that is silent keeps its place if all that answered are as before."""
    same = all(before.get(hops, router) == router for hops, router in now.items())
    return before | now if same else now


def links(flow: FiveTuple, routers: Mapping[int, str]) -> tuple[str, ...]:
    """Returns the directed links that a flow crosses, given who answered how many hops away (from 1).

    A link is named after the interface that it leads into: that is the address which routers answer with (Linux with
    net.ipv4.icmp_errors_use_inbound_ifaddr). The first one is named after the source instead, "source>", since a whole
    rack may share the address of its first router; the last one after the destination. A router that stays silent has
    the name of the last one known before it, and as many question marks as it is hops behind that.
    """
    found = [f"{flow.source}>"]
    before, silent = flow.source, ""
    for hops in range(1, max(routers, default=0) + 1):
        if hops in routers:
            before, silent = routers[hops], ""
        else:
            silent += "?"
        if hops > 1:
            found.append(f"{before}>{silent}" if silent else before)
    return (*found, flow.destination)


def _plain(flow: FiveTuple) -> FiveTuple:
    """IPv4 in IPv6 clothes is IPv4 on the wire, and addresses are written in one way."""
    return flow._replace(source=_address(flow.source), destination=_address(flow.destination))


def _address(text: str) -> str:
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
