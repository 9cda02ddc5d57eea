"""What a sweep measures: the flags of nccl-tests as one value, and the sizes that follow from them. Pure."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from theseus_py.perf.collectives import COLLECTIVES
from theseus_py.perf.values import ELEMENT_TYPES

OPERATIONS = ("sum", "prod", "max", "min", "avg")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_MOST_SIZES = 10_000


def parse_size(text: str) -> int:
    """Bytes from "8", "64K", "1M", "1.5G" (powers of 1024, as nccl-tests reads them). ValueError names the text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise ValueError(f"'{text}' is no size: write bytes as 8, 64K, 1M or 1G")
    return int(float(match[1]) * _UNITS[match[2]])


@dataclass(frozen=True)
class SweepOptions:
    """One run of `theseus perf`. Sizes in bytes; `root` -1 stands for every rank in turn."""

    collective: str = "all_reduce"
    min_bytes: int = 32 << 20
    max_bytes: int = 32 << 20
    step_bytes: int = 1 << 20
    step_factor: int = 1  # 1: steps of step_bytes
    iterations: int = 20
    warmup: int = 5
    check: int = 1
    operation: str = "sum"
    element_type: str = "float"
    root: int = 0
    threads: int = 1  # ranks of a process, each a thread

    def __post_init__(self) -> None:
        _choice("collective", self.collective, tuple(COLLECTIVES))
        _choice("operation", self.operation, (*OPERATIONS, "all"))
        _choice("data type", self.element_type, (*ELEMENT_TYPES, "all"))
        for name, value, least in (
            ("the smallest size (-b)", self.min_bytes, 0),
            ("the number of iterations (-n)", self.iterations, 1),
            ("the number of warm-up iterations (-w)", self.warmup, 0),
            ("the number of checked iterations (-c)", self.check, 0),
            ("the root (-r)", self.root, -1),
            ("the number of threads (-t)", self.threads, 1),
            ("the step (-i)", self.step_bytes, 1),
            ("the step factor (-f)", self.step_factor, 1),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        if self.max_bytes < self.min_bytes:
            raise ValueError(f"the largest size (-e {self.max_bytes}) is below the smallest (-b {self.min_bytes})")
        if self.step_factor > 1 and self.min_bytes == 0:
            raise ValueError("a step factor (-f) cannot start at 0 bytes: give -b a size of at least 1")
        if self.step_factor == 1 and (self.max_bytes - self.min_bytes) // self.step_bytes >= _MOST_SIZES:
            raise ValueError(f"-i {self.step_bytes} makes more than {_MOST_SIZES} sizes: use a larger step, or -f 2")

    def sizes(self) -> list[int]:
        """The sizes of the sweep in bytes, smallest first; a barrier has but one, 0."""
        if self.collective == "barrier":
            return [0]
        sizes = [self.min_bytes]
        while True:
            following = sizes[-1] * self.step_factor if self.step_factor > 1 else sizes[-1] + self.step_bytes
            if following > self.max_bytes:
                return sizes
            sizes.append(following)

    def operations(self) -> list[str]:
        """The reductions to run; ["none"] for a collective that reduces nothing."""
        if not COLLECTIVES[self.collective].reduces:
            return ["none"]
        return list(OPERATIONS) if self.operation == "all" else [self.operation]

    def element_types(self) -> list[str]:
        return list(ELEMENT_TYPES) if self.element_type == "all" else [self.element_type]

    def roots(self, ranks: int) -> list[int]:
        """The roots to run; [-1] for a collective without one. ValueError where `root` is no rank."""
        if not COLLECTIVES[self.collective].rooted:
            return [-1]
        if self.root >= ranks:
            raise ValueError(f"root {self.root} (-r) is no rank: there are {ranks}, 0 to {ranks - 1}")
        return list(range(ranks)) if self.root < 0 else [self.root]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def _choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"unknown {what} '{value}': choose one of {', '.join(choices)}")
