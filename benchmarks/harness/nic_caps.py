"""Which NICs are slow, and how fast a collective could be then, whatever the schedule. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")
FRACTIONS = (1.0, 0.8, 0.6, 0.5, 0.4, 0.2, 0.1, 0.0)
# A frame carries 1448 bytes of data and takes 1514 of a NIC's rate.
GOODPUT = 1448 / 1514


@dataclass(frozen=True)
class Cap:
    """One NIC at a fraction of its speed, both directions."""

    host: int
    nic: int
    fraction: float


@dataclass(frozen=True)
class Scenario:
    """What is slow. `recovering`: what was slow before, so that an adapted job has something to undo."""

    name: str
    caps: tuple[Cap, ...]
    recovering: tuple[Cap, ...] = ()

    @property
    def single(self) -> float | None:
        """The fraction, where one NIC is slow, or none (1)."""
        if self.recovering:
            return None
        if not self.caps:
            return 1.0
        return self.caps[0].fraction if len(self.caps) == 1 else None

    def target(self, collective: str) -> float | None:
        """Returns how much above the floor an adapted collective may be; None where nothing was set."""
        if self.single is None:
            return 1.1
        return None if not self.caps or (collective == "all_reduce" and self.single > 0.5) else 1.05


HEALTHY = Scenario("healthy", ())


def scenarios(fractions: Sequence[float], more: bool) -> list[Scenario]:
    """One NIC at each of `fractions`, the healthy first, and with `more` several slow ones. The slow NIC is not one of
    rank 0's host.
    """
    made = [HEALTHY]
    for fraction in fractions:
        if fraction < 1:
            made.append(Scenario(f"1 NIC at {fraction:g}", (Cap(1, 2, fraction),)))
    if more:
        for fraction in (0.1, 0.0):
            two_hosts = (Cap(1, 2, fraction), Cap(3, 1, fraction))
            one_host = (Cap(1, 1, fraction), Cap(1, 2, fraction))
            made.append(Scenario(f"2 NICs of 2 hosts at {fraction:g}", two_hosts))
            made.append(Scenario(f"2 NICs of 1 host at {fraction:g}", one_host))
        made.append(Scenario("recovered from 0.1", (), recovering=(Cap(1, 2, 0.1),)))
    return made


def capacities(hosts: int, nics: int, caps: Sequence[Cap]) -> np.ndarray:
    """Returns by host and NIC what is left of its speed."""
    left = np.ones((hosts, nics))
    for cap in caps:
        left[cap.host, cap.nic] = cap.fraction
    return left


def floor(collective: str, hosts: int, nics: int, caps: Sequence[Cap]) -> float:
    """Returns the least time of a collective over that of the healthy cluster.

    AllReduce: the best direct exchange with unequal shares and free rails. AllGather and ReduceScatter: every host
    must receive, or send, what all others hold, so its remaining share of its NICs bounds them.
    """
    left = capacities(hosts, nics, caps)
    if collective == "all_reduce":
        return _exchange(left) / _exchange(np.ones_like(left))
    return float(nics / left.sum(axis=1).min())


def _exchange(left: np.ndarray) -> float:
    """Least T such that hosts i and j exchange w_i + w_j each way over rails that have left[i, r] * T to give.

    Variables: w (a share for each host, of sum 1), f (for each ordered pair and rail), T.
    """
    hosts, nics = left.shape
    pairs = [(i, j) for i in range(hosts) for j in range(hosts) if i != j]
    size = hosts + len(pairs) * nics + 1
    equal, equal_to, most, most_to = [], [], [], []
    row = np.zeros(size)
    row[:hosts] = 1
    equal.append(row)
    equal_to.append(1.0)
    sums = {(end, host, nic): np.zeros(size) for end in (0, 1) for host in range(hosts) for nic in range(nics)}
    for number, pair in enumerate(pairs):
        row = np.zeros(size)
        row[hosts + number * nics : hosts + (number + 1) * nics] = 1
        row[list(pair)] -= 1
        equal.append(row)
        equal_to.append(0.0)
        for nic in range(nics):
            for end, host in enumerate(pair):
                sums[end, host, nic][hosts + number * nics + nic] = 1
    for (_, host, nic), row in sums.items():
        row[-1] = -left[host, nic]
        most.append(row)
        most_to.append(0.0)
    cost = np.zeros(size)
    cost[-1] = 1
    found = linprog(cost, A_ub=np.array(most), b_ub=most_to, A_eq=np.array(equal), b_eq=equal_to)
    if not found.success:
        raise ValueError(f"there is no schedule for these caps: {found.message}")
    return float(found.fun)


def allowed_seconds(collective: str, size: int, hosts: int, nics: int, rate: float) -> float:
    """Returns the time that healthy NICs of `rate` bit/s need for a collective of `size` bytes."""
    remote = (hosts - 1) / hosts
    factor = 2 * remote if collective == "all_reduce" else remote
    return factor * size / (nics * rate / 8 * GOODPUT)
