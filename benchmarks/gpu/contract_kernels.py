"""The contract's checks of compiler, modules and launches."""

from __future__ import annotations

import ctypes
import time
from functools import partial

import numpy as np

from benchmarks.gpu.check import Check, expect, refused
from benchmarks.gpu.contract_work import held
from benchmarks.gpu.kernels import ANSWER, NUMBER, RING, Kernel, words
from theseus_py import _core, device

_PATIENCE = 10.0


def modules(driver: _core.Driver) -> None:
    """Text becomes an image, an image a module; two modules of one kernel name stay apart."""
    first = Kernel.load(driver, 0, "number", NUMBER)
    second = Kernel.load(driver, 0, "number", NUMBER.replace("1000", "2000"))
    refused(lambda: driver.function(0, first.module, "missing"), "InvalidArgument")
    expect(driver.function_info(0, first.function)["max_threads"] >= 1, "no thread may run")
    expect(driver.occupancy(0, first.function, 1, 0) >= 1, "no block may run")
    out = device.from_numpy(np.zeros(2, np.uint32), 0)
    first.launch(1, 2, words(out.address))
    first.unload()
    second.launch(1, 2, words(out.address))
    expect(out.numpy().tolist() == [3000, 3002], f"{out.numpy()}")
    second.unload()


def compiler(driver: _core.Driver) -> None:
    """Wrong text is refused with its line; the compiler says who it is."""
    text = refused(lambda: Kernel.load(driver, 0, "x", "\n\nthis is no C++"), "InvalidArgument")
    expect("check.cu" in text and "3" in text, text)
    expect(bool(driver.compiler_identity(0)), "it says nothing")


def launches(driver: _core.Driver) -> None:
    """Every thread of the grid runs once, in stream order."""
    kernel = Kernel.load(driver, 0, "number", NUMBER)
    most = driver.device_info(0)["max_threads"]
    for grid, block in ((1, 1), (5, 1), (4, min(33, most)), (16, min(2, most))):
        out = device.from_numpy(np.full(grid * block, 5, np.uint32), 0)
        kernel.launch(grid, block, words(out.address))
        wanted = np.arange(grid * block) + 5 + 1000 * grid
        expect(bool((out.numpy() == wanted).all()), f"{grid} x {block}: {out.numpy()[:4]}")
    stream = device.Stream(0)
    out = device.from_numpy(np.zeros(1, np.uint32), 0)
    with held(driver, stream.handle):
        kernel.launch(1, 1, words(out.address), stream.handle)
        expect(not stream.done(), "the launch did not wait for the stream")
    expect(out.numpy(stream).tolist() == [1000], f"{out.numpy(stream)}")
    kernel.unload()


def wrong_launches(driver: _core.Driver) -> None:
    """Launches that cannot be are refused."""
    kernel = Kernel.load(driver, 0, "number", NUMBER)
    out = device.empty(1, np.uint32, 0)
    for grid, block in ((0, 1), (1, 0), (1, 100_000)):
        refused(partial(kernel.launch, grid, block, words(out.address)))
    refused(lambda: kernel.launch(1, 1, bytes(4097)))
    refused(lambda: driver.set_dynamic_shared(0, kernel.function, 1 << 30))
    driver.set_dynamic_shared(0, kernel.function, driver.device_info(0)["max_shared_bytes"])
    kernel.unload()


def cooperative(driver: _core.Driver) -> None:
    """Blocks of a cooperative launch run at once and wait for each other."""
    if not driver.device_info(0)["cooperative"]:
        raise LookupError("this device has no cooperative launches")
    kernel = Kernel.load(driver, 0, "ring", RING)
    out = device.from_numpy(np.zeros(8, np.uint32), 0)
    kernel.launch(8, 1, words(out.address), cooperative=True)
    expect(out.numpy().tolist() == [10] * 8, f"{out.numpy()}")
    kernel.unload()


def talk(driver: _core.Driver) -> None:
    """Host and kernel talk through flags in pinned memory while it runs."""
    kernel = Kernel.load(driver, 0, "answer", ANSWER)
    pinned = driver.allocate_pinned(12)
    flags = (ctypes.c_uint32 * 3).from_address(pinned)
    flags[:] = [0, 0, 41]
    stream = device.Stream(0)
    kernel.launch(1, 1, words(driver.device_address(0, pinned)), stream.handle)
    flags[0] = 1
    end = time.monotonic() + _PATIENCE
    while flags[1] == 0 and time.monotonic() < end:
        pass
    expect(flags[1] == 42, f"the kernel answered {flags[1]}")
    stream.synchronize()
    driver.release_pinned(pinned)
    kernel.unload()


GROUPS: dict[str, list[Check]] = {
    "modules": [modules, compiler],
    "launches": [launches, wrong_launches, cooperative, talk],
}
