"""GPUs without another package: arrays in their memory, and streams. THESEUS_DEVICE=cuda is for real ones, cuda-emu for
emulated ones.

    from theseus_py import Communicator, device

    with Communicator.from_env() as communicator:             # under THESEUS_DEVICE=cuda or cuda-emu
        data = device.from_numpy(np.full(4, communicator.rank, np.float32))
        communicator.all_reduce(data)                         # queued on the default stream
        print(data.numpy())                                   # waits for it

Arrays have `__cuda_array_interface__`, so that CuPy, numba and torch take them, as communicators take theirs.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from theseus_py import _core
from theseus_py.dtypes import numpy_dtype
from theseus_py.errors import InvalidArgument, InvalidUsage

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Array", "Device", "Stream", "count", "current", "describe", "empty", "from_numpy", "set_current"]


@dataclass(frozen=True)
class Device:
    """A GPU. `sm` is its compute capability (90 for 9.0), 0 for an emulated one."""

    ordinal: int
    name: str
    sm: int
    multiprocessors: int
    memory_bytes: int
    pci: str
    emulated: bool


def driver() -> _core.Driver:
    """Return the driver that THESEUS_DEVICE asks for. InvalidUsage on host memory, UnhandledCudaError without a GPU."""
    found = _core.gpu_driver()
    if found is None:
        raise InvalidUsage(
            "this process works on host memory: set THESEUS_DEVICE=cuda (cuda-emu for emulated GPUs) before it starts"
        )
    return found


def count() -> int:
    """How many GPUs this process sees; 0 on host memory."""
    found = _core.gpu_driver()
    return 0 if found is None else found.device_count


def describe(ordinal: int | None = None) -> Device:
    """Say what a GPU is; None: the calling thread's current one."""
    found = driver()
    info = found.device_info(current() if ordinal is None else ordinal)
    names = ("ordinal", "name", "sm", "multiprocessors", "memory_bytes", "pci")
    return Device(**{name: info[name] for name in names}, emulated=found.emulated)


def current() -> int:
    """Return the calling thread's GPU, as cudaSetDevice or set_current left it; 0 where it chose none."""
    return driver().current_device()


def set_current(ordinal: int) -> None:
    """Choose the calling thread's GPU, for what it makes from now on."""
    driver().set_current_device(ordinal)


def handle_of(stream: Any) -> int:
    """Return the number of a stream: an int, what has `__cuda_stream__`, torch's `cuda_stream`, CuPy's `ptr`.

    None, and the array interface's 1, are the default stream, 0.
    """
    if stream is None:
        return 0
    if not isinstance(stream, int):
        if hasattr(stream, "__cuda_stream__"):
            stream = stream.__cuda_stream__()[1]
        else:
            names = [name for name in ("cuda_stream", "ptr", "handle") if hasattr(stream, name)]
            if not names:
                raise InvalidArgument(f"{type(stream).__name__} is no stream: it has no __cuda_stream__")
            stream = getattr(stream, names[0])
    number = int(stream)
    return 0 if number == 1 else number


class Stream:
    """Work of a GPU in order, apart from other streams. Given back when it is collected; what is queued still runs."""

    def __init__(self, ordinal: int | None = None) -> None:
        """Make a stream on a GPU; None: the calling thread's current one."""
        self._driver = driver()
        self.device = current() if ordinal is None else ordinal
        self.handle = 0
        self.handle = self._driver.create_stream(self.device, False)

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol's version, and the handle."""
        return (0, self.handle)

    def synchronize(self) -> None:
        """Wait until all work queued so far is done."""
        self._driver.synchronize_stream(self.device, self.handle)

    def done(self) -> bool:
        """Whether all work queued so far is done. Never waits."""
        return self._driver.query_stream(self.device, self.handle)

    def __repr__(self) -> str:
        return f"<Stream {self.handle:#x} of GPU {self.device}>"

    def __del__(self) -> None:
        # An interpreter that is going down may have taken what this needs; the process's end frees the stream too.
        with contextlib.suppress(Exception):
            if self.handle:
                self._driver.destroy_stream(self.device, self.handle)


class _Memory:
    """Bytes of a GPU, given back with the last array over them; that waits for all work of the GPU."""

    def __init__(self, ordinal: int, size: int) -> None:
        self.driver = driver()
        self.device = ordinal
        self.at = 0
        self.at = self.driver.allocate(ordinal, max(size, 1))

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if self.at:
                self.driver.release(self.device, self.at)


class Array:
    """A C-ordered array in the memory of a GPU. Slices along the first axis, views and reshapes share its memory."""

    def __init__(self, memory: _Memory, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """For empty() and the methods below."""
        self._memory = memory
        self._offset = offset
        self.shape = shape
        self.dtype = dtype

    @property
    def device(self) -> int:
        """The GPU's number in this process."""
        return self._memory.device

    @property
    def address(self) -> int:
        """Where the array begins, in the GPU's memory."""
        return self._memory.at + self._offset

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return self.size * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the protocol; no stream is named, as there may be several."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "data": (self.address, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<Array {self.shape} of {self.dtype} on GPU {self.device}>"

    def __getitem__(self, part: slice) -> Array:
        """A run of the first axis, without a step: array[2:5]."""
        if not isinstance(part, slice) or part.step not in (None, 1) or not self.shape:
            raise InvalidArgument("an array of a GPU takes slices of the first axis without a step, such as array[2:5]")
        start, stop, _ = part.indices(self.shape[0])
        rows = max(0, stop - start)
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        return Array(self._memory, self._offset + start * row_bytes, (rows, *self.shape[1:]), self.dtype)

    def reshape(self, *shape: int) -> Array:
        """The same elements under another shape."""
        if math.prod(shape) != self.size:
            raise InvalidArgument(f"{self.size} elements cannot take the shape {shape}")
        return Array(self._memory, self._offset, shape, self.dtype)

    def view(self, dtype: Any) -> Array:
        """The same bytes as one axis of elements of another type."""
        element = numpy_dtype(dtype)
        if self.nbytes % element.itemsize != 0:
            raise InvalidArgument(f"{self.nbytes} bytes are no whole number of {element}")
        return Array(self._memory, self._offset, (self.nbytes // element.itemsize,), element)

    def copy_from(self, values: npt.ArrayLike, stream: Any = None) -> Array:
        """Copy host values of this shape in, in stream order; returns when that is done."""
        import numpy as np

        host = np.asarray(values, self.dtype, order="C")
        if host.shape != self.shape:
            raise InvalidArgument(f"copy_from: the values have the shape {host.shape}, the array {self.shape}")
        self._copy(self.address, host.ctypes.data, handle_of(stream))
        return self

    def numpy(self, stream: Any = None) -> np.ndarray[Any, Any]:
        """Return a copy in host memory, taken in stream order; waits for it."""
        import numpy as np

        host = np.empty(self.shape, self.dtype)
        self._copy(host.ctypes.data, self.address, handle_of(stream))
        return host

    def fill_bytes(self, value: int, stream: Any = None) -> Array:
        """Set every byte to `value`, in stream order, without waiting."""
        if self.nbytes:
            self._memory.driver.fill(self.device, self.address, value, self.nbytes, handle_of(stream))
        return self

    def _copy(self, to: int, source: int, stream: int) -> None:
        if self.nbytes:
            self._memory.driver.copy(self.device, to, source, self.nbytes, stream)
        self._memory.driver.synchronize_stream(self.device, stream)


def empty(shape: int | tuple[int, ...], dtype: Any = "float32", ordinal: int | None = None) -> Array:
    """Return an uninitialised array on a GPU; None: the calling thread's current one.

    `dtype` is anything NumPy takes, or a name such as "bfloat16" (needs ml_dtypes). UnhandledCudaError where the memory
    is not there.
    """
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(extent < 0 for extent in extents):
        raise InvalidArgument(f"empty: shape {extents} has a negative extent")
    element = numpy_dtype(dtype)
    if element.hasobject:
        raise InvalidArgument(f"empty: dtype {element} holds Python objects, which no GPU can read")
    device = current() if ordinal is None else ordinal
    return Array(_Memory(device, math.prod(extents) * element.itemsize), 0, extents, element)


def from_numpy(values: npt.ArrayLike, ordinal: int | None = None) -> Array:
    """Return a copy of host values on a GPU; None: the calling thread's current one."""
    import numpy as np

    host = np.asarray(values)
    return empty(host.shape, host.dtype, ordinal).copy_from(host)
