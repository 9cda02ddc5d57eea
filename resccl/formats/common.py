"""What all importers share: the result, the refusal, the limits and the checked reading of numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from resccl.errors import ResCCLError

NO_LIMIT = (1 << 64) - 1
"""`max_bytes` of a schedule that has no upper bound; larger bounds saturate here."""

MAX_FILE_BYTES = 64 << 20
MAX_RANKS = 4096
MAX_THREAD_BLOCKS = 4096
"""Of one rank."""
MAX_CHANNEL = 32767
MAX_CHUNKS = 1 << 20
"""Of one buffer of one rank."""
MAX_INSTRUCTIONS = 1 << 20
"""Of a whole schedule, after steps that move several chunks were expanded."""
FEW_SLOTS = 2
"""The fewest messages that a connection can be set to hold."""

COLLECTIVES = {
    "allreduce": "AllReduce",
    "allgather": "AllGather",
    "reducescatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "alltoall": "AllToAll",
    "gather": "Gather",
    "scatter": "Scatter",
}

_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,40}\s*")


class FormatError(ResCCLError, ValueError):
    """A file that cannot be imported, or a plan that a format cannot express.

    The message names the file, the place in it (gpu, tb, step, operation, line) and the reason.
    """


@dataclass
class Imported:
    """What a file holds.

    `kind` is "plan" or "algorithm" and says which of the two dicts is set (resccl._core's contract for both).
    `meta` holds what the file says about when to use it: "format", "name", "collective", "protocol", "channels",
    "in_place", "out_of_place", "min_bytes", "max_bytes" (NO_LIMIT where there is none), and what else a format has.
    `notes` says what the importer assumed, added or left out.
    """

    kind: str
    plan: dict[str, Any] | None = None
    algorithm: dict[str, Any] | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def integer(text: str) -> int | None:
    """The decimal number in `text`, None if it is none; no other bases, underscores or signs of other scripts."""
    return int(text) if _INTEGER.fullmatch(text) and text.isascii() else None


def saturated(value: int) -> int:
    """`value` within 64 unsigned bits."""
    return max(0, min(value, NO_LIMIT))


def collective_of(name: str) -> str | None:
    """The collective that a file calls `name`, whatever its case, dashes and underscores."""
    return COLLECTIVES.get(name.strip().lower().replace("_", "").replace("-", ""))


def shortened(text: str, limit: int = 120) -> str:
    """`text` fit for a message: printable, of bounded length."""
    clean = "".join(c if c.isprintable() else "?" for c in text[: limit + 1])
    return clean if len(clean) <= limit else clean[:limit] + "…"
