"""Which ranks share a host, and how many rails (NICs) join the hosts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_SHAPE = re.compile(r"(\d{1,6})x(\d{1,6})(?:x(\d{1,4}))?")
_MOST_RANKS = 1 << 15


@dataclass(frozen=True)
class Topology:
    """`host_of_rank[r]` is the host of rank r (any numbers; equal ones share a host); each host has `rails` rails."""

    host_of_rank: tuple[int, ...]
    rails: int = 1

    def __post_init__(self) -> None:
        if not 1 <= len(self.host_of_rank) <= _MOST_RANKS:
            raise ValueError(f"a topology has 1 to {_MOST_RANKS} ranks, not {len(self.host_of_rank)}")
        if not 1 <= self.rails < 1 << 15:
            raise ValueError(f"a host has 1 to 32767 rails, not {self.rails}")

    @classmethod
    def uniform(cls, hosts: int, gpus: int, rails: int = 1) -> Topology:
        """Return `hosts` hosts of `gpus` consecutive ranks each."""
        if hosts < 1 or gpus < 1 or hosts * gpus > _MOST_RANKS:
            raise ValueError(f"{hosts} hosts of {gpus} ranks: 1 to {_MOST_RANKS} ranks in all are possible")
        return cls(tuple(rank // gpus for rank in range(hosts * gpus)), rails)

    @classmethod
    def parse(cls, text: str, rails: int = 1) -> Topology:
        """Return the topology that `2x8` (hosts x ranks a host) or `2x8x4` (and rails) names."""
        found = _SHAPE.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"'{text}' is no topology; 2x8 is two hosts of eight ranks, 2x8x4 with four rails each")
        return cls.uniform(int(found[1]), int(found[2]), int(found[3] or rails))

    @property
    def ranks(self) -> int:
        return len(self.host_of_rank)

    @property
    def hosts(self) -> int:
        return len(set(self.host_of_rank))

    def ranks_by_host(self) -> list[list[int]]:
        """Return the ranks of each host in increasing order; hosts in order of their first rank."""
        hosts: dict[int, list[int]] = {}
        for rank, host in enumerate(self.host_of_rank):
            hosts.setdefault(host, []).append(rank)
        return list(hosts.values())

    def to_dict(self) -> dict[str, Any]:
        return {"host_of_rank": list(self.host_of_rank), "rails": self.rails}

    def __str__(self) -> str:
        sizes = {len(ranks) for ranks in self.ranks_by_host()}
        shape = f"{self.hosts}x{sizes.pop()}" if len(sizes) == 1 else f"{self.ranks} ranks on {self.hosts} hosts"
        return f"{shape}, {self.rails} rail{'s' if self.rails > 1 else ''}"


def topology_of(topology: Topology | str | Sequence[int], ranks: int) -> Topology:
    """Return `topology`, which may be written as `2x8` or as the hosts of the ranks, for an algorithm of `ranks`."""
    if isinstance(topology, str):
        topology = Topology.parse(topology)
    elif not isinstance(topology, Topology):
        topology = Topology(tuple(int(host) for host in topology))
    if topology.ranks != ranks:
        raise ValueError(f"the topology has {topology.ranks} ranks, the algorithm {ranks}")
    return topology
