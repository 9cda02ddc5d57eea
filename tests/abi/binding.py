"""libnccl.so.2 through ctypes, for the tests of this folder."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt

REPOSITORY = Path(__file__).resolve().parents[2]
HEADERS = REPOSITORY / "csrc" / "nccl_api" / "include"
VERSION = 23203

SUCCESS, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE = 0, 2, 3, 4, 5
REMOTE_ERROR, IN_PROGRESS = 6, 7
SUM, PROD, MAX, MIN, AVG = range(5)
MAGIC = 0xCAFEBEEF
UNSET = -(2**31)

# NumPy has no bfloat16 and no float8: those travel as bytes where they are only moved.
DATA_TYPES: dict[str, int] = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
}

Array = npt.NDArray[Any]
T = TypeVar("T")


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = [("internal", ctypes.c_char * 128)]


class Config(ctypes.Structure):
    """ncclConfig_t of 2.32."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cgaClusterSize", ctypes.c_int),
        ("minCTAs", ctypes.c_int),
        ("maxCTAs", ctypes.c_int),
        ("netName", ctypes.c_char_p),
        ("splitShare", ctypes.c_int),
        ("trafficClass", ctypes.c_int),
        ("commName", ctypes.c_char_p),
        ("collnetEnable", ctypes.c_int),
        ("CTAPolicy", ctypes.c_int),
        ("shrinkShare", ctypes.c_int),
        ("nvlsCTAs", ctypes.c_int),
        ("nChannelsPerNetPeer", ctypes.c_int),
        ("nvlinkCentricSched", ctypes.c_int),
        ("graphUsageMode", ctypes.c_int),
        ("numRmaCtx", ctypes.c_int),
        ("maxP2pPeers", ctypes.c_int),
        ("graphStreamOrdering", ctypes.c_int),
        ("launchOrderImplicit", ctypes.c_int),
        ("numRmaSig", ctypes.c_int),
        ("rmaEagerInit", ctypes.c_int),
        ("hostCftMode", ctypes.c_int),
        ("nvlsHostMode", ctypes.c_int),
    ]

    @classmethod
    def default(cls) -> Config:
        """What NCCL_CONFIG_INITIALIZER gives."""
        config = cls(size=ctypes.sizeof(cls), magic=MAGIC, version=VERSION)
        for field in cls._fields_[3:]:
            if field[1] is ctypes.c_int:
                setattr(config, field[0], UNSET)
        return config


class CollConfig(ctypes.Structure):
    """ncclCollConfig_t."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("ext", ctypes.c_void_p),
        ("minCTAs", ctypes.c_int),
        ("maxCTAs", ctypes.c_int),
        ("nvlsCTAs", ctypes.c_int),
        ("cgaClusterSize", ctypes.c_int),
        ("algSelection", ctypes.c_char_p),
        ("forceAlgSelection", ctypes.c_int),
        ("CTAPolicy", ctypes.c_int),
        ("userProfilerTag", ctypes.c_uint64),
        ("launchCompletionEvent", ctypes.c_void_p),
    ]

    @classmethod
    def default(cls) -> CollConfig:
        """What NCCL_COLLCONFIG_INITIALIZER gives."""
        config = cls(size=ctypes.sizeof(cls), magic=MAGIC, version=VERSION, forceAlgSelection=1)
        for name in ("minCTAs", "maxCTAs", "nvlsCTAs", "cgaClusterSize", "CTAPolicy"):
            setattr(config, name, UNSET)
        return config


class Team(ctypes.Structure):
    """ncclTeam_t."""

    _fields_ = [("ranks", ctypes.c_int), ("rank", ctypes.c_int), ("stride", ctypes.c_int)]


def library_folder() -> Path | None:
    """Where the built libraries lie: THESEUS_LIB_DIR, the installed package, the build folder; None: nowhere."""
    if "THESEUS_LIB_DIR" in os.environ:
        return Path(os.environ["THESEUS_LIB_DIR"])
    spec = importlib.util.find_spec("theseus_py")
    candidates = [Path(folder) / "lib" for folder in (spec.submodule_search_locations or [])] if spec else []
    candidates.append(Path(os.environ.get("THESEUS_BUILD_DIR", REPOSITORY / "build")) / "lib")
    return next((folder for folder in candidates if (folder / "libnccl.so.2").exists()), None)


class Nccl:
    """The library, with the types that ctypes must know."""

    def __init__(self, folder: Path) -> None:
        """Load libnccl.so.2 of a folder."""
        self.path = folder / "libnccl.so.2"
        self.library = ctypes.CDLL(str(self.path), mode=os.RTLD_NOW)
        for name in ("ncclGetErrorString", "ncclGetLastError"):
            getattr(self.library, name).restype = ctypes.c_char_p
        for name in ("ncclTeamWorld", "ncclTeamLsa", "ncclTeamRail", "ncclTeamCft", "ncclTeamCftMultimem"):
            getattr(self.library, name).restype = Team

    def __getattr__(self, name: str) -> Any:
        """Give the C function of that name."""
        return getattr(self.library, name)

    def last_error(self, comm: ctypes.c_void_p | None = None) -> str:
        """Return this thread's message."""
        text: bytes = self.library.ncclGetLastError(comm)
        return text.decode()

    def check(self, result: int) -> None:
        """Fail the test unless the call succeeded."""
        assert result == SUCCESS, f"{result}: {self.last_error()}"

    def refused(self, result: int, code: int, *words: str) -> None:
        """Fail the test unless the call was refused with this code and a message that holds these words."""
        message = self.last_error()
        assert result == code, f"returned {result}, not {code} ({message})"
        for word in words:
            assert word in message, f"{word!r} is not in {message!r}"

    def unique_id(self) -> UniqueId:
        """Make a unique id."""
        made = UniqueId()
        self.check(self.library.ncclGetUniqueId(ctypes.byref(made)))
        return made

    def join(self, unique_id: UniqueId, ranks: int, rank: int, config: Config | None = None) -> ctypes.c_void_p:
        """Join a communicator."""
        comm = ctypes.c_void_p()
        given = ctypes.byref(config) if config is not None else None
        self.check(self.library.ncclCommInitRankConfig(ctypes.byref(comm), ranks, unique_id, rank, given))
        assert comm.value
        return comm

    def alone(self) -> ctypes.c_void_p:
        """Make a communicator of one rank."""
        return self.join(self.unique_id(), 1, 0)


def pointer(array: Array) -> ctypes.c_void_p:
    """Return the address of an array's first element."""
    return ctypes.c_void_p(array.ctypes.data)


def size(count: int) -> ctypes.c_size_t:
    """Return a count as C's size_t: ctypes would pass an int."""
    return ctypes.c_size_t(count)


def run_as_threads(ranks: int, function: Callable[[int], T], seconds: float = 60) -> list[T]:
    """Run function(rank) on one thread a rank, return the results in order; the first exception is raised here."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = function(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    # A rank that fails leaves the others waiting for it: its error is the one to show, and at once.
    deadline = time.monotonic() + seconds
    while any(thread.is_alive() for thread in threads) and not errors and time.monotonic() < deadline:
        time.sleep(0.001)
    if errors:
        raise errors[0]
    stuck = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    assert not stuck, f"ranks {stuck} did not return within {seconds} s"
    return [results[rank] for rank in range(ranks)]
