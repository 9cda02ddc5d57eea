"""A greedy synthesiser: AllGather and AllReduce for hosts of GPUs whose links have different speeds.

Time-expanded, as public greedy synthesisers are: at each instant every idle link takes the chunk that helps most, for
as long as that link needs for one chunk, and the next instant is when a link falls idle. Slow links choose first, and
bring a host only what none of its GPUs has or is about to get. The result is deterministic.

Few connections, few thread blocks: a GPU sends to `fan_out` GPUs of its host and to the GPU of its number on the next
host; GPU g uses rail g modulo rails, so that GPUs share a NIC where there are fewer rails than GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from resccl.lang import Algorithm

_MOST_RANKS = 512


@dataclass(frozen=True)
class Shape:
    """`hosts` hosts of `gpus` GPUs; a chunk takes `local_time` inside a host, `network_time` on a rail (any unit)."""

    hosts: int
    gpus: int
    rails: int = 1
    fan_out: int = 1
    local_time: float = 1.0
    network_time: float = 6.0

    def __post_init__(self) -> None:
        if self.hosts < 1 or self.gpus < 1 or self.rails < 1 or not 1 <= self.hosts * self.gpus <= _MOST_RANKS:
            raise ValueError(
                f"{self.hosts} hosts x {self.gpus} GPUs, {self.rails} rails: at most {_MOST_RANKS} GPUs in all"
            )
        if self.fan_out < 1 or not self.local_time > 0 or not self.network_time > 0:
            raise ValueError("fan_out, local_time and network_time must be positive")


@dataclass(frozen=True)
class _Way:
    src: int
    dst: int
    rail: int  # -1: inside a host
    resources: tuple[int, ...]
    duration: float


@dataclass
class _State:
    """Who holds which chunk, or will, and since when each may be passed on."""

    held: np.ndarray  # (ranks, chunks): time from which on it is there; inf: not
    copies: np.ndarray  # (chunks,): ranks that hold it or are about to
    hosts: np.ndarray  # (hosts, chunks): likewise, of a host
    busy: dict[int, float] = field(default_factory=dict)


def all_gather(hosts: int, gpus: int, rails: int = 1, fan_out: int = 1, network_time: float = 6.0) -> Algorithm:
    """Synthesise an AllGather; `network_time` is how often longer than inside a host a chunk takes between hosts."""
    shape = Shape(hosts, gpus, rails, fan_out, network_time=network_time)
    algorithm = Algorithm(f"synth_all_gather({hosts}x{gpus})", "AllGather", ranks=hosts * gpus)
    rows = _rows(spread(shape))
    if rows:
        algorithm.add_array(rows)
    return algorithm


def all_reduce(hosts: int, gpus: int, rails: int = 1, fan_out: int = 1, network_time: float = 6.0) -> Algorithm:
    """Synthesise an AllReduce: the AllGather backwards with reductions, then forwards."""
    shape = Shape(hosts, gpus, rails, fan_out, network_time=network_time)
    algorithm = Algorithm(f"synth_all_reduce({hosts}x{gpus})", "AllReduce", ranks=hosts * gpus)
    rows = _rows(spread(shape))
    if rows:
        last = max(row[2] for row in rows)
        with algorithm.phase("reduce") as phase:
            phase.add_array([(dst, src, last - step, chunk, 1, rail) for src, dst, step, chunk, _, rail in rows])
        with algorithm.phase("gather") as phase:
            phase.add_array(rows)
    return algorithm


def spread(shape: Shape) -> list[tuple[float, int, int, int, int]]:
    """Return (start, src, dst, chunk, rail) of transfers that bring each rank's chunk to all; rail -1 inside a host.

    Each rank receives each chunk once, so that the same backwards is a reduction.
    """
    ranks = shape.hosts * shape.gpus
    state = _State(
        held=np.full((ranks, ranks), np.inf),
        copies=np.ones(ranks, dtype=np.int64),
        hosts=np.repeat(np.eye(shape.hosts, dtype=bool), shape.gpus, axis=1),
    )
    np.fill_diagonal(state.held, 0.0)
    ways = sorted(_ways(shape), key=lambda way: (-way.duration, way.src, way.dst))
    found: list[tuple[float, int, int, int, int]] = []
    now = 0.0
    while len(found) < ranks * (ranks - 1):
        for way in ways:
            if all(state.busy.get(resource, 0.0) <= now for resource in way.resources):
                chunk = _best_chunk(state, way, now, shape.gpus)
                if chunk is not None:
                    _start(state, way, chunk, now, shape.gpus)
                    found.append((now, way.src, way.dst, chunk, way.rail))
        now = min(until for until in state.busy.values() if until > now)
    return found


def _ways(shape: Shape) -> Iterator[_Way]:
    """Yield the connections that the algorithm may use. Resources: a pair of ranks, egress and ingress of a rail."""
    pairs = (shape.hosts * shape.gpus) ** 2
    for rank in range(shape.hosts * shape.gpus):
        host, local = divmod(rank, shape.gpus)
        for distance in range(1, min(shape.fan_out, shape.gpus - 1) + 1):
            peer = host * shape.gpus + (local + distance) % shape.gpus
            yield _Way(rank, peer, -1, (rank * shape.hosts * shape.gpus + peer,), shape.local_time)
        if shape.hosts > 1:
            there, rail = (host + 1) % shape.hosts, local % shape.rails
            nics = (pairs + 2 * (host * shape.rails + rail), pairs + 2 * (there * shape.rails + rail) + 1)
            yield _Way(rank, there * shape.gpus + local, rail, nics, shape.network_time)


def _best_chunk(state: _State, way: _Way, now: float, gpus: int) -> int | None:
    """Return the chunk with the fewest copies that the way's source has and its end lacks."""
    useful = (state.held[way.src] <= now) & np.isinf(state.held[way.dst])
    if way.rail >= 0:
        useful &= ~state.hosts[way.dst // gpus]
    chunks = np.flatnonzero(useful)
    return int(chunks[np.argmin(state.copies[chunks])]) if len(chunks) else None


def _start(state: _State, way: _Way, chunk: int, now: float, gpus: int) -> None:
    until = now + way.duration
    state.held[way.dst, chunk] = until
    state.copies[chunk] += 1
    state.hosts[way.dst // gpus, chunk] = True
    for resource in way.resources:
        state.busy[resource] = until


def _rows(transfers: list[tuple[float, int, int, int, int]]) -> list[tuple[int, int, int, int, int, int]]:
    """Number the instants: what starts after an arrival has a larger step than what arrived."""
    step = {start: number for number, start in enumerate(sorted({start for start, *_ in transfers}))}
    return [(src, dst, step[start], chunk, 0, rail) for start, src, dst, chunk, rail in transfers]
