"""Which NICs explain what flows got, in one window of time.

Where all NICs have their capacity and share it fairly, every flow that data waits for has a NIC at one of its ends that
is full, and there no other flow gets more. A flow without one tells of a NIC that has less than it should; which of its
two, the other flows tell: blamed is the smallest set of NICs that has an end of each such flow. Rails are apart, so
each is looked at for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# A NIC counts as full from here on: what is left are headers, other traffic, and how windows cut.
FULL = 0.85
# A flow says something about its NICs if data waited for so much of the window.
BUSY = 0.5
# TCP is not that fair: at a full NIC a flow may get so much less than another, and nobody is to blame.
FAIR = 0.35
# The search is exact up to so many NICs of one rail; then the NIC with the most unexplained flows goes first.
_MOST_EXACT = 4


class Flow(NamedTuple):
    """From one host to another over one rail."""

    src: int
    dst: int
    rail: int


class Observation(NamedTuple):
    """What a flow got in a window of so many seconds: bytes a second while data waited to go, and for which share of
    the window it did. `avoided`: ranks sent some of its data over another rail by themselves (first aid).
    """

    goodput: float
    backlogged: float
    seconds: float = 0.02
    avoided: bool = False


Nic = tuple[int, int]  # host, rail
Direction = NDArray[np.float64]  # [0 out, 1 in][host][rail]


@dataclass(frozen=True)
class Window:
    """What the flows of one window say of the NICs. Parts of capacity, by direction, host and rail."""

    busy: Direction  # share of the window: the longest time that one flow waited; 0: the NIC says nothing
    at_least: Direction  # the speed of the NIC, if its flows waited one after the other
    at_most: Direction  # the same, if all waited at once
    moved: Direction  # what it moved while data waited, as if it had taken all of the window for it
    avoided: frozenset[Nic]  # ends of flows that ranks avoid: how little waits there says nothing
    unexplained: tuple[Flow, ...]
    blamed: frozenset[Nic]
    tied: frozenset[Nic]  # each of some of these would do


def capacity_evidence(flows: Mapping[Flow, Observation], hosts: int, rails: int) -> tuple[Direction, ...]:
    """Returns bytes a second moved while waiting, the sum of the shares of time, and the largest."""
    moved, together, longest = (np.zeros((2, hosts, rails)) for _ in range(3))
    for (src, dst, rail), (goodput, backlogged, *_) in flows.items():
        share = min(max(backlogged, 0.0), 1.0)
        for nic in _ends(Flow(src, dst, rail)):
            moved[nic] += max(goodput, 0.0) * share
            together[nic] += share
            longest[nic] = max(longest[nic], share)
    return moved, together, longest


def look(flows: Mapping[Flow, Observation], capacity: NDArray[np.float64], full: float = FULL) -> Window:
    """Blames NICs for the flows of a window. `capacity`: bytes a second, hosts x rails; 0: not known yet. `full`: the
    part of it from which on a NIC does what it should.
    """
    hosts, rails = capacity.shape
    moved, together, longest = capacity_evidence(flows, hosts, rails)
    speed = np.divide(moved, capacity, out=np.ones_like(moved), where=capacity > 0)
    at_least = np.divide(speed, np.minimum(together, 1.0), out=np.zeros_like(speed), where=together > 0)
    at_most = np.divide(speed, longest, out=np.zeros_like(speed), where=longest > 0)
    at: dict[tuple[int, int, int], list[Observation]] = {}
    for flow, seen in flows.items():
        for nic in _ends(flow):
            at.setdefault(nic, []).append(seen)

    def explains(nic: tuple[int, int, int], seen: Observation) -> bool:
        # While this flow waited, if all began together: those that waited longer did so all the time.
        meanwhile = sum(other.goodput * min(1.0, other.backlogged / seen.backlogged) for other in at[nic])
        is_full = capacity[nic[1:]] == 0 or meanwhile >= full * capacity[nic[1:]]
        return bool(is_full and seen.goodput >= FAIR * max(other.goodput for other in at[nic]))

    unexplained = tuple(
        flow
        for flow, seen in sorted(flows.items())
        if seen.backlogged >= BUSY and not any(explains(nic, seen) for nic in _ends(flow))
    )
    blamed: set[Nic] = set()
    tied: set[Nic] = set()
    for rail in sorted({flow.rail for flow in unexplained}):
        sure, unsure = cover({(flow.src, flow.dst) for flow in unexplained if flow.rail == rail})
        blamed |= {(host, rail) for host in sure}
        tied |= {(host, rail) for host in unsure}
    avoided = frozenset(nic[1:] for flow, seen in flows.items() if seen.avoided for nic in _ends(flow))
    return Window(longest, at_least, at_most, speed, avoided, unexplained, frozenset(blamed), frozenset(tied))


def _ends(flow: Flow) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    return (0, flow.src, flow.rail), (1, flow.dst, flow.rail)


def cover(pairs: Iterable[tuple[int, int]]) -> tuple[frozenset[int], frozenset[int]]:
    """Returns the hosts that are in every smallest set with an end of each pair, and those that are in only some."""
    edges = sorted({(min(pair), max(pair)) for pair in pairs})
    for size in range(_MOST_EXACT + 1):
        found = set(_covers(edges, size))
        if found:
            sure = frozenset.intersection(*found)
            return sure, frozenset.union(*found) - sure
    return _greedy(edges), frozenset()


def _covers(edges: list[tuple[int, int]], size: int) -> Iterable[frozenset[int]]:
    if not edges:
        yield frozenset()
    elif size > 0:
        for host in edges[0]:
            for rest in _covers([edge for edge in edges if host not in edge], size - 1):
                yield rest | {host}


def _greedy(edges: list[tuple[int, int]]) -> frozenset[int]:
    chosen: set[int] = set()
    while edges:
        ends = [host for edge in edges for host in edge]
        most = max(sorted(set(ends)), key=ends.count)
        chosen.add(most)
        edges = [edge for edge in edges if most not in edge]
    return frozenset(chosen)
