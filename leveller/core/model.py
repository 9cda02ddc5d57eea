"""What a policy sees of a cluster, and what it gives back."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

__all__ = ["ClusterView", "FiveTuple", "Flow", "FlowId", "JobView", "LevelPolicy", "Levels"]

#: Names a flow: a FiveTuple on real networks, anything in simulations.
FlowId = Hashable


class FiveTuple(NamedTuple):
    """One direction of a connection, as its packets say it. Addresses as text, protocol "tcp" or "udp"."""

    protocol: str
    source: str
    source_port: int
    destination: str
    destination_port: int

    @property
    def reverse(self) -> FiveTuple:
        """The other direction of the same connection."""
        return FiveTuple(self.protocol, self.destination, self.destination_port, self.source, self.source_port)


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow of a job, and the directed links that it crosses, by name. A path that is not known is empty."""

    id: FlowId
    job: str
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobView:
    """What is known of a job.

    rate: R, normalized progress (paper section 3.1); None as long as it cannot be told
    weight: a job of weight 2 is to have twice the progress of one of weight 1
    ideal: seconds of an iteration alone on the network; None as long as it is not measured
    compute, communicate: seconds of an iteration that the job computes, and that its links work for it when it is
        alone; None where not known. What baselines ask for
    gpus: how many the job holds; what Crux weighs by
    profiling: it is to run alone at the top now, for its ideal time to be measured
    """

    id: str
    rate: float | None = None
    weight: float = 1.0
    ideal: float | None = None
    compute: float | None = None
    communicate: float | None = None
    gpus: int = 1
    profiling: bool = False


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster at one moment, `now` in seconds of any clock."""

    now: float
    jobs: Mapping[str, JobView]
    flows: Sequence[Flow]


@dataclass(frozen=True, slots=True)
class Levels:
    """A level for each flow of the view, 0 (served last) to `count` - 1 (served first); reasons, for people, by job."""

    count: int
    of: Mapping[FlowId, int]
    reasons: Mapping[str, str] = field(default_factory=dict)


class LevelPolicy(Protocol):
    """Gives levels. One object serves one cluster and may remember; equal histories give equal levels."""

    @property
    def name(self) -> str:
        """What tables and commands call it."""
        ...

    def levels(self, view: ClusterView) -> Levels:
        """Returns a level for every flow of `view`."""
        ...
