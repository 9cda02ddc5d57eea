"""torch's ReduceOp in the runtime's terms."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch.distributed import ReduceOp

from theseus_py import _core
from theseus_py.dtypes import DataType, RedOp, encode_scalar
from theseus_py.torch.tensors import BITWISE, REDUCTIONS, Wire, wire_for_reducing


@dataclass(frozen=True)
class Reduction:
    """How one reduction of one element type runs.

    `local` set: the runtime only moves the data, and `local` reduces it here, in rank order, so the same on all ranks.
    `factor` set: every input of this rank is multiplied by it first.
    """

    wire: Wire
    op: int
    local: Callable[..., torch.Tensor] | None = None
    factor: float | None = None

    @classmethod
    def of(cls, op: Any, dtype: torch.dtype, what: str) -> Reduction:
        """Raises ValueError for what makes no sense, such as the maximum of complex numbers."""
        kind = getattr(op, "op", op)
        if kind in BITWISE:
            if dtype.is_floating_point or dtype.is_complex:
                raise ValueError(f"{what}: {_name(kind)} needs integer or bool tensors, not {dtype}")
            return cls(Wire(int(DataType.UINT8), 1), 0, BITWISE[kind])
        if kind == ReduceOp.PREMUL_SUM:
            wire, native = wire_for_reducing(dtype, int(RedOp.SUM), what)
            if dtype == torch.bool or dtype.is_complex:
                raise ValueError(f"{what}: PREMUL_SUM needs real numbers, not {dtype}")
            return cls(wire, native, factor=_factor(op, what))
        if kind not in REDUCTIONS:
            raise ValueError(f"{what}: the theseus backend has no reduction {_name(kind)}")
        wire, native = wire_for_reducing(dtype, REDUCTIONS[kind], what)
        return cls(wire, native)

    @contextlib.contextmanager
    def native(self, core: _core.Communicator) -> Iterator[int]:
        """Yield the number of the runtime's reduction; it has to live only until the call is made."""
        if self.factor is None:
            yield self.op
            return
        handle = core.create_premulsum(self.wire.code, encode_scalar(self.factor, DataType(self.wire.code)))
        try:
            yield handle
        finally:
            core.destroy_op(handle)

    def reduce_locally(self, rows: torch.Tensor) -> torch.Tensor:
        """Reduce the rows of a matrix, one per rank."""
        assert self.local is not None
        return reduce(self.local, rows.unbind(0))


def _name(kind: Any) -> str:
    return str(kind).rpartition(".")[2]


def _factor(op: Any, what: str) -> float:
    factor = op.factor
    if isinstance(factor, torch.Tensor):
        if factor.numel() != 1:
            raise ValueError(f"{what}: PREMUL_SUM takes one factor, not {factor.numel()}")
        return float(factor.item())
    return float(factor)
