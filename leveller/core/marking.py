"""Levels as marks on packets: DSCP, the upper six bits of IPv4's TOS and IPv6's traffic class."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Marking"]

_MOST = 63


@dataclass(frozen=True)
class Marking:
    """Which DSCP each level has.

    codes: of the levels, rising. Switches that look at the upper three bits alone (802.1p, class selectors) tell the
        default ones apart: CS0 to CS5
    control: of LEVELLER's own traffic, above all levels: CS6
    default: of a flow that nobody manages
    """

    codes: tuple[int, ...] = (0, 8, 16, 24, 32, 40)
    control: int = 48
    default: int = 0

    def __post_init__(self) -> None:
        for code in (*self.codes, self.control, self.default):
            if not 0 <= code <= _MOST:
                raise ValueError(f"a DSCP is from 0 to {_MOST}, not {code}")
        if not self.codes or any(low >= high for low, high in zip(self.codes, self.codes[1:], strict=False)):
            raise ValueError(f"the codes of levels rise from the lowest level to the highest, not {self.codes}")

    @property
    def levels(self) -> int:
        """The most levels there can be."""
        return len(self.codes)

    def dscp(self, level: int, count: int) -> int:
        """Returns the DSCP of `level` where there are `count` levels: the lowest and the highest code are always used.

        ValueError: there are fewer codes than levels, or there is no such level.
        """
        if not 1 <= count <= self.levels:
            raise ValueError(f"there are {self.levels} marks, so 1 to {self.levels} levels, not {count}")
        if not 0 <= level < count:
            raise ValueError(f"of {count} levels there is no level {level}")
        if count == 1:
            return self.codes[0]
        return self.codes[round(level * (self.levels - 1) / (count - 1))]
