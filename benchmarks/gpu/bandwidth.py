"""Ceilings of the machine, and bandwidth against the number of thread blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.gpu.data import Case
from benchmarks.gpu.kernels import COPY, Kernel, words
from benchmarks.gpu.row import BAD, GOOD, LEFT_OUT, Row, shorten
from benchmarks.gpu.world import Buffers, OurWorld
from benchmarks.harness.report import format_size, format_time
from theseus_py import _core, device
from theseus_py.communicator import LoadedPlan
from theseus_py.errors import TheseusError


def seconds_of(work: Callable[[], None], settle: Callable[[], None], patience: float) -> float:
    """Of one `work`, queued as often as fits into `patience` seconds, at least 3 times."""
    work()
    settle()
    start = time.perf_counter()
    work()
    settle()
    times = min(500, max(3, int(patience / max(time.perf_counter() - start, 1e-6))))
    start = time.perf_counter()
    for _ in range(times):
        work()
    settle()
    return (time.perf_counter() - start) / times


def device_copy(size: int, patience: float) -> float:
    """Bytes a second of a plain copy inside GPU 0, counted once: what a collective's bus bandwidth is compared with."""
    driver, stream = device.driver(), device.Stream(0)
    source, to = device.empty(size, np.uint8, 0).fill_bytes(1), device.empty(size, np.uint8, 0)
    copy = lambda: driver.copy(0, to.address, source.address, size, stream.handle)  # noqa: E731
    return size / seconds_of(copy, stream.synchronize, patience)


def ceilings(sizes: Sequence[int], patience: float) -> Iterator[Row]:
    """Device copies, pinned and ordinary host memory, other GPUs."""
    part = "ceiling"
    driver, stream = device.driver(), device.Stream(0)
    for size in sizes:
        rate = device_copy(size, patience)
        yield Row(part, f"device copy {format_size(size)}", GOOD, f"{rate / 1e9:.4g} GB/s", values={"rate": rate})
    size = sizes[-1]
    memory = device.empty(size, np.uint8, 0).fill_bytes(1)
    pinned = driver.allocate_pinned(size)
    for what, to, source in (("to pinned", pinned, memory.address), ("from pinned", memory.address, pinned)):
        copy = lambda to=to, source=source: driver.copy(0, to, source, size, stream.handle)  # noqa: E731
        rate = size / seconds_of(copy, stream.synchronize, patience)
        yield Row(part, f"{what} memory {format_size(size)}", GOOD, f"{rate / 1e9:.4g} GB/s", values={"rate": rate})
    driver.release_pinned(pinned)
    for other in range(1, driver.device_count):
        yield _peer(part, driver, stream, memory, other, size, patience)


def _peer(
    part: str, driver: _core.Driver, stream: device.Stream, memory: device.Array, other: int, size: int, patience: float
) -> Row:
    what = f"GPU 0 to {other}, {format_size(size)}"
    if not driver.can_access_peer(0, other):
        return Row(part, what, LEFT_OUT, note="they do not reach each other")
    driver.enable_peer(0, other)
    there = device.empty(size, np.uint8, other)
    copy = lambda: driver.copy(0, there.address, memory.address, size, stream.handle)  # noqa: E731
    rate = size / seconds_of(copy, stream.synchronize, patience)
    return Row(part, what, GOOD, f"{rate / 1e9:.4g} GB/s", values={"rate": rate})


def copy_blocks(size: int, patience: float) -> Iterator[Row]:
    """A copy by a kernel of so many thread blocks, against the driver's own copy."""
    driver, stream = device.driver(), device.Stream(0)
    info = driver.device_info(0)
    kernel = Kernel.load(driver, 0, "copy", COPY)
    source, to = device.empty(size, np.uint8, 0).fill_bytes(3), device.empty(size, np.uint8, 0).fill_bytes(0)
    whole = device_copy(size, patience)
    threads = min(512, info["max_threads"])
    blocks = 1
    while blocks <= 2 * info["multiprocessors"]:
        grid = blocks
        launch = lambda grid=grid: kernel.launch(  # noqa: E731
            grid, threads, words(to.address, source.address, size // 16), stream.handle
        )
        rate = size / seconds_of(launch, stream.synchronize, patience)
        yield Row(
            "TBs",
            f"copy kernel {format_size(size)}, {blocks} TBs of {threads}",
            GOOD,
            f"{rate / 1e9:.4g} GB/s",
            f"{rate / whole:.2f} of a copy",
            values={"blocks": blocks, "rate": rate},
        )
        blocks *= 2
    if not bool((to.numpy(stream) == 3).all()):
        yield Row("TBs", "copy kernel", BAD, note="what was copied is wrong")


def all_gather_plan(lanes: int) -> bytes:
    """A plan of two ranks whose connection each way has `lanes` channels, each with thread blocks of its own."""
    from resccl import Plan
    from resccl.formats import import_msccl_xml

    def gpu(rank: int) -> str:
        peer = 1 - rank
        blocks = []
        for lane in range(lanes):
            own, theirs = rank * lanes + lane, peer * lanes + lane
            steps = (("cpy", "i", lane, own), ("s", "i", lane, own), ("r", "o", theirs, theirs))
            text = "".join(
                f'<step s="{number}" type="{kind}" srcbuf="{source}" srcoff="{at}" dstbuf="o" dstoff="{to}" cnt="1" '
                'depid="-1" deps="-1" hasdep="0"/>'
                for number, (kind, source, at, to) in enumerate(steps)
            )
            blocks.append(f'<tb id="{lane}" send="{peer}" recv="{peer}" chan="{lane}">{text}</tb>')
        chunks = f'i_chunks="{lanes}" o_chunks="{2 * lanes}" s_chunks="0"'
        return f'<gpu id="{rank}" {chunks}>{"".join(blocks)}</gpu>'

    head = f'name="lanes_{lanes}" proto="Simple" nchannels="{lanes}" nchunksperloop="{2 * lanes}" ngpus="2"'
    xml = f'<algo {head} coll="allgather" inplace="0" outofplace="1">{gpu(0)}{gpu(1)}</algo>'
    fields = import_msccl_xml(xml.encode()).plan
    assert fields is not None
    return Plan.from_dict(fields).to_bytes()


def _load(world: OurWorld, plan: bytes) -> list[LoadedPlan]:
    """Every rank takes the plan in, each on a thread of its own, as it waits for the others."""
    loaded: list[LoadedPlan | None] = [None, None]
    errors: list[Exception] = []

    def load(rank: int) -> None:
        try:
            loaded[rank] = world.communicators[rank].load_plan(plan)
        except TheseusError as error:
            errors.append(error)

    threads = [threading.Thread(target=load, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [plan for plan in loaded if plan is not None]


class _Planned:
    """A world whose all-gathers run on a plan."""

    def __init__(self, world: OurWorld, plans: list[LoadedPlan]) -> None:
        self._world, self._plans = world, plans
        self.devices, self.streams = world.devices, world.streams
        self.run, self.ready, self.close = world.run, world.ready, world.close

    def call(self, case: Case, rank: int, send: int, receive: int) -> None:
        core, plan = self._world.communicators[rank]._core, self._plans[rank]
        count, stream = case.shape(rank).count, self.streams[rank].handle
        core.run_plan(plan.id, int(plan.collective), send, receive, count, 7, 0, 0, stream)


def plan_blocks(size: int, lanes: Sequence[int], patience: float) -> Iterator[Row]:
    """Two ranks on GPU 0, an all-gather over 1, 2, 4... channels."""
    case = Case("all_gather", 2, size // 4)
    whole = device_copy(size, patience)
    for count in lanes:
        world = OurWorld([0, 0])
        try:
            plans = _load(world, all_gather_plan(count))
            planned = _Planned(world, plans)
            buffers = Buffers(planned, [case])
            seconds = buffers.seconds(case, patience)
            wrong = buffers.wrong(case)
        except TheseusError as error:
            yield Row(
                "TBs", f"all_gather {format_size(size)} over {count} channels", LEFT_OUT, note=shorten(str(error))
            )
            world.close()
            continue
        rate = size / seconds * case.bus_factor
        yield Row(
            "TBs",
            f"all_gather {format_size(size)}, 2 ranks of {plans[0].thread_blocks} TBs",
            BAD if wrong else GOOD,
            f"{format_time(seconds)}, {rate / 1e9:.4g} GB/s",
            f"{rate / whole:.2f} of a copy",
            f"{wrong} elements are wrong" if wrong else "",
            {"blocks": plans[0].thread_blocks, "rate": rate, "seconds": seconds},
        )
        world.close()
