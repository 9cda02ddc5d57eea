"""From a split to whole messages: shares in chunks, and quotas for each pair of hosts and rail.

What a NIC should carry is kept as closely as whole messages allow: first pair by pair with the remainders carried
along, then by moving single messages off the NIC that would be done last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theseus_py.healing.highs import Vector

Counts = NDArray[np.int64]
# Moves in the local search: enough for every NIC to be the last one a few times.
_MOVES_PER_NIC = 8


def largest_remainder(values: Vector, total: int) -> Counts:
    """Returns whole numbers in proportion to `values` whose sum is `total`; the earlier of equals gets more."""
    exact = values / values.sum() * total
    whole: Counts = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(-(exact - whole), kind="stable")
    whole[order[: total - int(whole.sum())]] += 1
    return whole


@dataclass
class _Quotas:
    """`counts[i, j, r]` messages, and what that loads on each NIC in each direction."""

    counts: Counts
    capacity: NDArray[np.float64]

    def __post_init__(self) -> None:
        self.out = self.counts.sum(axis=1)
        self.incoming = self.counts.sum(axis=0)

    def move(self, i: int, j: int, rail: int, to: int) -> None:
        for r, step in ((rail, -1), (to, 1)):
            self.counts[i, j, r] += step
            self.out[i, r] += step
            self.incoming[j, r] += step


def last_nic(loads: NDArray[Any], capacity: NDArray[np.float64]) -> float:
    """Returns when the last NIC is done with `loads[i, j, r]`; a healthy one takes 1 for a load of 1."""
    both = (_relative(loads.sum(axis=1), capacity), _relative(loads.sum(axis=0), capacity))
    return float(max(done.max() for done in both))


def _relative(load: NDArray[Any], capacity: NDArray[np.float64]) -> NDArray[np.float64]:
    done = np.full(load.shape, np.inf)
    np.divide(load, capacity, out=done, where=capacity > 0)
    done[load == 0] = 0.0
    return done


def round_quotas(flows: NDArray[np.float64], messages: Counts, capacity: NDArray[np.float64]) -> Counts:
    """Returns quotas near `flows` with `messages[i, j]` for each pair, none on a NIC without capacity."""
    hosts, _, rails = flows.shape
    counts = np.zeros((hosts, hosts, rails), dtype=np.int64)
    carried_out = np.zeros((hosts, rails))
    carried_in = np.zeros((hosts, rails))
    for i in range(hosts):
        for j in range(hosts):
            total = int(messages[i, j])
            if total == 0:
                continue
            usable = (capacity[i] > 0) & (capacity[j] > 0)
            flow = np.where(usable, flows[i, j], 0.0)
            exact = flow / flow.sum() * total if flow.sum() > 0 else usable / usable.sum() * total
            counts[i, j] = np.floor(exact + 1e-9)
            owed = exact - counts[i, j] + carried_out[i] + carried_in[j]
            # A message too many costs a slow NIC more.
            owed *= np.minimum(capacity[i], capacity[j])
            order = np.argsort(np.where(usable, -owed, np.inf), kind="stable")
            counts[i, j, order[: total - int(counts[i, j].sum())]] += 1
            carried_out[i] += exact - counts[i, j]
            carried_in[j] += exact - counts[i, j]
    quotas = _Quotas(counts, capacity)
    _improve(quotas)
    return quotas.counts


def _improve(quotas: _Quotas) -> None:
    """Moves messages off the NIC that is done last, while another rail of the same pair can take them earlier."""
    for _ in range(_MOVES_PER_NIC * quotas.capacity.size):
        out, incoming = _relative(quotas.out, quotas.capacity), _relative(quotas.incoming, quotas.capacity)
        last = max(out.max(), incoming.max())
        moved = False
        for outgoing, done in ((True, out), (False, incoming)):
            host, rail = np.unravel_index(int(done.argmax()), done.shape)
            if done[host, rail] == last and not moved:
                moved = _relieve(quotas, int(host), int(rail), outgoing, float(last))
        if not moved:
            return


def _relieve(quotas: _Quotas, host: int, rail: int, outgoing: bool, last: float) -> bool:
    """Moves the message whose new place is done first; False where none would be done before `last`."""
    counts = quotas.counts[host] if outgoing else quotas.counts[:, host]
    own = quotas.out if outgoing else quotas.incoming
    other = quotas.incoming if outgoing else quotas.out
    here = _relative(own[host] + 1, quotas.capacity[host])
    there = _relative(other + 1, quotas.capacity)
    done = np.maximum(here[None, :], there)
    done[counts[:, rail] == 0] = np.inf
    done[:, rail] = np.inf
    peer, to = np.unravel_index(int(done.argmin()), done.shape)
    if not done[peer, to] < last:
        return False
    pair = (host, int(peer)) if outgoing else (int(peer), host)
    quotas.move(*pair, rail, int(to))
    return True
