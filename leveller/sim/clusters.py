"""Clusters made by chance, in the shape of the trace that Crux released: many jobs, most of them small, some contended.

At its peak the trace has more than 30 jobs at once, and 36 % of its jobs share a link with another one (paper section
2).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leveller.sim.jobs import Job, Phase, Transfer

__all__ = ["Cluster", "generate"]

_GPUS_A_HOST = 8
_HOSTS_A_LEAF = 16
#: GPUs of a job and how often: most are small, and the large ones hold most GPUs.
_SIZES = ((8, 30), (16, 30), (32, 20), (64, 14), (128, 6))
_LINK = 12.5e9  # bytes a second of a host's NICs together
#: Of the hosts of a leaf and its spines: a fabric without oversubscription has 1.
_OVERSUBSCRIPTION = 2


@dataclass(frozen=True)
class Cluster:
    """Links with their capacities in bytes a second, and the jobs that run at one time."""

    gpus: int
    capacities: Mapping[str, float]
    jobs: Sequence[Job]

    def contended(self) -> float:
        """Returns the share of the jobs that share a link with another one, from 0 to 1."""
        on_link: dict[str, set[str]] = {}
        for job in self.jobs:
            for path in job.paths():
                for link in path:
                    on_link.setdefault(link, set()).add(job.id)
        met = {job for jobs in on_link.values() if len(jobs) > 1 for job in jobs}
        return len(met) / len(self.jobs)


def generate(seed: int, gpus: int = 1024, jobs: int | None = None) -> Cluster:
    """Returns a cluster of two tiers, with jobs placed as they come.

    A job's hosts form a ring (AllReduce by rings); who fits into a host sends nothing. `jobs`: how many, at most as
    many as find room; by default the trace's peak, grown with the cluster. Iterations of 0.2 to 4 s, of which between a
    tenth and six tenths are communication.
    """
    chance = random.Random(seed)
    hosts = max(2, gpus // _GPUS_A_HOST)
    leaves = max(2, -(-hosts // _HOSTS_A_LEAF))
    spines = max(1, min(hosts, _HOSTS_A_LEAF) // _OVERSUBSCRIPTION)
    wanted = jobs if jobs is not None else 36 * gpus // 1024
    free = set(range(hosts))
    made: list[Job] = []
    for number in range(wanted):
        size = chance.choices([each for each, _ in _SIZES], [often for _, often in _SIZES])[0]
        place = _place(chance, free, size // _GPUS_A_HOST)
        if place is None:
            continue
        free -= set(place)
        made.append(_job(chance, f"job{number:03}", size, place, spines))
    capacities = {f"host{host}{way}": _LINK for host in range(hosts) for way in "<>"}
    for leaf in range(leaves):
        for spine in range(spines):
            capacities[f"leaf{leaf}>spine{spine}"] = capacities[f"spine{spine}>leaf{leaf}"] = _LINK
    return Cluster(gpus, capacities, made)


def _place(chance: random.Random, free: set[int], count: int) -> list[int] | None:
    """One leaf if one has room, in half of the cases: schedulers try, and fragmentation defeats them."""
    if len(free) < count:
        return None
    by_leaf: dict[int, list[int]] = {}
    for host in sorted(free):
        by_leaf.setdefault(host // _HOSTS_A_LEAF, []).append(host)
    roomy = [each for each in by_leaf.values() if len(each) >= count]
    if roomy and chance.random() < 0.48:
        return min(roomy, key=len)[:count]
    return chance.sample(sorted(free), count)


def _job(chance: random.Random, name: str, size: int, place: list[int], spines: int) -> Job:
    period = chance.uniform(0.2, 4.0)
    share = chance.uniform(0.1, 0.6)
    if len(place) == 1:
        return Job(name, [Phase(period)], gpus=size)
    volume = period * share * _LINK
    transfers = {
        _path(one, other, chance.randrange(spines)): volume
        for one, other in zip(place, place[1:] + place[:1], strict=True)
    }
    phase = Phase(period * (1 - share), tuple(Transfer(path, each) for path, each in transfers.items()))
    return Job(name, [phase], start=0.0, gpus=size)


def _path(source: int, target: int, spine: int) -> tuple[str, ...]:
    near, far = source // _HOSTS_A_LEAF, target // _HOSTS_A_LEAF
    ends = f"host{source}>", f"host{target}<"
    if near == far:
        return ends
    return ends[0], f"leaf{near}>spine{spine}", f"spine{spine}>leaf{far}", ends[1]
