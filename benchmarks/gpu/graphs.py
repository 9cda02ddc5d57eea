"""CUDA graphs, as a user of the library makes them: by libcuda's own calls, or the emulator's."""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

from theseus_py import _core

_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


class Graphs(Protocol):
    """Of one device."""

    def begin(self, stream: int) -> None: ...
    def end(self, stream: int) -> Any: ...
    def replay(self, graph: Any, stream: int) -> None: ...


class EmulatedGraphs:
    """Those of the emulator."""

    def __init__(self, driver: _core.Driver, ordinal: int) -> None:
        self._driver, self._ordinal = driver, ordinal

    def begin(self, stream: int) -> None:
        self._driver.begin_capture(self._ordinal, stream)

    def end(self, stream: int) -> Any:
        return self._driver.end_capture(self._ordinal, stream)

    def replay(self, graph: Any, stream: int) -> None:
        self._driver.replay(self._ordinal, graph, stream)


class CudaGraphs:
    """Those of libcuda.so.1, which the library has loaded. Graphs live until the process ends."""

    def __init__(self, driver: _core.Driver, ordinal: int) -> None:
        driver.set_current_device(ordinal)  # these calls need a context
        self._cuda = ctypes.CDLL("libcuda.so.1")

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'unknown').decode()} ({code})")

    def begin(self, stream: int) -> None:
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_int(_THREAD_LOCAL))

    def end(self, stream: int) -> Any:
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        return executable

    def replay(self, graph: Any, stream: int) -> None:
        self._call("cuGraphLaunch", graph, ctypes.c_void_p(stream))


def graphs_of(driver: _core.Driver, ordinal: int) -> Graphs:
    """The graphs of a device."""
    return EmulatedGraphs(driver, ordinal) if driver.emulated else CudaGraphs(driver, ordinal)
