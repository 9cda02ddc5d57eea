"""Element types are recognised however they are spelled, and scalars are encoded as the runtime reads them."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from theseus_py.dtypes import DataType, data_type, encode_scalar, numpy_dtype, size_of
from theseus_py.errors import InvalidArgument


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        (DataType.INT8, DataType.INT8),
        ("int8", DataType.INT8),
        ("float32", DataType.FLOAT32),
        ("bfloat16", DataType.BFLOAT16),
        ("torch.float16", DataType.FLOAT16),
        ("float8_e4m3fn", DataType.FLOAT8E4M3),
        ("float8_e5m2", DataType.FLOAT8E5M2),
        (np.float64, DataType.FLOAT64),
        (np.dtype("u4"), DataType.UINT32),
        (np.int64, DataType.INT64),
    ],
)
def test_spellings(spelling: Any, expected: DataType) -> None:
    assert data_type(spelling) is expected


@pytest.mark.parametrize("spelling", ["complex64", "bool", "float33", np.int16, object])
def test_what_is_not_one_of_them_is_named(spelling: Any) -> None:
    with pytest.raises(InvalidArgument, match="not one of int8"):
        data_type(spelling)


def test_torch_spellings() -> None:
    torch = pytest.importorskip("torch")
    assert data_type(torch.bfloat16) is DataType.BFLOAT16
    assert data_type(torch.float8_e5m2) is DataType.FLOAT8E5M2
    assert data_type(torch.int64) is DataType.INT64


def test_sizes_are_numpys() -> None:
    for kind in DataType:
        if kind <= DataType.FLOAT64:
            assert size_of(kind) == numpy_dtype(kind).itemsize


def test_scalars_are_one_element_in_memory_order() -> None:
    assert encode_scalar(0.5, DataType.FLOAT32) == struct.pack("<f", 0.5)
    assert encode_scalar(-3, DataType.INT64) == struct.pack("<q", -3)


def test_bfloat16_scalar_is_the_upper_half_of_a_float32() -> None:
    pytest.importorskip("torch")
    assert encode_scalar(1.5, DataType.BFLOAT16) == struct.pack("<f", 1.5)[2:]
