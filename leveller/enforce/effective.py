"""What was asked of the system, and what it did."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from leveller.core.model import FiveTuple
from leveller.enforce.table import place_of

__all__ = ["Effective", "Enforcer", "Refusing", "compared", "sorted_out"]


@dataclass(frozen=True, slots=True)
class Effective:
    """A DSCP that was asked for, the one that holds (None: nobody knows), and why they differ."""

    requested: int
    effective: int | None
    reason: str = ""


class Enforcer(Protocol):
    """Marks flows that leave this host."""

    def apply(self, marks: Mapping[FiveTuple, int]) -> Mapping[FiveTuple, Effective]:
        """Makes `marks` all that is marked; the same again changes nothing."""
        ...

    def close(self) -> None:
        """Takes all marks away."""
        ...


class Refusing:
    """Where the system lets us mark nothing: says so for every flow."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def apply(self, marks: Mapping[FiveTuple, int]) -> Mapping[FiveTuple, Effective]:
        return {flow: Effective(dscp, None, self._reason) for flow, dscp in marks.items()}

    def close(self) -> None:
        """Nothing to take away."""


def sorted_out(
    marks: Mapping[FiveTuple, int], dscps: Collection[int]
) -> tuple[dict[FiveTuple, int], dict[FiveTuple, Effective]]:
    """Returns the marks that make sense, and why the others do not."""
    wanted: dict[FiveTuple, int] = {}
    refused: dict[FiveTuple, Effective] = {}
    for flow, dscp in marks.items():
        try:
            place_of(flow)
            if dscp not in dscps:
                raise ValueError(f"{dscp} is none of the marks of this agent")
            wanted[flow] = dscp
        except ValueError as error:
            refused[flow] = Effective(dscp, None, str(error))
    return wanted, refused


def compared(wanted: Mapping[FiveTuple, int], found: Mapping[FiveTuple, int]) -> dict[FiveTuple, Effective]:
    """Returns what holds of what was asked for, given what was read back."""
    return {
        flow: Effective(dscp, found.get(flow), "" if found.get(flow) == dscp else "the rule is gone from the kernel")
        for flow, dscp in wanted.items()
    }
