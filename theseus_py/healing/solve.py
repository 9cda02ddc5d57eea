"""The best split of a collective's traffic over the NICs of its hosts: a linear program, then the point of its optimum
that is nearest to a split in proportion to capacity.

Unit of data: the whole of it. Unit of time: what a healthy NIC takes for the whole. Hosts whose NICs are alike are
interchangeable, so the program has variables for classes of hosts, not for hosts: its size depends on how many hosts
are sick, not on how many there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from theseus_py.healing.highs import Program, Terms, Unsolved, Vector

Collective = Literal["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "AllToAll"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
# By host and rail: what is left of a NIC's capacity, 0 (dead) to 1, the same in both directions.
Health = Sequence[Sequence[float]] | NDArray[np.float64]

# Of the optimum: room for the second program, within what rounding to whole messages costs anyway.
_SLACK = 1e-4
# Moving a share from its even value is as bad as moving this much of a flow from its proportional one.
_SHARE_CURVATURE = 1e-2


class NoWay(ValueError):
    """Two hosts that must exchange data have no rail in common."""


@dataclass(frozen=True)
class Split:
    """`shares[h]`: what host h owns (AllReduce, Broadcast; even else). `flows[i, j, r]`: what i sends to j over r."""

    shares: Vector
    flows: NDArray[np.float64]
    time: float


def as_health(health: Health) -> NDArray[np.float64]:
    """Returns the map as an array of hosts x rails. Raises ValueError where it is none."""
    array = np.array(health, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] < 2 or array.shape[1] < 1:
        raise ValueError(
            f"a health map has a row for each of 2 or more hosts, a column for each rail, not {array.shape}"
        )
    if not ((array >= 0) & (array <= 1)).all():
        raise ValueError("health is a number from 0 (dead) to 1 for each NIC")
    return array


def healthy_time(collective: Collective, hosts: int, rails: int) -> float:
    """Returns the time that the collective takes where all NICs are healthy."""
    data = {"AllReduce": 2 * (hosts - 1) / hosts, "Broadcast": 1.0}.get(collective, (hosts - 1) / hosts)
    return data / rails


def solve(collective: Collective, health: Health, root_host: int = 0, *, even: bool = False) -> Split:
    """Returns the split that takes the least time. `root_host` matters for Broadcast; `even` forces equal shares.

    Raises NoWay.
    """
    capacity = as_health(health)
    classes = _Classes(capacity, root_host if collective == "Broadcast" else None)
    model = _Model(collective, classes, even)
    try:
        best = model.solve()
    except Unsolved as error:
        raise NoWay(f"{collective}: some hosts have no healthy rail in common") from error
    return classes.expand(*model.nearest_to_proportional(best))


class _Classes:
    """Hosts by the state of their NICs; the root of a Broadcast is a class of its own."""

    def __init__(self, capacity: NDArray[np.float64], root_host: int | None) -> None:
        keys = [(host == root_host, *row) for host, row in enumerate(capacity)]
        order = {key: index for index, key in enumerate(dict.fromkeys(keys))}
        self.of_host = np.array([order[key] for key in keys])
        self.sizes = np.bincount(self.of_host)
        self.capacity = np.array([key[1:] for key in order], dtype=np.float64)
        self.root = None if root_host is None else int(self.of_host[root_host])
        self.hosts, self.rails = capacity.shape

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Returns the classes that exchange data; a class of one has nobody to exchange with inside it."""
        count = len(self.sizes)
        return [(a, b) for a in range(count) for b in range(count) if a != b or self.sizes[a] > 1]

    def partners(self, a: int, b: int) -> int:
        """Returns how many hosts of class b a host of class a exchanges with."""
        return int(self.sizes[b]) - (a == b)

    def expand(self, shares: Vector, flows: dict[tuple[int, int], Vector], time: float) -> Split:
        whole = np.zeros((self.hosts, self.hosts, self.rails))
        for i in range(self.hosts):
            for j in range(self.hosts):
                if i != j:
                    whole[i, j] = flows[int(self.of_host[i]), int(self.of_host[j])]
        return Split(shares[self.of_host], whole, time)


class _Model:
    """The program: minimise T with, for each pair of hosts, rails that carry its messages together, and no NIC beyond
    T times its capacity.
    """

    def __init__(self, collective: Collective, classes: _Classes, even: bool) -> None:
        self.classes = classes
        self.program = Program()
        self._messages: dict[tuple[int, int], Terms] = {}
        self._time = self.program.variable(cost=1.0)
        hosts = classes.hosts
        owns = collective in ("AllReduce", "Broadcast") and not even
        bounds = (0.0, 1.0) if owns else (1.0 / hosts, 1.0 / hosts)
        self._shares = [self.program.variable(*bounds) for _ in classes.sizes]
        self.program.row([(w, float(size)) for w, size in zip(self._shares, classes.sizes, strict=True)], 1.0, 1.0)
        self._flows = {
            pair: [self.program.variable(upper=np.inf if both > 0 else 0.0) for both in self._joint(*pair)]
            for pair in classes.pairs
        }
        for pair, flow in self._flows.items():
            self._messages[pair] = self._terms(collective, *pair)
            self.program.row([(f, 1.0) for f in flow] + [(w, -c) for w, c in self._messages[pair]], 0.0, 0.0)
        self._limit_nics()

    def _joint(self, a: int, b: int) -> Vector:
        """Returns, rail by rail, a weight that vanishes where either NIC is dead."""
        product: Vector = self.classes.capacity[a] * self.classes.capacity[b]
        return product

    def _terms(self, collective: Collective, a: int, b: int) -> Terms:
        """Returns what a host of class a sends to one of class b, in terms of shares."""
        root = self.classes.root
        if collective == "AllReduce":
            return [(self._shares[a], 1.0), (self._shares[b], 1.0)]
        if collective == "Broadcast":
            if b == root:
                return []
            return [(self._shares[a], 1.0)] + ([(self._shares[b], 1.0)] if a == root else [])
        return [(self._shares[a], 1.0)]

    def _limit_nics(self) -> None:
        classes = self.classes
        for c in range(len(classes.sizes)):
            for r in range(classes.rails):
                limit = (self._time, -float(classes.capacity[c, r]))
                for outgoing in (True, False):
                    terms = [
                        (flow[r], float(classes.partners(c, b if outgoing else a)))
                        for (a, b), flow in self._flows.items()
                        if c == (a if outgoing else b)
                    ]
                    self.program.row([*terms, limit], -np.inf, 0.0)

    def solve(self) -> Vector:
        return self.program.solve()

    def nearest_to_proportional(self, best: Vector) -> tuple[Vector, dict[tuple[int, int], Vector], float]:
        """Returns shares, flows and time of the optimal point that deviates least, in squares, from a split of every
        pair's traffic in proportion to what its NICs have left.
        """
        program, classes = self.program, self.classes
        time = float(best[self._time])
        program.bound(self._time, 0.0, time * (1 + _SLACK))
        program.cost[self._time] = 0.0
        for (a, b), flow in self._flows.items():
            joint = self._joint(a, b)
            wanted = joint / joint.sum() if joint.sum() > 0 else joint
            pairs = float(classes.sizes[a] * classes.partners(a, b))
            for r, f in enumerate(flow):
                deviation = program.variable(lower=-np.inf, curvature=pairs)
                share = [(w, -c * float(wanted[r])) for w, c in self._messages[a, b]]
                program.row([(f, 1.0), *share, (deviation, -1.0)], 0.0, 0.0)
        for w, size in zip(self._shares, classes.sizes, strict=True):
            deviation = program.variable(lower=-np.inf, curvature=_SHARE_CURVATURE * float(size))
            program.row([(w, 1.0), (deviation, -1.0)], 1 / classes.hosts, 1 / classes.hosts)
        with contextlib.suppress(Unsolved):  # the vertex is optimal too, only less even
            best = program.solve()
        shares = best[self._shares]
        return shares, {pair: np.maximum(best[flow], 0.0) for pair, flow in self._flows.items()}, time
