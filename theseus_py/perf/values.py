"""What goes into a collective and what must come out, for every element type, computed with NumPy. Pure.

Inputs are small integers chosen so that every partial result is exact in the element type, whatever the order of the
reduction; so the outcome is compared to the bit. Only the average of floating types rounds, and has a bound instead.
Values repeat with a prime period: no schedule moves chunks of a multiple of it, so a chunk in the wrong place shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from theseus_py.perf.collectives import CollectiveKind, Shape

Array = npt.NDArray[Any]
PERIOD = 16_381
_LARGEST_VALUE = 100


@dataclass(frozen=True)
class ElementType:
    """An NCCL element type. NumPy lacks bfloat16 and float8; their bits travel as unsigned integers."""

    name: str  # as nccl-tests spells it
    canonical: str  # as theseus_py spells it
    storage: str  # NumPy dtype of the buffer
    significand: int = 0  # bits, the hidden one included; 0: an integer
    exponent: int = 0  # bits; only for the types that NumPy lacks
    signed: bool = True

    @property
    def bytes(self) -> int:
        return np.dtype(self.storage).itemsize

    @property
    def floating(self) -> bool:
        return self.significand > 0

    @property
    def largest_exact(self) -> int:
        """Up to this magnitude, every integer is exact."""
        if self.floating:
            return 1 << self.significand
        return int(np.iinfo(self.storage).max)

    def encode(self, values: Array) -> Array:
        """Integers that are exact in this type, as buffer elements."""
        if not self.exponent:
            return values.astype(self.storage)
        codes, numbers = _code_table(self.significand, self.exponent)
        return codes[np.searchsorted(numbers, values)].astype(self.storage)

    def decode(self, stored: Array) -> npt.NDArray[np.float64]:
        if self.exponent == 8:  # bfloat16 is the upper half of a float32
            return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        if self.exponent:
            return _float8_values(self.significand, self.exponent)[stored]
        return stored.astype(np.float64)


ELEMENT_TYPES = {
    element.name: element
    for element in (
        ElementType("int8", "int8", "int8"),
        ElementType("uint8", "uint8", "uint8", signed=False),
        ElementType("int32", "int32", "int32"),
        ElementType("uint32", "uint32", "uint32", signed=False),
        ElementType("int64", "int64", "int64"),
        ElementType("uint64", "uint64", "uint64", signed=False),
        ElementType("half", "float16", "float16", significand=11),
        ElementType("float", "float32", "float32", significand=24),
        ElementType("double", "float64", "float64", significand=53),
        ElementType("bfloat16", "bfloat16", "uint16", significand=8, exponent=8),
        ElementType("f8e4m3", "float8e4m3", "uint8", significand=4, exponent=4),
        ElementType("f8e5m2", "float8e5m2", "uint8", significand=3, exponent=5),
    )
}


@lru_cache
def _float8_values(significand: int, exponent: int) -> npt.NDArray[np.float64]:
    """The number behind each of the 256 codes; NaN and infinity as NaN (OCP 8-bit floating point specification)."""
    codes = np.arange(256)
    mantissa_bits = significand - 1
    power = (codes >> mantissa_bits) & ((1 << exponent) - 1)
    mantissa = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    bias = (1 << (exponent - 1)) - 1
    magnitude = np.where(power == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (power - bias))
    # e5m2 keeps IEEE's infinities; e4m3 gives up only the code of all ones.
    special = codes & 0x7F >= 0x7C if exponent == 5 else codes & 0x7F == 0x7F
    return np.where(special, np.nan, np.where(codes & 0x80, -magnitude, magnitude))


@lru_cache
def _code_table(significand: int, exponent: int) -> tuple[Array, npt.NDArray[np.float64]]:
    """Codes of the integers within reach, in ascending order of their numbers, and those numbers."""
    if exponent == 8:
        numbers = np.arange(-(1 << significand), (1 << significand) + 1, dtype=np.float64)
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16), numbers
    values = _float8_values(significand, exponent)
    codes = np.arange(256)
    integers = codes[(np.abs(values) <= 1 << significand) & (values == np.round(values)) & (codes != 0x80)]
    integers = integers[np.argsort(values[integers])]
    return integers, values[integers]


@lru_cache(maxsize=256)
def _pattern(element: ElementType, operation: str, ranks: int, rank: int) -> npt.NDArray[np.int64]:
    """The integers that `rank` contributes, one period of them."""
    index = np.arange(PERIOD, dtype=np.uint64)
    mixed = (index + np.uint64(rank * 1_000_003 + 1)) * np.uint64(0x9E3779B97F4A7C15)
    scrambled = (mixed >> np.uint64(33)).astype(np.int64)
    position = index.astype(np.int64)
    if operation == "prod":  # one rank doubles, the others keep or turn the sign: the product stays in range
        sign = 1 - 2 * (scrambled & 1) if element.signed else 1
        return np.asarray(sign * np.where(position % ranks == rank, 2, 1))
    share = 1 if operation in ("none", "min", "max") else ranks
    reach = min(_LARGEST_VALUE, element.largest_exact // share)
    if reach == 0:  # more ranks than the type can count: at each place only some of them contribute
        return ((position + rank) % ranks < element.largest_exact).astype(np.int64)
    return np.asarray(scrambled % (2 * reach + 1) - reach if element.signed else scrambled % (reach + 1))


def _tile(pattern: Array, start: int, count: int) -> Array:
    return np.resize(np.roll(pattern, -(start % PERIOD)), count)


_REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "sum": lambda stack: stack.sum(axis=0),
    "prod": lambda stack: stack.prod(axis=0),
    "min": lambda stack: stack.min(axis=0),
    "max": lambda stack: stack.max(axis=0),
    "avg": lambda stack: stack.sum(axis=0),
}


@lru_cache(maxsize=64)
def _reduced_pattern(element: ElementType, operation: str, ranks: int) -> tuple[Array, npt.NDArray[np.float64] | None]:
    """One period of the reduction over all ranks, and what rounding may add to it; None: nothing."""
    stack = np.stack([_pattern(element, operation, ranks, rank) for rank in range(ranks)])
    reduced = _REDUCTIONS[operation](stack)
    if operation != "avg":
        return element.encode(reduced), None
    if not element.floating:  # truncates toward zero, as C does
        return element.encode(np.trunc(reduced / ranks).astype(np.int64)), None
    # Each rank's share is rounded once when it is scaled, and once more with each of the ranks - 1 additions.
    step = 2.0**-element.significand
    smallest = 2.0 ** (2 - (1 << (element.exponent - 1)) - element.significand) if element.bytes == 1 else 0.0
    bounds = step * np.abs(stack).sum(axis=0) * (ranks + 1) / ranks + ranks * smallest
    return reduced / ranks, bounds


@dataclass(frozen=True)
class Expected:
    """What a rank's receive buffer must hold."""

    values: Array  # buffer elements, or float64 where there is a tolerance
    tolerance: npt.NDArray[np.float64] | None = None  # None: to the bit


@dataclass(frozen=True)
class Problem:
    """One collective over known data. All methods agree between ranks without any communication."""

    kind: CollectiveKind
    element: ElementType
    operation: str
    ranks: int
    root: int
    elements: int  # of the row: see CollectiveKind.shape

    def shape(self, rank: int) -> Shape:
        return self.kind.shape(self.elements, self.ranks, rank)

    def input(self, rank: int) -> Array:
        """The send buffer of `rank`."""
        return _tile(self._encoded(rank), 0, self.shape(rank).send)

    def expected(self, rank: int) -> Expected | None:
        """None: this rank receives nothing that the collective defines."""
        share = self.elements // self.ranks
        name = self.kind.name
        if name == "barrier" or (name in ("reduce", "gather") and rank != self.root):
            return None
        if self.kind.reduces:
            start = rank * share if name == "reduce_scatter" else 0
            return self._reduced(start, self.shape(rank).receive)
        if name in ("all_gather", "gather"):
            return Expected(np.concatenate([_tile(self._encoded(peer), 0, share) for peer in range(self.ranks)]))
        if name == "alltoall":
            start = rank * share
            return Expected(np.concatenate([_tile(self._encoded(peer), start, share) for peer in range(self.ranks)]))
        if name == "scatter":
            return Expected(_tile(self._encoded(self.root), rank * share, share))
        source = (rank - 1) % self.ranks if name == "sendrecv" else self.root
        return Expected(_tile(self._encoded(source), 0, self.elements))

    def _encoded(self, rank: int) -> Array:
        return self.element.encode(_pattern(self.element, self.operation, self.ranks, rank))

    def _reduced(self, start: int, count: int) -> Expected:
        values, bounds = _reduced_pattern(self.element, self.operation, self.ranks)
        return Expected(_tile(values, start, count), None if bounds is None else _tile(bounds, start, count))

    def wrong(self, rank: int, received: Array) -> int:
        """How many elements of the receive buffer of `rank` differ from what they must be."""
        expected = self.expected(rank)
        if expected is None:
            return 0
        if expected.tolerance is None:
            return int(np.count_nonzero(received != expected.values))
        # Not "greater than": a NaN must count as wrong.
        close = np.abs(self.element.decode(received) - expected.values) <= expected.tolerance
        return int(close.size - np.count_nonzero(close))
