"""Plans around slow NICs: from a health map to the arguments of the generator `healed`, and what they are worth."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from theseus_py.healing.floors import floor
from theseus_py.healing.rounding import Counts, largest_remainder, last_nic, round_quotas
from theseus_py.healing.solve import Collective, Health, NoWay, Split, as_health, healthy_time, solve
from theseus_py.healing.weights import fit, quotas_of

# unequal: shares and flows by the linear program. rerouted: every host an equal share, its traffic over its NICs in
# proportion to what they have left, so that of one at p the part f = (R - 1)(1 - p) / (R - 1 + p) goes elsewhere.
Kind = Literal["unequal", "rerouted"]

# A NIC with less is left out: its last message would be the last of all, and its health may be overestimated.
DROP_BELOW = 0.2
# Unless the plan without it takes so much longer: less than that the tail of a weak NIC costs too (measured).
_WORTH_A_WEAK_NIC = 0.12
# A split in proportion keeps hosts more in step than one by the program; that is worth so much (measured).
_WORTH_THE_PROGRAM = 0.01
# Messages of this many bytes, or up to four times as much, which then go in pieces of what a slot holds.
_CHUNK_BYTES = 128 << 10
# Hosts * hosts * rails; quotas of larger clusters follow from weights.
LARGEST_TABLE = 4096
_FEWEST_CHUNKS = 64
_MOST_CHUNKS = 512
# So much more than its split, whole messages may take. To get there so many chunks more are tried, fewer where a plan
# takes longer: hosts * hosts * rails of all tries together.
_WELL_ROUNDED = 1.002
_MORE_CHUNKS = 16
_TRIED = 1024
# Hosts own shares, whose sizes are the plan's to choose; of the others, a block for each rank.
_OWNED: tuple[Collective, ...] = ("AllReduce", "Broadcast")


@dataclass(frozen=True)
class Part:
    """What the arguments say for roots on one host, or (root_host None) for all there is. `ideal` would be its time if
    messages could be cut as one likes.
    """

    root_host: int | None
    shares: tuple[int, ...]
    quotas: Counts
    predicted: float
    floor: float
    ideal: float
    weights: tuple[Counts, Counts] | None = None  # out and in, from which the quotas follow: where a table is too long


@dataclass(frozen=True)
class Plan:
    """A plan for `collective`. `predicted` and `floor` are times as multiples of healthy; of a Broadcast, the worst."""

    collective: Collective
    kind: Kind
    hosts: int
    rails: int
    ranks_per_host: int
    chunks: int
    parts: tuple[Part, ...]

    @property
    def predicted(self) -> float:
        return max(part.predicted for part in self.parts)

    @property
    def floor(self) -> float:
        return max(part.floor for part in self.parts)

    @property
    def is_well_rounded(self) -> bool:
        """Returns whether other numbers of chunks would hardly do better."""
        return all(part.predicted <= _WELL_ROUNDED * part.ideal for part in self.parts)

    @functools.cached_property
    def arguments(self) -> str:
        """Returns the text that the generator takes (csrc/compiler/healed_arguments.h)."""
        fields = [f"hosts={self.hosts}", f"rails={self.rails}", f"chunks={self.chunks}"]
        for part in self.parts:
            if part.root_host is not None:
                fields.append(f"root={part.root_host}")
            if part.shares:
                fields.append("shares=" + _run_lengths(part.shares))
            apart = ~np.eye(self.hosts, dtype=np.bool_)
            if part.weights is None:
                fields.append("quotas=" + _run_lengths(part.quotas[apart].ravel().tolist()))
            else:
                ways = zip(("out", "in"), part.weights, strict=True)
                fields += [f"{way}=" + _run_lengths(weights.ravel().tolist()) for way, weights in ways]
        return ";".join(fields)

    @property
    def algorithm(self) -> str:
        """Returns the name by which a schedule, or `resccl.built_in`, asks for the plan."""
        return "healed:" + self.arguments


def plan(
    collective: Collective,
    health: Health,
    *,
    chunks: int,
    ranks_per_host: int = 1,
    kind: Kind = "unequal",
    root_hosts: Iterable[int] | None = None,
) -> Plan:
    """Returns the best plan for a health map (hosts x rails, 0 to 1).

    `chunks` is of the whole for AllReduce and Broadcast, else of a rank's block; see chunks_for. `root_hosts`: those
    that a Broadcast must serve, all if not given. Raises NoWay where hosts are cut off from each other.
    """
    capacity = as_health(health)
    hosts, rails = capacity.shape
    if chunks < 1 or ranks_per_host < 1:
        raise ValueError("a plan needs at least one chunk, and one rank a host")
    roots: Iterable[int | None] = [None]
    if collective == "Broadcast":
        roots = sorted(set(range(hosts) if root_hosts is None else root_hosts))
    parts = tuple(_part(collective, capacity, root, chunks, ranks_per_host, kind) for root in roots)
    return Plan(collective, kind, hosts, rails, ranks_per_host, chunks, parts)


def plan_for(
    collective: Collective, health: Health, size: int, *, ranks_per_host: int = 1, kind: Kind = "unequal"
) -> Plan:
    """Returns the best plan for data of `size` bytes, as chunks_for has it, and up to four times as much. Of numbers of
    chunks from there on, it takes one with which whole messages come near to the split. Raises NoWay.
    """
    hosts, rails = as_health(health).shape
    fewest = chunks_for(collective, size, hosts * ranks_per_host)
    more = min(_MORE_CHUNKS, fewest // 4, _TRIED // (hosts * hosts * rails))
    best: Plan | None = None
    for chunks in range(fewest, fewest + more + 1):
        made = plan(collective, health, chunks=chunks, ranks_per_host=ranks_per_host, kind=kind)
        if best is None or made.predicted < best.predicted:
            best = made
        if best.is_well_rounded:
            break
    assert best is not None
    return best


def chunks_for(collective: Collective, size: int, ranks: int) -> int:
    """Returns the chunks of a plan for data of `size` bytes in all (of AllGather, ReduceScatter and AllToAll: `ranks`
    blocks), and up to four times as much: messages of 128 KB or more where that makes enough of them.
    """
    blocks = 1 if collective in _OWNED else ranks
    wanted = min(max(size // _CHUNK_BYTES, _FEWEST_CHUNKS), _MOST_CHUNKS)
    return max(1, wanted // blocks)


def predicted_time(collective: Collective, algorithm: str, health: Health) -> float:
    """Returns the time of a plan that is at hand, as a multiple of healthy, under any health map; of a Broadcast, the
    worst root's. Raises ValueError where `algorithm` is none of ours.
    """
    capacity = as_health(health)
    times = []
    text, *parts = algorithm.removeprefix("healed:").split(";root=")
    for part in [f"{text};root={each}" for each in parts] or [text]:
        fields = dict(field.partition("=")[::2] for field in part.split(";"))
        if not {"quotas", "out"} & fields.keys():
            raise ValueError(f"'{algorithm[:40]}' says nothing of quotas")
        times.append(_time_of(collective, fields, capacity))
    return max(times)


def _time_of(collective: Collective, fields: dict[str, str], capacity: NDArray[np.float64]) -> float:
    hosts, rails = capacity.shape
    owned = "shares" in fields
    # Of blocks, any number does: here one rank a host.
    shares = np.array(_expanded(fields["shares"])) if owned else np.full(hosts, int(fields["chunks"]))
    if "out" in fields:
        root = int(fields["root"]) if "root" in fields else None
        out, incoming = (np.array(_expanded(fields[way])).reshape(hosts, rails) for way in ("out", "in"))
        counts = quotas_of(out, incoming, _amounts(collective, shares, root))
    else:
        counts = np.zeros((hosts, hosts, rails), dtype=np.int64)
        counts[~np.eye(hosts, dtype=np.bool_)] = np.array(_expanded(fields["quotas"])).reshape(-1, rails)
    whole = int(shares.sum()) if owned else hosts * int(counts[0, 1].sum())
    return last_nic(counts, capacity) / whole / healthy_time(collective, hosts, rails)


def without_weak(capacity: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the map without the NICs that are better left alone."""
    return np.where(capacity < DROP_BELOW, 0.0, capacity)


def _part(
    collective: Collective, capacity: NDArray[np.float64], root: int | None, chunks: int, locals_: int, kind: Kind
) -> Part:
    """Returns a part from one that was made for something else, where that comes to the same: blocks are blocks
    whatever is done with them, and hosts with NICs alike can change places.
    """
    health, (hosts, rails) = capacity.tobytes(), capacity.shape
    as_table = hosts * hosts * rails <= LARGEST_TABLE
    least = _floor(collective, health, (hosts, rails), root or 0)
    if collective not in _OWNED:
        # What a host owns, in messages; as messages_between() of the generator has it.
        block = chunks * locals_ * (locals_ if collective == "AllToAll" else 1)
        return replace(_made("AllGather", health, (hosts, rails), None, block, kind, as_table), floor=least)
    if root is None or not as_table:  # weights are rounded by the generator, in the order of the hosts
        return replace(_made(collective, health, (hosts, rails), root, chunks, kind, as_table), floor=least)
    first = int((capacity == capacity[root]).all(axis=1).argmax())
    made = _made(collective, health, (hosts, rails), first, chunks, kind, as_table)
    return replace(_with_root(made, first, root), floor=least)


def _with_root(part: Part, first: int, root: int) -> Part:
    """Returns the part whose root `first` has changed places with host `root`."""
    names = list(range(len(part.shares)))
    names[first], names[root] = root, first
    shares = tuple(part.shares[name] for name in names)
    return replace(part, root_host=root, shares=shares, quotas=part.quotas[np.ix_(names, names)])


@functools.lru_cache(maxsize=256)
def _made(
    collective: Collective,
    health: bytes,
    shape: tuple[int, int],
    root: int | None,
    owned: int,
    kind: Kind,
    as_table: bool,
) -> Part:
    """Returns a part without its floor. `owned`: messages, of all together, or of each host where each owns a block."""
    capacity = np.frombuffer(health, dtype=np.float64).reshape(shape)
    split, used = _split(collective, health, shape, root or 0, kind)
    hosts, rails = shape
    has_shares = collective in _OWNED
    shares = largest_remainder(split.shares, owned) if has_shares else np.full(hosts, owned)
    messages = _amounts(collective, shares, root)
    if as_table:
        weights = None
        counts = round_quotas(split.flows, messages, used)
    else:
        weights = fit(split.flows, used)
        counts = quotas_of(*weights, messages)
    predicted = last_nic(counts, capacity) / shares.sum() / healthy_time(collective, hosts, rails)
    ideal = split.time / healthy_time(collective, hosts, rails)
    counts.setflags(write=False)
    return Part(root, tuple(shares.tolist()) if has_shares else (), counts, predicted, 0.0, ideal, weights)


@functools.lru_cache(maxsize=256)
def _floor(collective: Collective, health: bytes, shape: tuple[int, int], root: int) -> float:
    """Kept, since plans of several sizes are made for each map."""
    return floor(collective, np.frombuffer(health, dtype=np.float64).reshape(shape), root)


@functools.lru_cache(maxsize=256)
def _split(
    collective: Collective, health: bytes, shape: tuple[int, int], root: int, kind: Kind
) -> tuple[Split, NDArray[np.float64]]:
    """Returns a split, and the map that it is made for: without the weak NICs, unless much is lost without them.

    Kept, since plans of several sizes are made for each map.
    """
    capacity = np.frombuffer(health, dtype=np.float64).reshape(shape)
    whole = _best(collective, capacity, root, kind)
    strong = without_weak(capacity)
    if (strong == capacity).all():
        return whole, capacity
    try:
        split = _best(collective, strong, root, kind)
    except NoWay:
        return whole, capacity
    return (split, strong) if split.time <= whole.time * (1 + _WORTH_A_WEAK_NIC) else (whole, capacity)


def _best(collective: Collective, capacity: NDArray[np.float64], root: int, kind: Kind) -> Split:
    """Returns the split of that kind; equal shares in proportion where unequal ones gain next to nothing."""
    if kind == "rerouted":
        return _reroute(collective, capacity, root)
    split = solve(collective, capacity, root)
    try:
        plain = _reroute(collective, capacity, root)
    except NoWay:
        return split
    return plain if plain.time <= split.time * (1 + _WORTH_THE_PROGRAM) else split


def _reroute(collective: Collective, capacity: NDArray[np.float64], root: int) -> Split:
    """Equal shares; the flows of a pair go over the rails in proportion to what both NICs have left."""
    hosts = len(capacity)
    shares = np.full(hosts, 1 / hosts)
    if collective == "Broadcast":
        shares = np.where(np.arange(hosts) == root, 0.0, 1 / (hosts - 1))
    joint = capacity[:, None, :] * capacity[None, :, :]
    sums = joint.sum(axis=2)
    amounts = _amounts(collective, shares, root)
    if ((sums == 0) & (amounts > 0)).any():
        raise NoWay(f"{collective}: some hosts have no healthy rail in common")
    flows = joint * (amounts / np.where(sums > 0, sums, 1.0))[:, :, None]
    return Split(shares, flows, last_nic(flows, capacity))


def _amounts(collective: Collective, shares: NDArray[Any], root: int | None) -> NDArray[Any]:
    """Returns what each host sends to each other, in the unit of `shares`."""
    amounts = np.repeat(shares[:, None], len(shares), axis=1)
    if collective == "AllReduce":
        amounts = amounts + shares[None, :]
    elif collective == "Broadcast":
        amounts[root] += shares
        amounts[:, root] = 0
    np.fill_diagonal(amounts, 0)
    return amounts


def _expanded(text: str) -> list[int]:
    values: list[int] = []
    for run in text.split(","):
        value, _, times = run.partition("x")
        values.extend([int(value)] * int(times or 1))
    return values


def _run_lengths(values: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return ",".join(str(value) if times == 1 else f"{value}x{times}" for value, times in runs)
