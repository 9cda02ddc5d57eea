"""What no schedule can beat: bounds on the time of a collective under a health map, relative to healthy.

With n hosts, R rails and b_h what is left of host h's bandwidth: every reduction or copy of the whole moves a least
amount of data over all NICs together, and over every cut between hosts. Rails are apart, so what a cut lets through is,
rail by rail, the less of what both sides have.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from theseus_py.healing.solve import Collective, Health, as_health, healthy_time

# All cuts of so many hosts are looked at; of more, those that part one or two hosts from the rest.
_MOST_HOSTS_FOR_ALL_CUTS = 10


def floor(collective: Collective, health: Health, root_host: int = 0) -> float:
    """Returns the least possible time, as a multiple of healthy; infinite where hosts are cut off from each other.

    For AllReduce max(n / sum b, n / (2 (n - 1) min b), rail cuts), for AllGather, ReduceScatter and AllToAll 1 / min b
    or a rail cut. `root_host` matters for Broadcast.
    """
    capacity = as_health(health)
    hosts, rails = capacity.shape
    least = _by_all_nics(collective, capacity)
    for side in _cuts(hosts):
        least = max(least, _by_cut(collective, capacity, side, root_host))
    return max(1.0, least / healthy_time(collective, hosts, rails))


def _by_all_nics(collective: Collective, capacity: NDArray[np.float64]) -> float:
    hosts = len(capacity)
    data = {"AllReduce": 2.0 * (hosts - 1)}.get(collective, hosts - 1.0)
    return _over(data, float(capacity.sum()))


def _by_cut(collective: Collective, capacity: NDArray[np.float64], side: NDArray[np.bool_], root_host: int) -> float:
    """Returns the time that the busier direction of the cut takes."""
    through = float(np.minimum(capacity[side].sum(axis=0), capacity[~side].sum(axis=0)).sum())
    hosts, inside = len(capacity), int(side.sum())
    outside = hosts - inside
    data = {
        "AllReduce": 1.0,
        "Broadcast": 1.0,
        "AllToAll": inside * outside / hosts,
    }.get(collective, max(inside, outside) / hosts)
    return _over(data, through)


def _over(data: float, rate: float) -> float:
    return data / rate if rate > 0 else np.inf


def _cuts(hosts: int) -> Iterator[NDArray[np.bool_]]:
    largest = hosts // 2 if hosts <= _MOST_HOSTS_FOR_ALL_CUTS else 2
    for size in range(1, largest + 1):
        for chosen in combinations(range(hosts), size):
            side = np.zeros(hosts, dtype=np.bool_)
            side[list(chosen)] = True
            yield side
