"""One rank of overhead.py: times the same all-reduce from C, from Python and through torch.distributed, in turns."""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Callable

import numpy as np

from theseus_py import Communicator, launch, spawn

FLOATS = 2
WARMUP = 30


class CLoop:
    """The C side, on a communicator of its own."""

    def __init__(self, library: str, place: launch.Place, data: np.ndarray) -> None:
        self._library = ctypes.CDLL(library)
        self._library.overhead_run.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_long,
            ctypes.POINTER(ctypes.c_double),
        ]
        self._data = data
        unique_id = launch.exchange_unique_id(place, self._unique_id)
        self._demand("ncclCommInitRank", self._library.overhead_join(unique_id, place.ranks, place.rank))

    def run(self, times: int) -> float:
        """Seconds that `times` calls take."""
        seconds = ctypes.c_double()
        code = self._library.overhead_run(self._data.ctypes.data, self._data.size, times, ctypes.byref(seconds))
        self._demand("ncclAllReduce", code)
        return seconds.value

    def close(self) -> None:
        """Leave the communicator."""
        self._demand("ncclCommDestroy", self._library.overhead_leave())

    def _unique_id(self) -> bytes:
        room = ctypes.create_string_buffer(128)
        self._demand("ncclGetUniqueId", self._library.overhead_unique_id(room))
        return room.raw

    def _demand(self, step: str, code: int) -> None:
        if code != 0:
            raise RuntimeError(f"{step} failed with code {code}")


def python_loop(communicator: Communicator, data: np.ndarray) -> Callable[[int], float]:
    """The loop over theseus_py on a NumPy array."""

    def run(times: int) -> float:
        all_reduce = communicator.all_reduce
        begin = time.perf_counter()
        for _ in range(times):
            all_reduce(data)
        return time.perf_counter() - begin

    return run


def torch_loop(place: launch.Place) -> Callable[[int], float]:
    """The loop over torch.distributed on our backend."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("theseus", rank=place.rank, world_size=place.ranks)
    tensor = torch.zeros(FLOATS)

    def run(times: int) -> float:
        all_reduce = dist.all_reduce
        begin = time.perf_counter()
        for _ in range(times):
            all_reduce(tensor)
        return time.perf_counter() - begin

    return run


def main() -> None:
    """Report one line a round and loop: seconds a call."""
    made = argparse.ArgumentParser()
    made.add_argument("library")
    made.add_argument("--rounds", type=int, required=True)
    made.add_argument("--calls", type=int, required=True)
    made.add_argument("--torch", action="store_true")
    given = made.parse_args()
    spawn.die_with_parent()
    place = launch.discover(os.environ)
    processors = sorted(os.sched_getaffinity(0))
    if place.ranks <= len(processors):
        os.sched_setaffinity(0, {processors[place.rank]})
    data = np.zeros(FLOATS, np.float32)
    in_c = CLoop(given.library, place, data)
    communicator = Communicator.from_env()
    loops = {"c": in_c.run, "numpy": python_loop(communicator, data)}
    if given.torch:
        loops["torch"] = torch_loop(place)
    names = list(loops)
    for number in range(-1, given.rounds):  # round -1 warms up
        for turn in range(len(names)):
            name = names[(number + turn) % len(names)]
            # Ranks come here one after the other, and to cold caches: neither is the call's doing.
            loops[name](WARMUP)
            seconds = loops[name](given.calls) / given.calls
            if number >= 0 and place.rank == 0:
                spawn.report("time", round=number, loop=name, seconds=seconds)
    if given.torch:
        import torch.distributed as dist

        dist.destroy_process_group()
    communicator.destroy()
    in_c.close()
