"""What a communicator accepts as a buffer, and what it refuses, by name; nothing is ever copied or silently misread."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import theseus_py
from theseus_py import Communicator, create_unique_id, errors


@pytest.fixture(scope="module")
def alone() -> Iterator[Communicator]:
    with Communicator.init(create_unique_id(), 1, 0) as communicator:
        yield communicator


class ArrayInterface:
    """Nothing but __array_interface__."""

    def __init__(self, array: np.ndarray[Any, Any], **changes: Any) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, **changes}


class DLPack:
    """Nothing but DLPack, with or without versions."""

    def __init__(self, array: np.ndarray[Any, Any], *, versioned: bool) -> None:
        self.array = array
        self.versioned = versioned

    def __dlpack__(self, **options: Any) -> Any:
        if options and not self.versioned:
            raise TypeError("unexpected keyword argument")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def sources(values: np.ndarray[Any, Any]) -> list[Any]:
    return [
        values,
        memoryview(values),
        ArrayInterface(values),
        DLPack(values, versioned=False),
        DLPack(values, versioned=True),
    ]


@pytest.mark.parametrize("kind", range(5))
def test_every_kind_of_source_is_read_where_it_lies(alone: Communicator, kind: int) -> None:
    values = np.arange(6, dtype=np.float32)
    out = np.zeros(6, np.float32)
    alone.all_reduce(sources(values)[kind], out)
    np.testing.assert_array_equal(out, values)


@pytest.mark.parametrize("kind", range(5))
def test_every_kind_of_target_is_written_where_it_lies(alone: Communicator, kind: int) -> None:
    out = np.zeros(6, np.int64)
    alone.all_reduce(np.arange(6), sources(out)[kind])
    np.testing.assert_array_equal(out, np.arange(6))


def test_plain_buffers_are_bytes(alone: Communicator) -> None:
    out = bytearray(4)
    alone.all_reduce(b"\x01\x02\x03\xff", out)
    assert out == b"\x01\x02\x03\xff"
    numbers = (ctypes.c_double * 2)(1.5, 2.5)
    got = np.zeros(2)
    alone.all_reduce(numbers, got)
    assert got.tolist() == [1.5, 2.5]


def test_torch_tensors_of_every_type() -> None:
    torch = pytest.importorskip("torch")
    with Communicator.init(create_unique_id(), 1, 0) as alone:
        names = "int8 uint8 int32 int64 float16 float32 float64 bfloat16 float8_e4m3fn float8_e5m2 bool complex64"
        for name in names.split():
            source = torch.tensor([0, 1, 1, 0]).to(getattr(torch, name))
            target = torch.zeros_like(source)
            alone.all_reduce(source, target)
            assert target.tolist() == source.tolist(), name


def test_ml_dtypes_arrays() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with Communicator.init(create_unique_id(), 1, 0) as alone:
        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            source = np.array([1, 2, 3], dtype=getattr(ml_dtypes, name))
            target = np.zeros_like(source)
            alone.all_reduce(source, target)
            assert target.tolist() == source.tolist()


def refused(call: Any, *words: str) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[:, 0],
        lambda a: a.T,
        lambda a: a[::-1],
        lambda a: np.broadcast_to(a[0], (4, 3)),
        lambda a: np.asfortranarray(a),
    ],
    ids=["column", "transposed", "reversed", "broadcast", "fortran"],
)
def test_what_is_not_contiguous_is_refused(alone: Communicator, view: Any) -> None:
    array = view(np.arange(12, dtype=np.float32).reshape(4, 3))
    refused(lambda: alone.all_reduce(array, np.zeros(array.shape, np.float32)), "all_reduce", "send", "C-contiguous")
    interface = ArrayInterface(array)
    refused(lambda: alone.all_reduce(interface, np.zeros(array.shape, np.float32)), "C-contiguous")


def test_non_contiguous_torch_and_dlpack_are_refused(alone: Communicator) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(12.0).reshape(4, 3).t()
    refused(lambda: alone.all_reduce(tensor), "C-contiguous")
    refused(
        lambda: alone.all_reduce(DLPack(tensor.numpy(), versioned=True), np.zeros((3, 4), np.float32)), "contiguous"
    )


def test_read_only_targets_are_refused_and_stay_as_they_are(alone: Communicator) -> None:
    frozen = np.zeros(3, np.float32)
    frozen.setflags(write=False)
    for target in (frozen, ArrayInterface(frozen), memoryview(frozen)):
        refused(lambda target=target: alone.all_reduce(np.ones(3, np.float32), target), "recv", "read-only")
    refused(lambda: alone.all_reduce(frozen), "send", "read-only")
    refused(lambda: alone.broadcast(b"abc", root=0) or alone.recv(b"abc", 0), "recv", "read-only")
    assert frozen.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "array",
    [np.zeros(2, np.int16), np.zeros(2, ">f4"), np.zeros(2, "U3"), np.zeros(2, "M8[s]"), np.zeros(2, np.longdouble)],
    ids=["int16", "big-endian", "text", "time", "long double"],
)
def test_types_that_cannot_be_sent_are_refused_by_name(alone: Communicator, array: np.ndarray[Any, Any]) -> None:
    refused(lambda: alone.all_reduce(array, np.zeros_like(array)), "send", "cannot be sent")


@pytest.mark.parametrize("thing", [3, "text", [1.0, 2.0], None, object()])
def test_what_is_no_array_is_refused(alone: Communicator, thing: Any) -> None:
    refused(lambda: alone.all_reduce(thing, np.zeros(1)), "all_reduce", "send", "NumPy array")


def test_device_memory_is_refused(alone: Communicator) -> None:
    class OnDevice:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

        def __dlpack__(self, **_: Any) -> Any:
            raise AssertionError("must not be asked for")

    refused(lambda: alone.all_reduce(OnDevice(), np.zeros(1)), "only host memory", "__cuda_array_interface__")


def test_zero_elements_are_fine(alone: Communicator) -> None:
    for shape in ((0,), (1, 0, 2)):
        array = np.empty(shape, np.float32)
        alone.all_reduce(array)
        alone.all_gather(array, np.empty(shape, np.float32))
        alone.broadcast(array)


def test_empty_is_numpy_memory_that_outlives_its_views_only() -> None:
    array = theseus_py.empty((3, 4), "float64")
    assert array.shape == (3, 4)
    assert array.dtype == np.float64
    assert array.flags["C_CONTIGUOUS"] and array.flags["WRITEABLE"]
    array[:] = 7
    part = array[1]
    del array
    gc.collect()
    assert part.tolist() == [7, 7, 7, 7]
    assert theseus_py.empty(5, np.int32).shape == (5,)
    assert theseus_py.empty((2, 0)).shape == (2, 0)


def test_empty_refuses_nonsense() -> None:
    with pytest.raises(errors.InvalidArgument, match="negative"):
        theseus_py.empty((2, -1))
    with pytest.raises(errors.InvalidArgument, match="Python objects"):
        theseus_py.empty(2, object)
