"""What was asked of the system, and what it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from leveller.core.model import FiveTuple

__all__ = ["Effective", "Enforcer", "Refusing"]


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
