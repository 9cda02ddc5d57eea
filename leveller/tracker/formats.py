"""What frameworks write when an iteration is complete. One table; each entry finds numbers in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["FORMATS", "Format", "Position", "user_format"]

_LONGEST_PATTERN = 500
_MOST_DIGITS = 15


@dataclass(frozen=True)
class Position:
    """Where a line says the job is: `step` of `total` (None: it does not say) in `epoch` (None: the count goes on)."""

    step: int
    total: int | None = None
    epoch: int | None = None


@dataclass(frozen=True)
class Format:
    """How to read one framework's lines."""

    name: str
    find: Callable[[str], Position | None]


def _number(text: str | None) -> int | None:
    """A count; None for what is none, as a pattern of the user's may find anything."""
    digits = (text or "").replace(",", "").replace("_", "")
    return int(digits) if digits.isdecimal() and len(digits) <= _MOST_DIGITS else None


def _by(name: str, pattern: str) -> Format:
    """A format by groups `step`, and where there are any `total` and `epoch`."""
    compiled = re.compile(pattern)

    def find(line: str) -> Position | None:
        found = compiled.search(line)
        if found is None:
            return None
        groups = found.groupdict()
        step = _number(groups["step"])
        return None if step is None else Position(step, _number(groups.get("total")), _number(groups.get("epoch")))

    return Format(name, find)


def user_format(pattern: str) -> Format:
    """Returns a format of the user's own: a regular expression with the group `step`, and perhaps `total`, `epoch`.

    ValueError: it is none. A pattern that backtracks for ever holds up the agent: it is the operator's own.
    """
    if len(pattern) > _LONGEST_PATTERN:
        raise ValueError(f"a pattern has at most {_LONGEST_PATTERN} characters")
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        raise ValueError(f"'{pattern}' is no regular expression: {error}") from None
    if "step" not in groups:
        raise ValueError(f"'{pattern}' has no group step: write (?P<step>\\d+) where the number stands")
    return _by("pattern", pattern)


#: In the order in which they are tried: the more particular ones first.
FORMATS = {
    each.name: each
    for each in (
        # "[time] iteration       10/    1000 | consumed samples: ..."; skipped iterations are iterations, too
        _by("megatron", r"\biteration:?\s+(?P<step>\d[\d,]*)\s*/\s*(?P<total>\d[\d,]*)\s*\|"),
        # "... epoch=0/micro_step=10/global_step=10, ..." and "... step=10, skipped=10, lr=..."
        _by("deepspeed", r"(?:\bglobal_step=(?=\d+,)|(?<!\w)step=(?=\d+, skipped=))(?P<step>\d+)"),
        # "[titan] 2025-... - INFO - step: 200  loss:  6.1384 ..."
        _by("torchtitan", r"\bstep:\s*(?P<step>\d[\d,]*)\s+loss:"),
        # "iter 10: loss 3.2202, time 893.76ms, mfu 16.68%"; "step 250: train loss ..." is an evaluation
        _by("nanogpt", r"^iter (?P<step>\d+): loss\b"),
        # "Epoch 0:  22%|##2       | 4/18 [00:17<01:02,  4.47s/it, ...]": counts anew in each epoch
        _by("lightning", r"^Epoch (?P<epoch>\d+):.*?\|\s*(?P<step>\d+)/(?P<total>\d+)\s*\["),
        # "  8%|########      | 1999/24128 [1:52:09<20:27:23,  3.33s/it]", and whatever follows on the line
        _by("huggingface", r"^\s*\d+%\|.*?\|\s*(?P<step>\d[\d,]*)/(?P<total>\d[\d,]*)\s*\["),
    )
}
