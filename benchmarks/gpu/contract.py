"""The promises of the seam to CUDA (csrc/drivers/cuda/api.h), tried call by call on the driver at hand.

The same as tests/unit/drivers checks in C++, without GoogleTest: what a machine with a GPU needs is `make build` alone.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.gpu import contract_kernels, contract_work
from benchmarks.gpu.check import Check, code_of, expect, refused
from benchmarks.gpu.row import BAD, GOOD, LEFT_OUT, Row, shorten
from benchmarks.gpu.runner import ROOT
from theseus_py import _core, device


def devices(driver: _core.Driver) -> None:
    """Devices are counted, described, and apart; those that are not there are refused."""
    uuids = []
    for ordinal in range(driver.device_count):
        info = driver.device_info(ordinal)
        expect(info["ordinal"] == ordinal and info["name"] and info["pci"], f"described as {info}")
        expect(info["multiprocessors"] > 0 and info["memory_bytes"] > 0 and info["max_threads"] > 0, f"{info}")
        uuids.append(info["uuid"])
    expect(len(set(uuids)) == len(uuids), "two devices have one UUID")
    for ordinal in (-1, driver.device_count):
        refused(partial(driver.device_info, ordinal), "InvalidArgument")
        refused(partial(driver.allocate, ordinal, 1), "InvalidArgument")
        refused(partial(driver.create_stream, ordinal, False), "InvalidArgument")


def current_device(driver: _core.Driver) -> None:
    """The current device is the thread's, and calls that name another leave it."""
    last = driver.device_count - 1
    driver.set_current_device(last)
    driver.release(0, driver.allocate(0, 1))
    expect(driver.current_device() == last, f"device {driver.current_device()} instead of {last}")
    seen: list[int] = []
    other = threading.Thread(target=lambda: seen.append(driver.current_device()))
    other.start()
    other.join()
    expect(seen == [0], f"a new thread is on device {seen}")
    driver.set_current_device(0)


def allocations(driver: _core.Driver) -> None:
    """Memory is aligned to 256 bytes, apart, and given back once."""
    spans = []
    for size in (1, 255, 4097, 1 << 20):
        spans.append((driver.allocate(0, size), size))
    for at, size in spans:
        expect(at % 256 == 0, f"{at:#x} is not aligned")
        expect(all(at + size <= other or other + more <= at for other, more in spans if other != at), "they overlap")
    refused(lambda: driver.release(0, spans[3][0] + 256))
    for at, _ in spans:
        driver.release(0, at)
    refused(lambda: driver.release(0, spans[3][0]))
    driver.release(0, 0)


def out_of_memory(driver: _core.Driver) -> None:
    """An allocation that cannot be says how much was asked for."""
    refused(lambda: driver.allocate(0, 0), "InvalidArgument")
    text = refused(lambda: driver.allocate(0, 1 << 50), "UnhandledCudaError")
    expect("out of memory" in text and str(1 << 50) in text, text)


def pointers(driver: _core.Driver) -> None:
    """Pointers are told: device, pinned, neither; the base and the length of the allocation."""
    memory = driver.allocate(0, 10000)
    for offset in (0, 1, 9999):
        info = driver.pointer_info(memory + offset)
        expect(info["kind"] == "device" and info["ordinal"] == 0 and info["base"] == memory, f"device: {info}")
        expect(info["bytes"] >= 10000 and info["exportable"], f"device: {info}")
    driver.release(0, memory)
    pinned = driver.allocate_pinned(5000)
    info = driver.pointer_info(pinned + 4999)
    expect(info["kind"] == "pinned" and info["base"] == pinned and not info["exportable"], f"pinned: {info}")
    driver.release_pinned(pinned)
    ordinary = np.zeros(100, np.uint8)
    for address in (ordinary.ctypes.data, 0):
        info = driver.pointer_info(address)
        expect(info["kind"] == "unregistered" and info["base"] == 0, f"ordinary: {info}")


def copies(driver: _core.Driver) -> None:
    """Copies go between device, pinned and ordinary memory; fills touch their bytes alone."""
    values = np.arange(3000, dtype=np.int32) * 7 + 1
    first = device.from_numpy(values, 0)
    second = device.empty(3000, np.int32, driver.device_count - 1)
    pinned = driver.allocate_pinned(values.nbytes)
    driver.copy(0, second.address, first.address, values.nbytes, 0)
    driver.copy(0, pinned, second.address, values.nbytes, 0)
    driver.synchronize_stream(0, 0)
    seen = np.frombuffer(memoryview((ctypes.c_char * values.nbytes).from_address(pinned)), np.int32)
    expect(bool((seen == values).all()), "pinned memory holds something else")
    expect(bool((second.numpy() == values).all()), "the second device holds something else")
    driver.release_pinned(pinned)
    filled = device.empty(1000, np.uint8, 0).fill_bytes(1)
    filled[3:503].fill_bytes(0xAB)
    whole = filled.numpy()
    expect(bool((whole[3:503] == 0xAB).all() and (whole[:3] == 1).all() and (whole[503:] == 1).all()), "a fill spilt")


def pinned_memory(driver: _core.Driver) -> None:
    """Memory that exists is pinned and let go again, and devices see it."""
    raw = np.zeros(3 * 4096, np.uint8)
    at = (raw.ctypes.data + 4095) // 4096 * 4096
    driver.register_host(at, 8192)
    expect(driver.pointer_info(at + 5000)["kind"] == "pinned", "it is not pinned")
    refused(lambda: driver.register_host(at, 8192))
    expect(driver.device_address(0, at) != 0, "devices see it nowhere")
    driver.unregister_host(at)
    expect(driver.pointer_info(at)["kind"] == "unregistered", "it is still pinned")
    refused(lambda: driver.unregister_host(at))
    refused(lambda: driver.allocate_pinned(0), "InvalidArgument")


def ipc_between_processes(driver: _core.Driver) -> None:
    """Another process reads and writes exported memory, at an offset."""
    memory = device.from_numpy((np.arange(10000) % 251).astype(np.uint8), 0)
    handle = driver.export_memory(memory.address + 5000)
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.ipc_child", handle.hex(), "5000"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=15,
    )
    expect(child.returncode == 0, shorten((child.stderr.strip().splitlines() or ["it said nothing"])[-1]))
    wanted = (np.arange(10000) % 251).astype(np.uint8)
    wanted[5000:5100] += 1
    expect(bool((memory.numpy() == wanted).all()), "what the other process wrote is not there")


def ipc_refusals(driver: _core.Driver) -> None:
    """Pinned and ordinary memory is not exported; garbage and one's own memory are not imported."""
    pinned = driver.allocate_pinned(100)
    refused(lambda: driver.export_memory(pinned), "InvalidArgument")
    driver.release_pinned(pinned)
    refused(lambda: driver.export_memory(0), "InvalidArgument")
    mine = device.empty(100, np.uint8, 0)
    handle = driver.export_memory(mine.address)
    refused(lambda: driver.import_memory(0, handle), "InvalidUsage")
    refused(lambda: driver.import_memory(0, b"\xff" * 64))


def peers(driver: _core.Driver) -> None:
    """A device reaches itself; of others it is known whether they can be reached, and copies go there."""
    expect(driver.can_access_peer(0, 0), "device 0 does not reach itself")
    driver.enable_peer(0, 0)
    for other in range(1, driver.device_count):
        if not driver.can_access_peer(0, other):
            refused(partial(driver.enable_peer, 0, other), "UnhandledCudaError")
            continue
        driver.enable_peer(0, other)
        driver.enable_peer(0, other)
        there = device.from_numpy(np.arange(1000, dtype=np.int32), other)
        here = device.empty(1000, np.int32, 0)
        driver.copy(0, here.address, there.address, 4000, 0)
        expect(bool((here.numpy() == np.arange(1000)).all()), f"a copy from device {other} is wrong")


def errors(driver: _core.Driver) -> None:
    """Failures carry the driver's own text, and do not spoil what follows."""
    text = refused(lambda: driver.load(0, b"\x07" * 1000))
    expect(len(text) > 10, f"it only says {text!r}")
    refused(lambda: driver.load(0, b""), "InvalidArgument")
    expect(code_of(lambda: driver.synchronize_stream(0, 0)) == "", "a refusal stayed behind")


GROUPS: dict[str, list[Check]] = {
    "devices": [devices, current_device],
    "memory": [allocations, out_of_memory, pointers, copies],
    "pinned memory": [pinned_memory],
    "ipc": [ipc_between_processes, ipc_refusals],
    "peers": [peers],
    "errors": [errors],
    **contract_work.GROUPS,
    **contract_kernels.GROUPS,
}


def run_group(group: str) -> Iterator[Row]:
    """The checks of one group, one row each."""
    driver = device.driver()
    for check in GROUPS[group]:
        yield _run(f"contract: {group}", check, driver)


def _run(part: str, check: Check, driver: _core.Driver) -> Row:
    what = (check.__doc__ or check.__name__).strip().rstrip(".")
    start = time.perf_counter()
    try:
        check(driver)
    except LookupError as missing:
        return Row(part, what, LEFT_OUT, note=shorten(str(missing.args[0])))
    except Exception as error:
        return Row(part, what, BAD, note=shorten(f"{type(error).__name__}: {error}"))
    return Row(part, what, GOOD, measured=f"{(time.perf_counter() - start) * 1e3:.1f} ms")


def run_tests(program: str, kind: str) -> Iterator[Row]:
    """The C++ tests of the seam on the same driver, where they were built (`make tests-build`)."""
    part = "contract: C++ tests"
    if not Path(program).exists():
        yield Row(part, "tests/unit/drivers", LEFT_OUT, note="not built here: `make tests-build` builds them")
        return
    command = [program, f"--gtest_filter=*/{kind}", "--gtest_color=no", "--gtest_brief=1"]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    passed = [line for line in lines if "PASSED" in line]
    failed = [line.split("]")[1].strip() for line in lines if line.startswith("[  FAILED  ]")]
    if done.returncode == 0:
        yield Row(part, "tests/unit/drivers", GOOD, measured=passed[-1].split("]")[1].strip() if passed else "")
    else:
        yield Row(part, "tests/unit/drivers", BAD, note=shorten(", ".join(failed) or f"exit code {done.returncode}"))
