"""Option structs of every NCCL version: the library reads what the caller's version has, and not one byte more."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator

import numpy as np
import pytest
from abi.binding import INVALID_ARGUMENT, VERSION, CollConfig, Config, Nccl, pointer, size

# sizeof(ncclConfig_t) by version code; 2.26 kept 2.25's size and put trafficClass where padding had been.
SIZES = {
    21400: 24,
    21701: 40,
    21803: 48,
    22507: 48,
    22602: 48,
    22707: 72,
    22809: 80,
    22907: 88,
    23007: 96,
    23102: 112,
    23203: 120,
}


@pytest.fixture
def page() -> Iterator[tuple[int, int]]:
    """Give begin and end of a page that nothing readable follows."""
    length = mmap.PAGESIZE
    pages = mmap.mmap(-1, 2 * length)
    view = ctypes.c_char.from_buffer(pages)
    begin = ctypes.addressof(view)
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(begin + length), ctypes.c_size_t(length), 0) == 0
    yield begin, begin + length
    assert libc.mprotect(ctypes.c_void_p(begin + length), ctypes.c_size_t(length), 3) == 0
    del view
    pages.close()


def init(nccl: Nccl, config: object) -> tuple[int, ctypes.c_void_p]:
    """Make a communicator of one rank with a config."""
    comm = ctypes.c_void_p(0xDEAD)
    return nccl.ncclCommInitRankConfig(ctypes.byref(comm), 1, nccl.unique_id(), 0, config), comm


@pytest.mark.parametrize(("version", "length"), SIZES.items())
def test_every_version_at_a_page_end(nccl: Nccl, page: tuple[int, int], version: int, length: int) -> None:
    """The struct of an older caller ends where its page ends: reading on would be a fault."""
    config = Config.default()
    config.size, config.version = length, version
    place = page[1] - length
    ctypes.memmove(place, ctypes.byref(config), length)
    result, comm = init(nccl, ctypes.c_void_p(place))
    nccl.check(result)
    nccl.check(nccl.ncclCommDestroy(comm))


def test_a_newer_caller(nccl: Nccl) -> None:
    """A struct longer than ours, of a version to come, is accepted; its tail is not looked at."""
    config = Config.default()
    config.size, config.version = 400, 29900
    buffer = (ctypes.c_char * 400)(*([b"\xff"] * 400))
    ctypes.memmove(buffer, ctypes.byref(config), ctypes.sizeof(config))
    result, comm = init(nccl, buffer)
    nccl.check(result)
    nccl.check(nccl.ncclCommDestroy(comm))


def test_null_config(nccl: Nccl) -> None:
    """NULL means the defaults (CuPy passes it)."""
    result, comm = init(nccl, None)
    nccl.check(result)
    nccl.check(nccl.ncclCommDestroy(comm))


def test_members_newer_than_the_caller_are_not_read(nccl: Nccl) -> None:
    """Offset 44 is padding before 2.26: what lies there is no traffic class."""
    config = Config.default()
    config.size, config.trafficClass = 48, -5
    config.version = 22507
    result, comm = init(nccl, ctypes.byref(config))
    nccl.check(result)
    nccl.check(nccl.ncclCommDestroy(comm))
    config.version = 22602
    result, comm = init(nccl, ctypes.byref(config))
    nccl.refused(result, INVALID_ARGUMENT, "trafficClass", "-5")


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("magic", 0),
        ("size", 8),
        ("size", 0),
        ("blocking", 2),
        ("cgaClusterSize", -1),
        ("minCTAs", 0),
        ("maxCTAs", -3),
        ("splitShare", 9),
        ("shrinkShare", 2),
        ("collnetEnable", -1),
        ("CTAPolicy", 16),
        ("nvlsCTAs", 0),
    ],
)
def test_bad_members(nccl: Nccl, member: str, value: int) -> None:
    """A bad member is refused by name, before anything waits for other ranks, and the caller is left with NULL."""
    config = Config.default()
    setattr(config, member, value)
    result, comm = init(nccl, ctypes.byref(config))
    nccl.refused(result, INVALID_ARGUMENT, "initialised" if member == "magic" else member)
    assert comm.value is None


def test_contradicting_members(nccl: Nccl) -> None:
    """A lower bound above the upper one is refused."""
    config = Config.default()
    config.minCTAs, config.maxCTAs = 8, 4
    nccl.refused(init(nccl, ctypes.byref(config))[0], INVALID_ARGUMENT, "minCTAs", "maxCTAs")


def test_options_of_a_call(nccl: Nccl, page: tuple[int, int]) -> None:
    """The options of one collective obey the same rules; 2.31's struct ends before launchCompletionEvent."""
    comm = nccl.alone()
    buffer = np.zeros(1, "float32")
    arguments = (pointer(buffer), pointer(buffer), size(1), 7, 0, comm, None)
    config = CollConfig.default()
    config.size, config.version = 64, 23102
    place = page[1] - 64
    ctypes.memmove(place, ctypes.byref(config), 64)
    nccl.check(nccl.ncclAllReduceConfig(*arguments, ctypes.c_void_p(place)))
    nccl.check(nccl.ncclAllReduceConfig(*arguments, None))
    for member, value in (("magic", 1), ("size", 4), ("minCTAs", 0), ("forceAlgSelection", 3), ("CTAPolicy", -1)):
        config = CollConfig.default()
        setattr(config, member, value)
        result = nccl.ncclAllReduceConfig(*arguments, ctypes.byref(config))
        nccl.refused(result, INVALID_ARGUMENT, "initialised" if member == "magic" else member)
    config = CollConfig.default()
    config.launchCompletionEvent = 0x1234
    result = nccl.ncclAllReduceConfig(*arguments, ctypes.byref(config))
    nccl.refused(result, INVALID_ARGUMENT, "launchCompletionEvent")
    nccl.check(nccl.ncclCommDestroy(comm))


def test_properties_are_size_prefixed(nccl: Nccl, page: tuple[int, int]) -> None:
    """Properties are written no further than the caller's struct reaches."""
    comm = nccl.alone()
    place = page[1] - 24
    head = (ctypes.c_size_t(24), ctypes.c_uint(0xCAFEBEEF), ctypes.c_uint(VERSION))
    for offset, value in zip((0, 8, 12), head, strict=True):
        ctypes.memmove(place + offset, ctypes.byref(value), ctypes.sizeof(value))
    nccl.check(nccl.ncclCommQueryProperties(comm, ctypes.c_void_p(place)))
    assert list((ctypes.c_int * 2).from_address(place + 16)) == [0, 1]
    nccl.check(nccl.ncclCommDestroy(comm))
