"""Where the buffers of a sweep are: host memory, or a GPU's. Values go in and come out as NumPy arrays."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from theseus_py.perf.values import Array

_SPOILT = 0xA5


class Memory(Protocol):
    """Buffers are of one axis, and slices of them are buffers. What is queued on them comes before what follows."""

    @property
    def stream(self) -> int:
        """What calls are queued on; 0 on host memory, where nobody looks at it."""

    def zeros(self, count: int, storage: str) -> Any:
        """A buffer of `count` elements of a NumPy type."""

    def reuse(self) -> None:
        """Buffers made so far are used no more."""

    def address(self, buffer: Any) -> int: ...

    def write(self, buffer: Any, values: Array) -> None: ...

    def spoil(self, buffer: Any) -> None:
        """Fill it, so that what is never written cannot pass for a result."""

    def read(self, buffer: Any) -> Array: ...

    def settle(self) -> None:
        """Wait until all that was queued is done."""

    def describe(self) -> dict[str, Any]:
        """The fields `ordinal`, `bus` and `device` of a RankPlace."""


class HostMemory:
    """NumPy arrays."""

    stream = 0

    def zeros(self, count: int, storage: str) -> Any:
        return np.zeros(count, storage)

    def reuse(self) -> None:
        """Those that are used no more go by themselves."""

    def address(self, buffer: Any) -> int:
        return int(buffer.ctypes.data)

    def write(self, buffer: Any, values: Array) -> None:
        buffer[:] = values

    def spoil(self, buffer: Any) -> None:
        buffer.view(np.uint8)[:] = _SPOILT

    def read(self, buffer: Any) -> Array:
        return np.asarray(buffer)

    def settle(self) -> None:
        """Calls return when they are done."""

    def describe(self) -> dict[str, Any]:
        return {}


class GpuMemory:
    """Arrays in the memory of one GPU, and a stream of their own.

    Nothing is given back before the end: that waits for all work of the GPU, of ranks too that wait for this one.
    """

    def __init__(self, ordinal: int) -> None:
        from theseus_py import device

        self._device = device
        self._ordinal = ordinal
        self._stream = device.Stream(ordinal)
        self.stream = self._stream.handle
        self._blocks: list[device.Array] = []  # of bytes, in the order of their first use
        self._used = 0
        self._outgrown: list[device.Array] = []

    def zeros(self, count: int, storage: str) -> Any:
        size = count * np.dtype(storage).itemsize
        if self._used == len(self._blocks):
            self._blocks.append(self._device.empty(size, np.uint8, self._ordinal))
        elif self._blocks[self._used].size < size:
            self._outgrown.append(self._blocks[self._used])
            self._blocks[self._used] = self._device.empty(size, np.uint8, self._ordinal)
        block = self._blocks[self._used]
        self._used += 1
        return block[:size].view(storage).fill_bytes(0, self.stream)

    def reuse(self) -> None:
        self._used = 0

    def address(self, buffer: Any) -> int:
        return int(buffer.address)

    def write(self, buffer: Any, values: Array) -> None:
        buffer.copy_from(values, self.stream)

    def spoil(self, buffer: Any) -> None:
        buffer.fill_bytes(_SPOILT, self.stream)

    def read(self, buffer: Any) -> Array:
        values: Array = buffer.numpy(self.stream)
        return values

    def settle(self) -> None:
        self._stream.synchronize()

    def describe(self) -> dict[str, Any]:
        gpu = self._device.describe(self._ordinal)
        return {"ordinal": gpu.ordinal, "bus": gpu.pci, "device": gpu.name}


def memory_of(device: int | None) -> Memory:
    """The memory that a communicator works on: `Communicator.device`."""
    return HostMemory() if device is None else GpuMemory(device)
