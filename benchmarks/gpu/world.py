"""Ranks as communicators of one process that one thread drives: ours, or the real NCCL's."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from benchmarks.gpu.data import Case, fill, wrong_elements
from theseus_py import Communicator, _core, device, group, init_all
from theseus_py.dtypes import Collective, DataType

_FLOAT, _SUM = int(DataType.FLOAT32), 0


class Refused(RuntimeError):
    """A library said that it cannot do this; the text is its own."""


class World(Protocol):
    """Rank r works on `devices[r]`, and its calls are queued on `streams[r]`."""

    devices: Sequence[int]
    streams: list[device.Stream]

    def call(self, case: Case, rank: int, send: int, receive: int) -> None: ...
    def run(self, calls: Callable[[], None]) -> None:
        """The calls of all ranks as one group."""

    def ready(self) -> None:
        """Wait for what is made in the background for calls like those before."""

    def close(self) -> None: ...


class OurWorld:
    """theseus_py's."""

    def __init__(self, devices: Sequence[int]) -> None:
        self.devices = devices
        self.streams = [device.Stream(ordinal) for ordinal in devices]
        self.communicators: list[Communicator] = init_all(len(devices), devices)

    def call(self, case: Case, rank: int, send: int, receive: int) -> None:
        stream = self.streams[rank].handle
        core = self.communicators[rank]._core
        if case.collective == "sendrecv":
            self._exchange(case, rank, send, receive)
        else:
            name = "ALL_TO_ALL" if case.collective == "alltoall" else case.collective.upper()
            number = int(Collective[name])
            core.run_plan(0, number, send, receive, case.shape(rank).count, _FLOAT, _SUM, case.root, stream)

    def _exchange(self, case: Case, rank: int, send: int, receive: int) -> None:
        communicator, stream = self.communicators[rank], self.streams[rank]
        communicator.send(_At(send, case.elements), (rank + 1) % case.ranks, stream=stream)
        communicator.recv(_At(receive, case.elements), (rank - 1) % case.ranks, stream=stream)

    def run(self, calls: Callable[[], None]) -> None:
        with group():
            calls()

    def ready(self) -> None:
        for ordinal in sorted(set(self.devices)):
            _core.settle_kernels(device.driver(), ordinal)

    def close(self) -> None:
        for communicator in self.communicators:
            communicator.abort()


class _At:
    """float32 elements at an address."""

    def __init__(self, address: int, elements: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (elements,),
            "typestr": "<f4",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


# name of NCCL's function and its arguments after (send, receive): count, type, then what the letters say
_NCCL = {
    "all_reduce": ("ncclAllReduce", "o"),
    "all_gather": ("ncclAllGather", ""),
    "reduce_scatter": ("ncclReduceScatter", "o"),
    "broadcast": ("ncclBroadcast", "r"),
    "reduce": ("ncclReduce", "or"),
    "alltoall": ("ncclAlltoAll", ""),
    "gather": ("ncclGather", "r"),
    "scatter": ("ncclScatter", "r"),
}


class NcclWorld:
    """The real NCCL's, found as the library finds it for THESEUS_FALLBACK."""

    def __init__(self, devices: Sequence[int]) -> None:
        self.path, self.version = _core.find_nccl()
        self._nccl = ctypes.CDLL(self.path)
        self._nccl.ncclGetErrorString.restype = ctypes.c_char_p
        if hasattr(self._nccl, "ncclGetLastError"):
            self._nccl.ncclGetLastError.restype = ctypes.c_char_p
        self.devices = devices
        self.streams = [device.Stream(ordinal) for ordinal in devices]
        self._handles = (ctypes.c_void_p * len(devices))()
        self._call("ncclCommInitAll", self._handles, len(devices), (ctypes.c_int * len(devices))(*devices))

    def _call(self, name: str, *arguments: Any) -> None:
        if not hasattr(self._nccl, name):
            raise Refused(f"NCCL {self.version} has no {name}")
        code = getattr(self._nccl, name)(*arguments)
        if code == 0:
            return
        why = (self._nccl.ncclGetErrorString(code) or b"").decode()
        last = self._nccl.ncclGetLastError(None) if hasattr(self._nccl, "ncclGetLastError") else None
        raise Refused(f"{name}: {why}{'; ' + last.decode() if last else ''}")

    def call(self, case: Case, rank: int, send: int, receive: int) -> None:
        count = ctypes.c_size_t(case.shape(rank).count)
        end = [ctypes.c_void_p(each) for each in (self._handles[rank], self.streams[rank].handle)]
        if case.collective == "sendrecv":
            after, before = (rank + 1) % case.ranks, (rank - 1) % case.ranks
            self._call("ncclSend", ctypes.c_void_p(send), count, _FLOAT, after, *end)
            self._call("ncclRecv", ctypes.c_void_p(receive), count, _FLOAT, before, *end)
            return
        name, more = _NCCL[case.collective]
        extra = [{"o": _SUM, "r": case.root}[letter] for letter in more]
        self._call(name, ctypes.c_void_p(send), ctypes.c_void_p(receive), count, _FLOAT, *extra, *end)

    def run(self, calls: Callable[[], None]) -> None:
        self._call("ncclGroupStart")
        try:
            calls()
        finally:
            self._call("ncclGroupEnd")

    def ready(self) -> None:
        """Nothing is."""

    def close(self) -> None:
        for handle in self._handles:
            self._nccl.ncclCommAbort(ctypes.c_void_p(handle))


class Buffers:
    """Send and receive buffers of all ranks, for every case that is not larger than the largest."""

    def __init__(self, world: World, cases: Sequence[Case]) -> None:
        self._world = world
        self.send, self.receive = [], []
        for rank, ordinal in enumerate(world.devices):
            shapes = [case.shape(rank) for case in cases]
            self.send.append(device.empty(max(shape.send for shape in shapes), "float32", ordinal))
            self.receive.append(device.empty(max(shape.receive for shape in shapes), "float32", ordinal))
            fill(self.send[rank], rank, world.streams[rank])
            world.streams[rank].synchronize()

    def launch(self, case: Case) -> None:
        """One call of every rank."""

        def calls() -> None:
            for rank in range(case.ranks):
                self._world.call(case, rank, self.send[rank].address, self.receive[rank].address)

        self._world.run(calls)

    def settle(self) -> None:
        for stream in self._world.streams:
            stream.synchronize()

    def wrong(self, case: Case) -> int:
        """Runs once on receive buffers full of rubbish; wrong elements of all ranks."""
        parts = [self.receive[rank][: case.shape(rank).receive] for rank in range(case.ranks)]
        for part, stream in zip(parts, self._world.streams, strict=True):
            part.fill_bytes(0xA5, stream)
        self.settle()
        self.launch(case)
        self.settle()
        streams = self._world.streams
        return sum(wrong_elements(case, rank, part, streams[rank]) for rank, part in enumerate(parts))

    def seconds(self, case: Case, patience: float) -> float:
        """Of one call: the mean over as many as fit into `patience`, 3 to 200, queued one behind the other."""
        self.launch(case)
        self.settle()
        self._world.ready()
        start = time.perf_counter()
        self.launch(case)
        self.settle()
        once = max(time.perf_counter() - start, 1e-6)
        times = min(200, max(3, int(patience / once)))
        start = time.perf_counter()
        for _ in range(times):
            self.launch(case)
        self.settle()
        return (time.perf_counter() - start) / times
