"""Training jobs as the simulation knows them: cycles of computing and communicating."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Job", "Phase", "Transfer"]


@dataclass(frozen=True)
class Transfer:
    """Bytes over directed links, by name. One path of a job is one flow, in whatever phases it is used."""

    path: tuple[str, ...]
    size: float

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("a transfer crosses at least one link: leave out those inside a host")
        if not self.size > 0:
            raise ValueError(f"a transfer moves more than 0 bytes, not {self.size:g}")


@dataclass(frozen=True)
class Phase:
    """Computes for `compute` seconds; then all `transfers` at once, with `beside` seconds of computing next to them.

    The next phase begins when both are done. So `beside` is what hides communication, as a backward pass does.
    """

    compute: float = 0.0
    transfers: tuple[Transfer, ...] = ()
    beside: float = 0.0

    def __post_init__(self) -> None:
        if self.compute < 0 or self.beside < 0:
            raise ValueError("a phase computes for at least 0 seconds")
        paths = [each.path for each in self.transfers]
        if len(set(paths)) < len(paths):
            raise ValueError("two transfers of a phase have one path: make them one")

    def alone(self, capacities: Mapping[str, float]) -> float:
        """Returns the seconds that the transfers take without other jobs: the busiest link decides.

        Exact where the job's own flows get in each other's way on one link at most; else what they take at least.
        """
        load: dict[str, float] = {}
        for each in self.transfers:
            for link in each.path:
                load[link] = load.get(link, 0.0) + each.size / capacities[link]
        return max(load.values(), default=0.0)


@dataclass(frozen=True)
class Job:
    """A job that repeats its phases from `start` on, `iterations` times or for ever."""

    id: str
    phases: Sequence[Phase]
    start: float = 0.0
    iterations: int | None = None
    weight: float = 1.0
    gpus: int = 1

    def __post_init__(self) -> None:
        if not any(phase.compute + phase.beside > 0 or phase.transfers for phase in self.phases):
            raise ValueError(f"job {self.id} does nothing")
        if not self.weight > 0:
            raise ValueError(f"job {self.id}: a weight is above 0, not {self.weight:g}")

    def paths(self) -> list[tuple[str, ...]]:
        """Returns the paths of the job's flows, each once, in order of use."""
        return list(dict.fromkeys(each.path for phase in self.phases for each in phase.transfers))

    def computing(self) -> float:
        """Returns the seconds of an iteration that the job computes."""
        return sum(phase.compute + phase.beside for phase in self.phases)

    def communicating(self, capacities: Mapping[str, float]) -> float:
        """Returns the seconds of an iteration in which the job's links work for it, when it is alone."""
        return sum(phase.alone(capacities) for phase in self.phases)
