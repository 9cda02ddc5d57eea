"""Element types: the runtime's twelve, by number, and what NumPy and torch call them."""

from __future__ import annotations

import importlib
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from theseus_py.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Collective", "DataType", "RedOp", "data_type", "encode_scalar", "numpy_dtype", "size_of"]


class DataType(IntEnum):
    """Element types; the values are NCCL's ncclDataType_t."""

    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT8E4M3 = 10
    FLOAT8E5M2 = 11


class RedOp(IntEnum):
    """Reductions; the values are NCCL's ncclRedOp_t."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4


class Collective(IntEnum):
    """Collectives, as the runtime numbers them."""

    ALL_REDUCE = 0
    ALL_GATHER = 1
    REDUCE_SCATTER = 2
    BROADCAST = 3
    REDUCE = 4
    ALL_TO_ALL = 5
    GATHER = 6
    SCATTER = 7
    ALL_TO_ALL_V = 8
    SEND_RECV = 9
    BARRIER = 10


_SIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
_ALIASES = {
    "float8_e4m3fn": DataType.FLOAT8E4M3,
    "float8_e5m2": DataType.FLOAT8E5M2,
    "half": DataType.FLOAT16,
    "float": DataType.FLOAT32,
    "double": DataType.FLOAT64,
}
# NumPy has no such types of its own; the ml_dtypes package adds them.
_ML_DTYPES = {
    DataType.BFLOAT16: "bfloat16",
    DataType.FLOAT8E4M3: "float8_e4m3fn",
    DataType.FLOAT8E5M2: "float8_e5m2",
}


def size_of(dtype: DataType) -> int:
    """Bytes of one element."""
    return _SIZES[dtype]


def data_type(dtype: Any) -> DataType:
    """Return the DataType that `dtype` means: a DataType, a name ("bfloat16"), a NumPy or a torch dtype.

    Raises InvalidArgument for what cannot be reduced as one number (bool, complex, strings).
    """
    if isinstance(dtype, DataType):
        return dtype
    if isinstance(dtype, str):
        name = dtype
    elif type(dtype).__module__.partition(".")[0] == "torch":
        name = str(dtype)
    else:
        import numpy as np

        try:
            name = np.dtype(dtype).name
        except TypeError:
            name = str(dtype)
    name = name.removeprefix("torch.").lower()
    found = _ALIASES.get(name) or DataType.__members__.get(name.upper())
    if found is None:
        known = ", ".join(member.name.lower() for member in DataType)
        raise InvalidArgument(f"dtype {name!r} is not one of {known}")
    return found


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the NumPy dtype for what NumPy takes, a DataType, or a name; bfloat16 and float8 need ml_dtypes."""
    import numpy as np

    element: np.dtype[Any]
    if not isinstance(dtype, DataType):
        try:
            element = np.dtype(dtype)
        except TypeError:
            if not isinstance(dtype, str):
                raise
        else:
            return element
    kind = data_type(dtype)
    if kind not in _ML_DTYPES:
        element = np.dtype(kind.name.lower())
        return element
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError:
        raise InvalidArgument(f"NumPy has no {_ML_DTYPES[kind]}: install the package ml_dtypes") from None
    element = np.dtype(getattr(ml_dtypes, _ML_DTYPES[kind]))
    return element


def encode_scalar(value: float, dtype: DataType) -> bytes:
    """Return one element of `dtype` that holds `value`, in memory order. float8 needs ml_dtypes or torch."""
    import numpy as np

    if dtype not in _ML_DTYPES:
        return np.array(value, dtype=dtype.name.lower()).tobytes()
    try:
        return np.array(value, dtype=numpy_dtype(dtype)).tobytes()
    except InvalidArgument:
        pass
    try:
        import torch
    except ImportError:
        raise InvalidArgument(f"a {_ML_DTYPES[dtype]} scalar needs the package ml_dtypes or torch") from None
    tensor = torch.tensor([value], dtype=getattr(torch, _ML_DTYPES[dtype]))
    return tensor.view(torch.uint8).numpy().tobytes()
