"""What to put into the job's log when the health of NICs has changed.

Per health map a few schedules, one for each collective and class of sizes, usable while the attribute `healing` holds
the map's number; then `healing` itself, so that no rank can see the number without the schedules. 0 is healthy: no
schedule of ours is usable, and the normal ones come back. All that is needed to decide is in the log, so a new leader
goes on where the last one stopped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theseus_py.healing.plan import LARGEST_TABLE, Kind, chunks_for, plan_for, predicted_time
from theseus_py.healing.solve import COLLECTIVES, Collective, NoWay, as_health

Record = dict[str, Any]

HEALTH = "nic_health"  # array, index host * rails + rail
HEALING = "healing"  # the number of the map in use; 0: none
CAPACITY = "nic_capacity"  # bytes a second that NICs were seen to do, where that is learned; 0: not known
MAPS_KEPT = 8
LONGEST_ARGUMENTS = 32768 - len("healed:")
_SMALLEST = 256 << 10  # bytes; below, latency counts and not the NIC
_LARGEST = 1 << 30
_STEPS = 16
_NAME = re.compile(r"heal\.(\d+)\.(\w+)\.(\d+)")


@dataclass(frozen=True)
class GainRule:
    """Heals where a plan is predicted to gain more than `least` of the time, until it gains less than `keep`."""

    least: float = 0.10
    keep: float = 0.05

    def wants(self, worst: float, gain: float, healing: bool) -> bool:
        return gain > (self.keep if healing else self.least)


@dataclass(frozen=True)
class ThetaRule:
    """Heals where the health of a NIC is below `theta` (the paper's rule), until all are above by `margin`."""

    theta: float = 0.5
    margin: float = 0.125

    def wants(self, worst: float, gain: float, healing: bool) -> bool:
        return worst < self.theta + (self.margin if healing else 0.0)


@dataclass(frozen=True)
class Cluster:
    """What the plans are for: communicators over all ranks of the job."""

    hosts: int
    rails: int
    ranks_per_host: int = 1

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_per_host


@dataclass
class Published:
    """What the log holds of all this so far."""

    health: dict[int, float] = field(default_factory=dict)  # index: value, where it is not 1
    healing: int = 0
    capacity: float = 0.0
    maps: dict[int, dict[str, str]] = field(default_factory=dict)  # number: algorithm by schedule name, oldest first
    newest: int = 0
    defined: set[str] = field(default_factory=set)

    def take(self, record: Mapping[str, Any]) -> None:
        """Takes in a record of the log, ours or not."""
        kind, name = record["kind"], str(record["name"])
        if kind == "attribute":
            self.defined.add(name)
        elif kind == "update" and name == HEALTH:
            self.health |= {int(index): float(value) for index, value in record["elements"]}
        elif kind == "update" and name == HEALING:
            self.healing = int(record["elements"][0][1])
        elif kind == "update" and name == CAPACITY:
            self.capacity = float(record["elements"][0][1])
        elif (ours := _NAME.fullmatch(name)) is not None:
            number = int(ours[1])
            if kind == "schedule":
                self.maps.setdefault(number, {})[name] = str(record["algorithm"])
                self.newest = max(self.newest, number)
            elif kind == "removal" and number in self.maps:
                self.maps[number].pop(name, None)
                if not self.maps[number]:
                    del self.maps[number]


def decide(
    published: Published,
    health: Sequence[Sequence[float]] | NDArray[np.float64],
    cluster: Cluster,
    rule: GainRule | ThetaRule | None = None,
    kind: Kind = "unequal",
) -> list[Record]:
    """Returns the records to append, in order, for the health map at hand; none where all is as it should be.

    `published` is left as it is: it takes the records when they come back from the log.
    """
    now = np.floor(as_health(health) * _STEPS + 1e-9) / _STEPS
    if now.shape != (cluster.hosts, cluster.rails):
        raise ValueError(f"the map is of {now.shape[0]} hosts of {now.shape[1]} rails, the cluster is not")
    records = _definitions(published, cluster) + _health_records(published, now)
    schedules = _schedules(now, cluster, rule or GainRule(), kind, published.healing != 0)
    number = _number_for(published, schedules, now)
    if number not in (0, *published.maps):
        records += [_schedule(number, made, cluster) for made in schedules]
    if number != published.healing:
        records.append({"kind": "update", "name": HEALING, "elements": [[0, number]]})
    return records + _removals(published, number)


# A speed that was learned is worth a record if it differs by so much from the one in the log.
_WORTH_A_RECORD = 0.1


def learned(published: Published, usual: float) -> list[Record]:
    """Returns the records that say what NICs can do (bytes a second), where the log does not yet say about the same."""
    if usual <= 0 or abs(usual - published.capacity) <= _WORTH_A_RECORD * usual:
        return []
    return [*_defined(published, [(CAPACITY, 1, 0.0)]), {"kind": "update", "name": CAPACITY, "elements": [[0, usual]]}]


def size_classes() -> list[tuple[int, int, int]]:
    """Returns (from, below, size to plan for) in bytes: classes of powers of 4, joined where their plans are equal."""
    classes: list[tuple[int, int, int]] = []
    size = _SMALLEST
    while size <= _LARGEST:
        if classes and chunks_for("AllReduce", classes[-1][2], 1) == chunks_for("AllReduce", size, 1):
            classes[-1] = (classes[-1][0], size * 4, classes[-1][2])
        else:
            classes.append((size, size * 4, size))
        size *= 4
    classes[-1] = (classes[-1][0], 0, classes[-1][2])
    return classes


@dataclass(frozen=True)
class _Made:
    collective: Collective
    low: int
    below: int
    algorithm: str


def _schedules(
    health: NDArray[np.float64], cluster: Cluster, rule: GainRule | ThetaRule, kind: Kind, healing: bool
) -> list[_Made]:
    """Returns the schedules that the rule wants for this map."""
    worst = float(health.min())
    if worst == 1.0:
        return []
    made: list[_Made] = []
    for collective in COLLECTIVES:
        if collective == "Broadcast" and cluster.hosts**2 * cluster.rails > LARGEST_TABLE:
            continue  # a part for each root would be too long
        for low, below, size in size_classes():
            try:
                best = plan_for(collective, health, size, ranks_per_host=cluster.ranks_per_host, kind=kind)
            except NoWay:
                continue
            # A normal schedule spreads evenly and so waits for the worst NIC.
            gain = 1 - best.predicted * worst
            if rule.wants(worst, gain, healing) and len(best.arguments) <= LONGEST_ARGUMENTS:
                made.append(_Made(collective, low, below, best.algorithm))
    return made


def _number_for(published: Published, schedules: Sequence[_Made], health: NDArray[np.float64]) -> int:
    """Returns the map to use: 0, the one in use while good enough, a known one of the same plans, or a new one."""
    if not schedules:
        return 0
    wanted = sorted(made.algorithm for made in schedules)
    current = published.maps.get(published.healing)
    if current is not None and _is_good_enough(current, schedules, health):
        return published.healing
    for number, algorithms in published.maps.items():
        if sorted(algorithms.values()) == wanted:
            return number
    return published.newest + 1


# How much longer than a fresh plan the one in use may take: a new plan is a switch, and the map is coarse anyway.
_TOLERANCE = 0.03


def _is_good_enough(current: Mapping[str, str], schedules: Sequence[_Made], health: NDArray[np.float64]) -> bool:
    fresh = {f"{made.collective}.{made.low}": made for made in schedules}
    if fresh.keys() != {name.split(".", 2)[2] for name in current}:
        return False
    for name, algorithm in current.items():
        made = fresh[name.split(".", 2)[2]]
        best = predicted_time(made.collective, made.algorithm, health)
        if predicted_time(made.collective, algorithm, health) > (1 + _TOLERANCE) * best:
            return False
    return True


def _schedule(number: int, made: _Made, cluster: Cluster) -> Record:
    usable = f"{HEALING} == {number} and bytes >= {made.low}"
    if made.below:
        usable += f" and bytes < {made.below}"
    usable += f" and ranks == {cluster.ranks} and hosts == {cluster.hosts}"
    return {
        "kind": "schedule",
        "name": f"heal.{number}.{made.collective}.{made.low}",
        "collective": made.collective,
        "root": -1,
        "algorithm": made.algorithm,
        "usable": usable,
        "score": "0",
        "replaces": "",
    }


def _definitions(published: Published, cluster: Cluster) -> list[Record]:
    return _defined(published, [(HEALTH, cluster.hosts * cluster.rails, 1.0), (HEALING, 1, 0.0)])


def _defined(published: Published, wanted: Iterable[tuple[str, int, float]]) -> list[Record]:
    return [
        {"kind": "attribute", "name": name, "hook": "exogenous", "length": length, "initial": initial}
        for name, length, initial in wanted
        if name not in published.defined
    ]


def _health_records(published: Published, health: NDArray[np.float64]) -> list[Record]:
    changed = [
        [index, float(value)]
        for index, value in enumerate(health.ravel())
        if published.health.get(index, 1.0) != float(value)
    ]
    return [{"kind": "update", "name": HEALTH, "elements": changed}] if changed else []


def _removals(published: Published, number: int) -> list[Record]:
    """Retires all but the newest maps, and never the one in use."""
    numbers = sorted({*published.maps, number} - {0})
    kept = {*numbers[-MAPS_KEPT:], number, published.healing}
    names: Iterable[str] = (
        name for each in numbers if each not in kept for name in sorted(published.maps.get(each, {}))
    )
    return [{"kind": "removal", "name": name} for name in names]
