"""What every collective must give, in plain NumPy: the 12 element types, the reductions, and who gets what.

Elements are kept as stored (bfloat16 as uint16, both fp8 as uint8) and computed in float64, so that a result is known
exactly wherever the data allow it: `draw_inputs(exact=True)` draws data whose every partial result is representable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AllToAll", "Gather", "Scatter")
REDUCING = ("AllReduce", "ReduceScatter", "Reduce")
ROOTED = ("Broadcast", "Reduce", "Gather", "Scatter")
OPS = ("Sum", "Prod", "Max", "Min", "Avg", "PreMulSum")


@dataclass(frozen=True)
class ElementType:
    """An NCCL datatype: its number there, how it is stored, and its precision."""

    name: str
    number: int
    storage: type[Any]
    significant_bits: int = 0  # of a float, the hidden one included; 0: an integer
    largest: float = 0.0

    @property
    def is_float(self) -> bool:
        return self.significant_bits > 0

    @property
    def size(self) -> int:
        return np.dtype(self.storage).itemsize


TYPES = {
    each.name: each
    for each in (
        ElementType("int8", 0, np.int8),
        ElementType("uint8", 1, np.uint8),
        ElementType("int32", 2, np.int32),
        ElementType("uint32", 3, np.uint32),
        ElementType("int64", 4, np.int64),
        ElementType("uint64", 5, np.uint64),
        ElementType("float16", 6, np.float16, 11, 65504.0),
        ElementType("float32", 7, np.float32, 24, 3.4e38),
        ElementType("float64", 8, np.float64, 53, 1.7e308),
        ElementType("bfloat16", 9, np.uint16, 8, 3.38e38),
        ElementType("float8e4m3", 10, np.uint8, 4, 448.0),
        ElementType("float8e5m2", 11, np.uint8, 3, 57344.0),
    )
}


def _fp8_values(exponent_bits: int, mantissa_bits: int) -> Array:
    """The value of each of the 256 codes."""
    bias = 2 ** (exponent_bits - 1) - 1
    values = np.empty(256)
    for code in range(256):
        sign = -1.0 if code & 0x80 else 1.0
        exponent = (code & 0x7F) >> mantissa_bits
        mantissa = code & (2**mantissa_bits - 1)
        if exponent == 0:
            magnitude = mantissa * 2.0 ** (1 - bias - mantissa_bits)
        else:
            magnitude = (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)
        if exponent_bits == 4:  # e4m3 has one NaN, and no infinity
            special = np.nan if (code & 0x7F) == 0x7F else None
        else:
            special = (np.inf if mantissa == 0 else np.nan) if exponent == 31 else None
        values[code] = sign * (magnitude if special is None else special)
    return values


_FP8 = {"float8e4m3": _fp8_values(4, 3), "float8e5m2": _fp8_values(5, 2)}


def decode(stored: Array, kind: ElementType) -> Array:
    """Stored elements as numbers: float64 for floats, the integers themselves else."""
    if kind.name in _FP8:
        return _FP8[kind.name][stored]
    if kind.name == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64) if kind.is_float else stored


def encode(values: Array, kind: ElementType) -> Array:
    """Numbers as stored elements, rounded to nearest, ties to even."""
    values = np.asarray(values)
    if kind.name in _FP8:
        return _encode_fp8(values.astype(np.float64), _FP8[kind.name])
    if kind.name == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(values), np.uint16(0x7FC0), rounded).astype(np.uint16)
    return values.astype(kind.storage)


def _encode_fp8(values: Array, table: Array) -> Array:
    magnitudes = table[:128][np.isfinite(table[:128])]  # ascending, by code
    upper = np.clip(np.searchsorted(magnitudes, np.abs(values)), 1, len(magnitudes) - 1)
    lower = upper - 1
    to_lower, to_upper = np.abs(values) - magnitudes[lower], magnitudes[upper] - np.abs(values)
    codes = np.where((to_lower < to_upper) | ((to_lower == to_upper) & (lower % 2 == 0)), lower, upper)
    codes = np.where(np.isnan(values), 0x7F, codes)
    return (codes | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


@dataclass(frozen=True)
class Case:
    """One collective call, the same on all ranks but for its data, which `seed` gives."""

    collective: str
    kind: str
    count: int
    op: str = "Sum"
    root: int = 0
    in_place: bool = False
    send_shift: int = 0  # elements that the buffers lie off a 64-byte boundary
    recv_shift: int = 0
    exact: bool = True
    seed: int = 0

    @property
    def element(self) -> ElementType:
        return TYPES[self.kind]


def input_blocks(case: Case, ranks: int, rank: int) -> int:
    """Blocks of `count` elements that this rank's sendbuff holds; 0: it is not looked at."""
    if case.collective in ("ReduceScatter", "AllToAll"):
        return ranks
    if case.collective == "Scatter":
        return ranks if rank == case.root else 0
    if case.collective == "Broadcast":
        return 1 if rank == case.root else 0
    return 1


def output_blocks(case: Case, ranks: int, rank: int) -> int:
    """Blocks of `count` elements that this rank's recvbuff gets; 0: it is not touched."""
    if case.collective in ("AllGather", "AllToAll"):
        return ranks
    if case.collective == "Gather":
        return ranks if rank == case.root else 0
    if case.collective == "Reduce":
        return 1 if rank == case.root else 0
    return 1


def factor(rank: int) -> float:
    """This rank's factor of PreMulSum; exact in every type."""
    return (1.0, 2.0, 3.0)[rank % 3]


def draw_inputs(case: Case, ranks: int) -> list[Array]:
    """Each rank's input, as stored."""
    random = np.random.default_rng(case.seed)
    kind = case.element
    lengths = [case.count * input_blocks(case, ranks, rank) for rank in range(ranks)]
    if not kind.is_float:
        limits = np.iinfo(kind.storage)
        return [random.integers(limits.min, limits.max, n, kind.storage, endpoint=True) for n in lengths]
    if not case.exact:
        if case.op == "Prod":  # so that no product leaves the range of the narrowest type
            return [encode(random.uniform(0.5, 1.5, n) * random.choice([-1.0, 1.0], n), kind) for n in lengths]
        return [encode(random.standard_normal(n) * 4, kind) for n in lengths]
    return [encode(values, kind) for values in _exact_floats(case, kind, lengths, random)]


def _exact_floats(case: Case, kind: ElementType, lengths: list[int], random: np.random.Generator) -> list[Array]:
    """Data for which every order of the reduction gives the same, with nothing rounded."""
    if case.collective not in REDUCING or case.op in ("Max", "Min"):
        return [random.integers(-7, 8, n).astype(np.float64) for n in lengths]
    length = max(lengths, default=0)
    if case.op == "Prod":
        # Powers of two whose exponents stay small together: few ranks contribute more than a sign.
        exponents = _spread_over_ranks(len(lengths), length, 3, random)
        signs = random.choice([-1.0, 1.0], (len(lengths), length))
        return list(signs * 2.0**exponents)
    budget = 2**kind.significant_bits if case.op == "Sum" else 2**kind.significant_bits // 3
    return list(_spread_over_ranks(len(lengths), length, min(budget, 4096), random).astype(np.float64))


def _spread_over_ranks(ranks: int, length: int, budget: int, random: np.random.Generator) -> Array:
    """Integers whose magnitudes add up to `budget` at most over the ranks, element by element."""
    values = np.zeros((ranks, length), np.int64)
    left = np.full(length, budget)
    for rank in random.permutation(ranks):
        drawn = random.integers(0, np.maximum(1, left // 2) + 1)
        drawn = np.minimum(drawn, left)
        left -= drawn
        values[rank] = drawn * random.choice([-1, 1], length)
    return values


def reduce(case: Case, stored: list[Array], ranks: int) -> tuple[Array, Array]:
    """The reduction of `stored` over ranks, as numbers, and by how much a result may differ from it."""
    kind = case.element
    if not kind.is_float:
        return _reduce_integers(case, stored, ranks), np.zeros(len(stored[0]))
    values = np.stack([decode(each, kind) for each in stored])
    if case.op == "Avg":
        reciprocal = decode(encode(np.array([1.0 / ranks]), kind), kind)
        values = decode(encode(values * reciprocal, kind), kind)
    elif case.op == "PreMulSum":
        values = decode(encode(values * np.array([[factor(rank)] for rank in range(ranks)]), kind), kind)
    if case.op in ("Max", "Min"):
        return (np.fmax if case.op == "Max" else np.fmin).reduce(values, axis=0), np.zeros(values.shape[1])
    step = 2.0 ** (1 - kind.significant_bits)
    if case.op == "Prod":
        result = np.prod(values, axis=0)
        return result, np.zeros(len(result)) if case.exact else np.abs(result) * step * ranks + _smallest(kind)
    result, magnitude = np.sum(values, axis=0), np.sum(np.abs(values), axis=0)
    rounds = not case.exact or (case.op == "Avg" and ranks & (ranks - 1) != 0)
    return result, magnitude * step * ranks + _smallest(kind) if rounds else np.zeros(len(result))


def _smallest(kind: ElementType) -> float:
    """The step of the subnormals, a few times: what products that run out of exponents may lose."""
    return {"float16": 2.0**-22, "float8e4m3": 2.0**-6, "float8e5m2": 2.0**-13}.get(kind.name, 1e-36)


def _reduce_integers(case: Case, stored: list[Array], ranks: int) -> Array:
    """Wraps around in the element type; Avg divides that, cutting off towards zero."""
    values = np.stack(stored)
    storage = case.element.storage
    if case.op in ("Max", "Min"):
        reduced: Array = (np.maximum if case.op == "Max" else np.minimum).reduce(values, axis=0)
        return reduced
    with np.errstate(over="ignore"):
        if case.op == "Prod":
            return np.multiply.reduce(values, axis=0, dtype=storage)
        if case.op == "PreMulSum":
            values = values * np.array([[factor(rank)] for rank in range(ranks)]).astype(storage)
        total = np.add.reduce(values, axis=0, dtype=storage)
    if case.op != "Avg":
        return total
    quotient = np.abs(total.astype(object)) // ranks
    return np.where(total < 0, -quotient, quotient).astype(storage)


def expected(case: Case, inputs: list[Array], ranks: int) -> list[tuple[Array, Array]]:
    """Each rank's output as numbers, and the deviation allowed for each element."""
    kind, count = case.element, case.count

    def exactly(stored: Array) -> tuple[Array, Array]:
        return decode(stored, kind), np.zeros(len(stored))

    nothing = exactly(np.empty(0, kind.storage))

    def part(array: Array, index: int) -> Array:
        return array[index * count : (index + 1) * count]

    if case.collective in REDUCING:
        whole, tolerance = reduce(case, inputs, ranks)
        if case.collective == "AllReduce":
            return [(whole, tolerance)] * ranks
        if case.collective == "Reduce":
            return [(whole, tolerance) if rank == case.root else nothing for rank in range(ranks)]
        return [(part(whole, rank), part(tolerance, rank)) for rank in range(ranks)]
    if case.collective == "Broadcast":
        return [exactly(inputs[case.root])] * ranks
    if case.collective == "AllGather":
        return [exactly(np.concatenate(inputs))] * ranks
    if case.collective == "Gather":
        return [exactly(np.concatenate(inputs)) if rank == case.root else nothing for rank in range(ranks)]
    if case.collective == "Scatter":
        return [exactly(part(inputs[case.root], rank)) for rank in range(ranks)]
    return [exactly(np.concatenate([part(each, rank) for each in inputs])) for rank in range(ranks)]
