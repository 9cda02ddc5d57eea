"""How calls on GPUs behave in time: streams, graphs, aborts. Two ranks on GPU 0, one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.gpu.check import expect
from benchmarks.gpu.contract_work import held
from benchmarks.gpu.graphs import graphs_of
from benchmarks.gpu.kernels import NUMBER, Kernel, words
from benchmarks.gpu.row import BAD, GOOD, Row, shorten
from benchmarks.gpu.world import OurWorld
from theseus_py import device, group

_COUNT = 5000
_PATIENCE = 10.0


def _ones() -> list[device.Array]:
    return [device.from_numpy(np.ones(_COUNT, np.float32), 0) for _ in range(2)]


def _sum(world: OurWorld, data: list[device.Array], streams: list[device.Stream]) -> None:
    with group():
        for rank in range(2):
            world.communicators[rank].all_reduce(data[rank], stream=streams[rank])


def _expect(data: list[device.Array], streams: list[device.Stream], value: float) -> None:
    for array, stream in zip(data, streams, strict=True):
        found = array.numpy(stream)
        expect(bool((found == value).all()), f"{found[0]} instead of {value}")


def stream_order() -> None:
    """A call returns when it is queued, and waits for what its stream had before."""
    world, data = OurWorld([0, 0]), _ones()
    with held(device.driver(), world.streams[0].handle):
        _sum(world, data, world.streams)
        expect(not world.streams[0].done(), "it did not wait")
    _expect(data, world.streams, 2)
    world.close()


def two_streams() -> None:
    """Calls of one communicator run in order, whatever streams they are on."""
    world, data = OurWorld([0, 0]), _ones()
    others = [device.Stream(0) for _ in range(2)]
    for turn in range(12):
        _sum(world, data, others if turn % 2 else world.streams)
    for stream in (*others, *world.streams):
        stream.synchronize()
    _expect(data, world.streams, 2.0**12)
    world.close()


def captured() -> None:
    """A collective captured in a graph runs as often as the graph, and others run between."""
    world, data = OurWorld([0, 0]), _ones()
    _sum(world, data, world.streams)  # what is made at a first call is no part of a graph
    graphs = graphs_of(device.driver(), 0)
    for stream in world.streams:
        stream.synchronize()
        graphs.begin(stream.handle)
    _sum(world, data, world.streams)
    made = [graphs.end(stream.handle) for stream in world.streams]
    for _ in range(3):
        for graph, stream in zip(made, world.streams, strict=True):
            graphs.replay(graph, stream.handle)
        _sum(world, data, world.streams)
    _expect(data, world.streams, 2.0**7)
    world.close()


def aborted() -> None:
    """A kernel whose peer never comes leaves when its communicator is aborted, and the stream goes on."""
    world, data = OurWorld([0, 0]), _ones()
    _sum(world, data, world.streams)
    for stream in world.streams:
        stream.synchronize()
    world.communicators[0].all_reduce(data[0], stream=world.streams[0])
    time.sleep(0.1)
    expect(not world.streams[0].done(), "it did not wait for its peer")
    aborting = threading.Thread(target=world.communicators[0].abort, daemon=True)
    aborting.start()
    aborting.join(_PATIENCE)
    expect(not aborting.is_alive(), "abort() did not come back")
    world.streams[0].synchronize()
    world.communicators[1].abort()


def prepared_meanwhile() -> None:
    """While a kernel waits for its peer, memory is allocated, and another kernel is loaded and runs."""
    world, data = OurWorld([0, 0]), _ones()
    _sum(world, data, world.streams)
    for stream in world.streams:
        stream.synchronize()
    done: list[str] = []

    def prepare() -> None:
        driver, stream = device.driver(), device.Stream(0)
        memory = driver.allocate(0, 1 << 20)
        done.append("memory was allocated")
        kernel = Kernel.load(driver, 0, "number", NUMBER)
        done.append("a kernel was loaded")
        kernel.launch(1, 1, words(memory), stream.handle)
        stream.synchronize()
        done.append("it ran")

    world.communicators[0].all_reduce(data[0], stream=world.streams[0])
    preparing = threading.Thread(target=prepare, daemon=True)
    preparing.start()
    preparing.join(_PATIENCE / 2)
    before = list(done)
    world.communicators[1].all_reduce(data[1], stream=world.streams[1])
    for stream in world.streams:
        stream.synchronize()
    expect(len(before) == 3, f"of this only {before or 'nothing'} before the peer came")
    _expect(data, world.streams, 4)
    world.close()


CHECKS: list[Callable[[], None]] = [stream_order, two_streams, captured, aborted, prepared_meanwhile]


def run(number: int) -> Iterator[Row]:
    """One of CHECKS, as one row."""
    check = CHECKS[number]
    what = (check.__doc__ or check.__name__).strip().rstrip(".")
    start = time.perf_counter()
    try:
        check()
    except Exception as error:
        yield Row("behaviour", what, BAD, note=shorten(f"{type(error).__name__}: {error}"))
        return
    yield Row("behaviour", what, GOOD, measured=f"{(time.perf_counter() - start) * 1e3:.1f} ms")
