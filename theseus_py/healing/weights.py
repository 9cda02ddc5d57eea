"""Quotas of large clusters as weights of NICs: a table for each pair of hosts would be too long for the log.

A flow from host i to host j spreads over the rails in proportion to out[i, r] * in[j, r]. Weights with which every NIC
carries what a split wants of it exist wherever the split uses all rails that both ends have; whole messages are then
worked out by the generator, with integers alone, and here in the same way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from theseus_py.healing.rounding import Counts

LARGEST = 4095
_UNIT = 1 << 14  # of a message, in csrc/compiler/healed_arguments.cc
_ROUNDS = 300


def fit(flows: NDArray[np.float64], capacity: NDArray[np.float64]) -> tuple[Counts, Counts]:
    """Returns weights out and in, hosts x rails, under which NICs carry about what `flows[i, j, r]` says."""
    amounts = flows.sum(axis=2)
    wanted_out, wanted_in = flows.sum(axis=1), flows.sum(axis=0)
    out = np.where(wanted_out > 0, capacity, 0.0)
    incoming = np.where(wanted_in > 0, capacity, 0.0)
    for _ in range(_ROUNDS):
        for weights, wanted, axis in ((out, wanted_out, 1), (incoming, wanted_in, 0)):
            joint = out[:, None, :] * incoming[None, :, :]
            sums = joint.sum(axis=2)
            spread = joint * (amounts / np.where(sums > 0, sums, 1.0))[:, :, None]
            carried = spread.sum(axis=axis)
            weights *= np.where(carried > 0, wanted / np.where(carried > 0, carried, 1.0), 1.0)
            largest = weights.max(axis=1, keepdims=True)
            weights /= np.where(largest > 0, largest, 1.0)
    return _whole(out), _whole(incoming)


def _whole(weights: NDArray[np.float64]) -> Counts:
    whole: Counts = np.rint(weights * LARGEST).astype(np.int64)
    return np.where((weights > 0) & (whole == 0), 1, whole)


def quotas_of(out: Counts, incoming: Counts, messages: Counts) -> Counts:
    """Returns the quotas that the generator makes of weights: integers alone, so that both come to the same."""
    hosts, rails = out.shape
    quotas = np.zeros((hosts, hosts, rails), dtype=np.int64)
    owed_out = [[0] * rails for _ in range(hosts)]
    owed_in = [[0] * rails for _ in range(hosts)]
    for i in range(hosts):
        for j in range(hosts):
            if i == j or messages[i, j] == 0:
                continue
            joint = [int(a) * int(b) for a, b in zip(out[i], incoming[j], strict=True)]
            if not any(joint):
                raise ValueError(f"no rail has a weight from host {i} to host {j}")
            quotas[i, j] = _pair(joint, int(messages[i, j]), owed_out[i], owed_in[j], i + j)
    return quotas


def _pair(joint: list[int], messages: int, owed_out: list[int], owed_in: list[int], turn: int) -> list[int]:
    rails, total = len(joint), sum(joint)
    ideal = [messages * _UNIT * weight // total for weight in joint]
    counts = [value // _UNIT for value in ideal]
    order = sorted(
        (r for r in range(rails) if ideal[r] > 0),
        key=lambda r: (-(ideal[r] % _UNIT + owed_out[r] + owed_in[r]), (r + turn) % rails),
    )
    for n in range(messages - sum(counts)):
        counts[order[n % len(order)]] += 1
    for r in range(rails):
        left = ideal[r] - counts[r] * _UNIT
        owed_out[r] += left
        owed_in[r] += left
    return counts
