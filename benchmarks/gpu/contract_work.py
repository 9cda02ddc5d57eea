"""The contract's checks of streams, events, host calls and graphs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from benchmarks.gpu.check import Check, expect, refused
from benchmarks.gpu.graphs import graphs_of
from theseus_py import _core, device

_PATIENCE = 10.0


@contextmanager
def held(driver: _core.Driver, stream: int) -> Iterator[None]:
    """Work of the stream waits until the block ends."""
    gate = threading.Event()
    driver.call_host(0, stream, lambda: gate.wait(_PATIENCE))
    try:
        yield
    finally:
        gate.set()


def order(driver: _core.Driver) -> None:
    """Work of a stream is in order."""
    stream = device.Stream(0)
    notes: list[int] = []
    for number in range(50):
        driver.call_host(0, stream.handle, partial(notes.append, number))
    stream.synchronize()
    expect(notes == list(range(50)), f"the order was {notes[:8]}")


def asynchronous(driver: _core.Driver) -> None:
    """Calls return before their work is done, and streams do not wait for each other."""
    waiting, free = device.Stream(0), device.Stream(0)
    memory, other = device.empty(100, np.uint8, 0), device.empty(100, np.uint8, 0)
    with held(driver, waiting.handle):
        memory.fill_bytes(5, waiting)
        expect(not waiting.done(), "the stream was done while it was held")
        other.fill_bytes(6, free)
        free.synchronize()
        expect(not waiting.done(), "the other stream waited for it")
    waiting.synchronize()
    expect(waiting.done() and bool((memory.numpy() == 5).all()), "the fill did not come")


def events(driver: _core.Driver) -> None:
    """An event is reached when the work before it is done; another stream waits for it, round after round."""
    first, second = device.Stream(0), device.Stream(0)
    event = driver.create_event(0, False)
    expect(driver.query_event(0, event), "an event that was never recorded is not done")
    memory, seen = device.empty(4, np.uint8, 0), device.empty(4, np.uint8, 0)
    for number in range(1, 11):
        with held(driver, first.handle):
            memory.fill_bytes(number, first)
            driver.record(0, event, first.handle)
            driver.wait(0, second.handle, event)
            driver.copy(0, seen.address, memory.address, 4, second.handle)
            expect(not driver.query_event(0, event) and not second.done(), "nobody waited")
        driver.synchronize_event(0, event)
        expect(int(seen.numpy(second)[0]) == number, f"round {number} saw {seen.numpy(second)}")
    driver.destroy_event(0, event)


def timing(driver: _core.Driver) -> None:
    """Time between two events goes forward, and needs both recorded with timing."""
    stream = device.Stream(0)
    start, end, timeless = (driver.create_event(0, kind) for kind in (True, True, False))
    refused(lambda: driver.elapsed(0, start, end))
    driver.record(0, start, stream.handle)
    device.empty(1 << 20, np.uint8, 0).fill_bytes(5, stream)
    driver.record(0, end, stream.handle)
    driver.record(0, timeless, stream.handle)
    stream.synchronize()
    expect(driver.elapsed(0, start, end) >= 0, "time went backwards")
    refused(lambda: driver.elapsed(0, start, timeless))
    for event in (start, end, timeless):
        driver.destroy_event(0, event)


def destroyed(driver: _core.Driver) -> None:
    """What is queued outlives its stream and its event."""
    stream, other = driver.create_stream(0, True), device.Stream(0)
    event = driver.create_event(0, False)
    memory = device.empty(100, np.uint8, 0)
    with held(driver, stream):
        memory.fill_bytes(9, stream)
        driver.record(0, event, stream)
        driver.wait(0, other.handle, event)
        driver.destroy_stream(0, stream)
        driver.destroy_event(0, event)
    other.synchronize()
    expect(bool((memory.numpy(other) == 9).all()), "the fill was lost")


def capture(driver: _core.Driver) -> None:
    """A capture is seen, runs nothing, and what was captured runs as often as its graph."""
    stream = device.Stream(0)
    memory = device.from_numpy(np.zeros(4, np.uint8), 0)
    expect(driver.capture(0, stream.handle)[0] == "none", "a stream is captured by itself")
    graphs = graphs_of(driver, 0)
    graphs.begin(stream.handle)
    state, number = driver.capture(0, stream.handle)
    expect(state == "active" and number != 0, f"the capture looks {state}")
    memory.fill_bytes(7, stream)
    graph = graphs.end(stream.handle)
    expect(driver.capture(0, stream.handle)[0] == "none", "the capture has not ended")
    expect(bool((memory.numpy() == 0).all()), "captured work ran")
    for _ in range(2):
        memory.fill_bytes(0, stream)
        graphs.replay(graph, stream.handle)
        expect(bool((memory.numpy(stream) == 7).all()), "the graph did not run")


GROUPS: dict[str, list[Check]] = {
    "streams": [order, asynchronous, destroyed],
    "events": [events, timing],
    "graphs": [capture],
}
