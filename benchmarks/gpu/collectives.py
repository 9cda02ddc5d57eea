"""Collectives at all sizes: several ranks on one GPU, one rank a GPU, ranks as processes, and the real NCCL."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.gpu.bandwidth import device_copy
from benchmarks.gpu.data import Case
from benchmarks.gpu.row import BAD, GOOD, LEFT_OUT, Row, shorten
from benchmarks.gpu.world import Buffers, NcclWorld, OurWorld, Refused, World
from benchmarks.harness.report import format_size, format_time
from theseus_py import _core, device
from theseus_py.errors import TheseusError

# Buffers of all ranks on a GPU take at most this share of its memory.
_SHARE = 0.7


def words_of(seconds: float, case: Case) -> str:
    """Time and bus bandwidth."""
    gigabytes = case.bytes / seconds / 1e9 * case.bus_factor
    return f"{format_time(seconds)}, {gigabytes:.3g} GB/s"


def cases_of(collective: str, sizes: Sequence[int], ranks: int, room: int) -> list[Case]:
    """One case a size whose buffers fit into `room` bytes of a GPU that `ranks` share."""
    cases = []
    for size in sizes:
        case = Case(collective, ranks, max(size // 4 // ranks, 1) * ranks)
        shape = case.shape(0)
        if (shape.send + shape.receive) * 4 * ranks <= room:
            cases.append(case)
    return cases


def one_gpu(collective: str, sizes: Sequence[int], ranks: int, patience: float) -> Iterator[Row]:
    """Ours, `ranks` of them on GPU 0, one thread; large sizes are compared with a plain device copy, the ceiling."""
    copy = device_copy(min(sizes[-1], 256 << 20), patience)
    room = int(device.describe(0).memory_bytes * _SHARE)
    cases = cases_of(collective, sizes, ranks, room)
    yield from _measure(f"{ranks} ranks on a GPU", OurWorld([0] * ranks), cases, patience, copy)
    for size in sizes[len(cases) :]:
        yield Row(f"{ranks} ranks on a GPU", f"{collective} {format_size(size)}", LEFT_OUT, note="no room for it")


def one_each(collective: str, sizes: Sequence[int], patience: float) -> Iterator[Row]:
    """Ours, one rank on each GPU, and the real NCCL on the same buffers' sizes."""
    gpus = list(range(device.count()))
    room = int(device.describe(0).memory_bytes * _SHARE) * len(gpus)
    cases = cases_of(collective, sizes, len(gpus), room)
    theirs: dict[int, float] = {}
    nccl = ""
    try:
        world = NcclWorld(gpus)
        nccl = world.version
        for row in _measure(f"NCCL {nccl}", world, cases, patience, 0):
            if row.verdict == GOOD:
                theirs[row.values["bytes"]] = row.values["seconds"]
            yield row
    except (Refused, TheseusError) as error:
        yield Row("NCCL", collective, LEFT_OUT, note=shorten(str(error)))
    for row in _measure(f"{len(gpus)} GPUs", OurWorld(gpus), cases, patience, 0):
        if row.verdict == GOOD and row.values["bytes"] in theirs:
            ratio = theirs[row.values["bytes"]] / row.values["seconds"]
            row = Row(**{**row.__dict__, "against": f"{ratio:.2f} times NCCL {nccl}"})
        yield row


def _measure(part: str, world: World, cases: Sequence[Case], patience: float, copy: float) -> Iterator[Row]:
    if not cases:
        return
    buffers = Buffers(world, cases)
    for case in cases:
        what = f"{case.collective} {format_size(case.bytes)}"
        try:
            seconds = buffers.seconds(case, patience)
            wrong = buffers.wrong(case)
        except (Refused, TheseusError) as error:
            yield Row(part, what, BAD, note=shorten(f"{type(error).__name__}: {error}"))
            return  # this communicator has failed
        values: dict[str, Any] = {"bytes": case.bytes, "seconds": seconds, "wrong": wrong}
        against = ""
        if copy and case.bytes >= 1 << 20:
            against = f"{case.bytes / seconds * case.bus_factor / copy:.2f} of a copy"
        if wrong:
            yield Row(part, what, BAD, words_of(seconds, case), against, f"{wrong} elements are wrong", values)
        else:
            yield Row(part, what, GOOD, words_of(seconds, case), against, "", values)
    world.close()


def processes(ranks: int, sizes: str, collectives: Sequence[str]) -> Iterator[Row]:
    """Ranks as processes that share GPU 0, over IPC: `theseus perf`, whose results are checked whole."""
    from theseus_py.perf import launcher
    from theseus_py.perf.options import SweepOptions

    least, most = (int(size) for size in sizes.split(","))
    part = f"{ranks} processes"
    for collective in collectives:
        options = SweepOptions(
            collective, least, most, step_factor=max(2, most // least), iterations=3, warmup=1, check=1
        )
        start = time.perf_counter()
        try:
            _, report = launcher.run(options, ranks, 1, 1, lambda line: None)
        except launcher.LaunchFailed as error:
            yield Row(part, collective, BAD, note=shorten(str(error)))
            continue
        took = format_time(time.perf_counter() - start)
        for result in (report or {}).get("results", []):
            seconds = result["out_of_place"]["time"] * 1e-6
            size = int(result["size"])
            case = Case(collective, ranks, size // 4)
            bad = sum(result[form]["nwrong"] or 0 for form in ("out_of_place", "in_place") if result[form])
            what = f"{collective} {format_size(size)}"
            note = f"{bad} elements are wrong" if bad else ""
            values = {"bytes": size, "seconds": seconds, "wrong": bad, "whole": took}
            yield Row(part, what, BAD if bad else GOOD, words_of(seconds, case), "", note, values)


def nccl_on_one_gpu(ranks: int) -> Iterator[Row]:
    """What the real NCCL says to several ranks on one GPU."""
    part = "NCCL"
    what = f"{ranks} ranks on a GPU"
    try:
        world = NcclWorld([0] * ranks)
    except (Refused, TheseusError) as error:
        where = ""
        with contextlib.suppress(TheseusError):
            where = "NCCL {1} of {0}".format(*_core.find_nccl())
        yield Row(part, what, LEFT_OUT, where, note=shorten(str(error)))
        return
    yield Row(part, what, GOOD, note=f"NCCL {world.version} took them, which was not expected")
    world.close()
