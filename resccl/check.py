"""What is wrong with an algorithm, and which transfer made it so.

The compiler refuses the same; it knows no lines of programs, and works on whole plans. This looks at the transfers
alone: first vectorised for what cannot be, then by symbolic execution for what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from resccl.collectives import ChunkSpace

# Above this many transfers the symbolic execution is left to the verifier, which does it on the plan.
_MOST_EXECUTED = 400_000


@dataclass(frozen=True)
class Fault:
    """One sentence, and the index of the transfer that it is about (None: of no single one)."""

    text: str
    transfer: int | None = None


def find_fault(space: ChunkSpace, transfers: NDArray[np.int32]) -> Fault | None:
    """Return the first thing wrong with transfers (n, 6) that are in range; None where all is right.

    Time grows as n log n; above 400,000 transfers the result is not computed.
    """
    rows = transfers.astype(np.int64)
    if len(rows) == 0:
        return _incomplete(space, {}) if space.ranks > 1 else None
    return (
        _missing_source(space, rows)
        or _ambiguous_arrival(space, rows)
        or (_wrong_result(space, rows) if len(rows) <= _MOST_EXECUTED else None)
    )


def describe(row: NDArray[np.int64]) -> str:
    """Return a transfer as the compiler's messages have it."""
    return f"transfer {row[0]} -> {row[1]} of chunk {row[3]} at step {row[2]}"


def _missing_source(space: ChunkSpace, rows: NDArray[np.int64]) -> Fault | None:
    """A rank holds a chunk that it contributes, or that arrived in an earlier step."""
    src, dst, step, chunk = rows[:, :4].T
    arrival = chunk * space.ranks + dst
    order = np.lexsort((step, arrival))
    keys, first = np.unique(arrival[order], return_index=True)
    since = step[order][first]
    wanted = chunk * space.ranks + src
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    arrived = (keys[at] == wanted) & (since[at] < step)
    good = arrived | space.holds_at_first(src, chunk)
    if good.all():
        return None
    bad = _earliest(rows, ~good)
    late = f"; it arrives there at step {since[at[bad]]}" if keys[at[bad]] == wanted[bad] else ""
    return Fault(f"{describe(rows[bad])}: rank {src[bad]} does not hold that chunk then{late}", bad)


def _ambiguous_arrival(space: ChunkSpace, rows: NDArray[np.int64]) -> Fault | None:
    """Of one chunk, one rank receives in one step a copy alone, or reduces from different ranks."""
    src, dst, step, chunk, op = rows[:, :5].T
    order = np.lexsort((np.arange(len(rows)), src, dst, step, chunk))
    a, b = order[:-1], order[1:]
    together = (chunk[a] == chunk[b]) & (step[a] == step[b]) & (dst[a] == dst[b])
    twice = together & (src[a] == src[b])
    if twice.any():
        bad = int(b[np.argmax(twice)])
        return Fault(f"{describe(rows[bad])} occurs twice", bad)
    beside = together & ((op[a] == 0) | (op[b] == 0))
    if not beside.any():
        return None
    at = int(np.argmax(beside))
    bad, other = max(a[at], b[at]), min(a[at], b[at])
    return Fault(
        f"{describe(rows[bad])} arrives beside the one from rank {src[other]}, and one of them is a copy: "
        "which one stays is undefined",
        int(bad),
    )


@dataclass(frozen=True)
class _Value:
    """What a rank holds of a chunk: whose contributions, a bit a rank, and what went wrong with it first."""

    ranks: int
    fault: Fault | None = None


def _wrong_result(space: ChunkSpace, rows: NDArray[np.int64]) -> Fault | None:
    """Execute the transfers; a fault counts where it reaches an output."""
    owners = space.owner(np.arange(space.chunks, dtype=np.int64)).tolist()
    held: dict[tuple[int, int], _Value] = {}  # (chunk, rank)

    def value(chunk: int, rank: int) -> _Value:
        return held.get((chunk, rank)) or _Value(1 << rank if owners[chunk] in (-1, rank) else 0)

    order = np.lexsort((rows[:, 2], rows[:, 3]))
    numbered = zip(order.tolist(), rows[order].tolist(), strict=True)
    for (chunk, _), group in groupby(numbered, key=lambda each: (each[1][3], each[1][2])):
        # All of a step are read before any of it is written.
        arriving = [(index, row[1], row[4], value(chunk, row[0])) for index, row in group]
        for transfer, dst, op, brought in arriving:
            held[chunk, dst] = _combined(value(chunk, dst), brought, rows[transfer], transfer) if op else brought
    return _incomplete(space, held, rows)


def _combined(have: _Value, brought: _Value, row: NDArray[np.int64], transfer: int) -> _Value:
    both = have.ranks & brought.ranks
    fault = have.fault or brought.fault
    if both and fault is None:
        fault = Fault(
            f"{describe(row)}: rank {row[1]} has the contribution of {_ranks(both)} already, and would reduce it twice",
            transfer,
        )
    return _Value(have.ranks | brought.ranks, fault)


def _incomplete(
    space: ChunkSpace, held: dict[tuple[int, int], _Value], rows: NDArray[np.int64] | None = None
) -> Fault | None:
    """Find an output chunk that does not hold exactly what it should: one with a cause first."""
    chunks = np.arange(space.chunks, dtype=np.int64)
    targets, owners = space.target(chunks).tolist(), space.owner(chunks).tolist()
    everybody = (1 << space.ranks) - 1
    missing: Fault | None = None
    for chunk in range(space.chunks):
        owner = owners[chunk]
        want = everybody if owner < 0 else 1 << owner
        for rank in range(space.ranks) if targets[chunk] < 0 else (targets[chunk],):
            at_first = _Value(1 << rank if owner < 0 or owner == rank else 0)
            have = held.get((chunk, rank), at_first)
            if have.fault is not None:
                return have.fault
            if have.ranks != want and missing is None:
                lacks = f"lacks the contribution of {_ranks(want & ~have.ranks)}" if have.ranks else "has not got it"
                last = _last_arrival(rows, rank, chunk)
                missing = Fault(f"at the end rank {rank} {lacks}: chunk {chunk} of its output", last)
    return missing


def _last_arrival(rows: NDArray[np.int64] | None, rank: int, chunk: int) -> int | None:
    if rows is None:
        return None
    arrivals = np.flatnonzero((rows[:, 1] == rank) & (rows[:, 3] == chunk))
    return int(arrivals[np.argmax(rows[arrivals, 2])]) if len(arrivals) else None


def _ranks(mask: int) -> str:
    ranks = [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
    shown = ", ".join(map(str, ranks[:6])) + (f" and {len(ranks) - 6} more" if len(ranks) > 6 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _earliest(rows: NDArray[np.int64], bad: NDArray[np.bool_]) -> int:
    """Return the bad row of the smallest step: what comes later may follow from it."""
    found = np.flatnonzero(bad)
    return int(found[np.argmin(rows[found, 2])])
