"""Tensors as the runtime sees them: element types, reductions, and contiguous memory to read from and write to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp

from theseus_py.dtypes import DataType, RedOp

Finish = Callable[[], None]


class Wire(NamedTuple):
    """How elements travel: each as `parts` elements of the runtime's type `code`."""

    code: int
    parts: int


# The types that the runtime can add, as plain ints: this table is on the path of every small call.
NUMBERS: dict[torch.dtype, int] = {
    torch.int8: int(DataType.INT8),
    torch.uint8: int(DataType.UINT8),
    torch.int32: int(DataType.INT32),
    torch.int64: int(DataType.INT64),
    torch.float16: int(DataType.FLOAT16),
    torch.float32: int(DataType.FLOAT32),
    torch.float64: int(DataType.FLOAT64),
    torch.bfloat16: int(DataType.BFLOAT16),
    torch.float8_e4m3fn: int(DataType.FLOAT8E4M3),
    torch.float8_e5m2: int(DataType.FLOAT8E5M2),
}
for _name, _type in (("uint32", DataType.UINT32), ("uint64", DataType.UINT64)):
    if hasattr(torch, _name):
        NUMBERS[getattr(torch, _name)] = int(_type)

_COMPLEX = {torch.complex64: int(DataType.FLOAT32), torch.complex128: int(DataType.FLOAT64)}

# torch's reductions that the runtime has; others are built from them (BITWISE) or refused.
REDUCTIONS: dict[Any, int] = {
    ReduceOp.SUM: int(RedOp.SUM),
    ReduceOp.PRODUCT: int(RedOp.PROD),
    ReduceOp.MAX: int(RedOp.MAX),
    ReduceOp.MIN: int(RedOp.MIN),
    ReduceOp.AVG: int(RedOp.AVG),
}
# The same by hash(options.reduceOp), which is the operation's number: far faster than to make and hash its enum value.
REDUCTION_BY_HASH: dict[int, int] = {hash(ReduceOp(kind)): number for kind, number in REDUCTIONS.items()}
BITWISE: dict[Any, Callable[..., torch.Tensor]] = {
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}
_FOR_BOOL = {
    int(RedOp.SUM): int(RedOp.MAX),
    int(RedOp.MAX): int(RedOp.MAX),
    int(RedOp.PROD): int(RedOp.MIN),
    int(RedOp.MIN): int(RedOp.MIN),
}


def wire_for_moving(dtype: torch.dtype) -> Wire:
    """How elements that are only copied travel: any type can, if need be as bytes."""
    code = NUMBERS.get(dtype)
    if code is not None:
        return Wire(code, 1)
    if dtype in _COMPLEX:
        return Wire(_COMPLEX[dtype], 2)
    return Wire(int(DataType.UINT8), dtype.itemsize)


def wire_for_reducing(dtype: torch.dtype, op: int, what: str) -> tuple[Wire, int]:
    """How elements travel that are reduced with the runtime's `op`, and the reduction to ask for.

    bool stays 0 and 1: SUM is or, PRODUCT is and. Complex numbers are two reals, so only sums make sense.
    """
    code = NUMBERS.get(dtype)
    if code is not None:
        return Wire(code, 1), op
    if dtype == torch.bool:
        if op not in _FOR_BOOL:
            raise ValueError(f"{what}: bool tensors can be reduced by SUM, PRODUCT, MAX, MIN, BAND, BOR and BXOR only")
        return Wire(int(DataType.UINT8), 1), _FOR_BOOL[op]
    if dtype in _COMPLEX:
        if op not in (RedOp.SUM, RedOp.AVG):
            raise ValueError(f"{what}: complex tensors can be reduced by SUM and AVG only")
        return Wire(_COMPLEX[dtype], 2), op
    raise ValueError(f"{what}: {dtype} cannot be reduced; convert the tensor, to torch.int32 for instance")


def check(tensor: torch.Tensor, what: str) -> None:
    """Refuse what is no dense tensor in host memory."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{what}: expected a tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise ValueError(f"{what}: {tensor.layout} tensors are not supported; convert with to_dense()")
    if not tensor.is_cpu:
        raise ValueError(f"{what}: the tensor is on {tensor.device}; the theseus backend takes CPU tensors")


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether memory and value are the same thing: contiguous, and no conjugation or negation left to be done."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def readable(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """Return contiguous memory that holds the value of `tensor`: itself where it can be, else a copy."""
    check(tensor, what)
    if is_plain(tensor):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _target(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """Refuse what a result cannot be written to."""
    check(tensor, what)
    if any(stride == 0 and extent > 1 for stride, extent in zip(tensor.stride(), tensor.shape, strict=True)):
        raise ValueError(f"{what}: the tensor is expanded, several of its elements share memory; clone() it first")
    return tensor


def writable(tensor: torch.Tensor, what: str, *, reads: bool) -> tuple[torch.Tensor, Finish | None]:
    """Return contiguous memory for a result, and what to do when the result is there (None: nothing).

    `reads`: the call also reads the memory, so a copy must start with the tensor's value.
    """
    if is_plain(_target(tensor, what)):
        return tensor, None
    target = tensor.detach()
    if reads:
        memory = target.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    else:
        memory = torch.empty(target.shape, dtype=target.dtype)

    def copy_back() -> None:
        target.copy_(memory)

    return memory, copy_back


def flatten(tensors: Sequence[torch.Tensor], what: str) -> torch.Tensor:
    """Return all tensors, one after the other, in fresh contiguous memory."""
    for tensor in tensors:
        check(tensor, what)
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).resolve_conj().resolve_neg()


def unflatten(flat: torch.Tensor, tensors: Sequence[torch.Tensor], what: str) -> Finish:
    """Return the action that copies the parts of `flat`, in order, to `tensors`."""
    targets = [_target(tensor, what).detach() for tensor in tensors]

    def copy_back() -> None:
        start = 0
        for target in targets:
            part = flat[start : start + target.numel()]
            target.copy_(part.view(target.shape))
            start += target.numel()

    return copy_back


def same_dtype(tensors: Sequence[torch.Tensor], what: str) -> torch.dtype:
    """Return the element type that all tensors share; refuse a mixture."""
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) != 1:
        raise ValueError(f"{what}: the tensors differ in type: {', '.join(sorted(map(str, dtypes)))}")
    return dtypes.pop()
