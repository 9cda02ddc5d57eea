"""The machine under test: what it is, and how its processors are placed just now."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sysconfig
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "machine.c"
ROUND_TRIPS = 100


class Probe:
    """Measures flag latency, in C on threads of this process.

    `folder` receives the compiled library. Raises RuntimeError if there is no C compiler.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / f"machine{sysconfig.get_config_var('EXT_SUFFIX') or '.so'}"
        if not library.exists() or library.stat().st_mtime < SOURCE.stat().st_mtime:
            command = ["cc", "-std=gnu11", "-O3", "-march=native", "-shared", "-fPIC", "-pthread", str(SOURCE), "-o"]
            done = subprocess.run([*command, str(library)], capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"cannot compile {SOURCE.name}: {done.stderr}")
        self._library = ctypes.CDLL(str(library))
        self._library.flag_latency.restype = ctypes.c_double
        self._library.flag_latency.argtypes = [ctypes.c_uint32]

    def flag_latency(self) -> float:
        """Seconds, one way, over 100 round trips of a flag in shared memory. The best of three attempts."""
        return min(float(self._library.flag_latency(ROUND_TRIPS)) for _ in range(3))


def near_latency(latencies: Sequence[float]) -> float:
    """The flag latency that counts as near: the 5th percentile, so that a rare or broken reading does not define it."""
    return sorted(latencies)[len(latencies) // 20]


def placement(before: float, after: float, near: float) -> str:
    """Where the processors were during a batch.

    `before` and `after` are flag latencies around the batch and `near` the one that counts as near, all in one unit.
    Gives "near", "far", "rare" (nearer than near), "moved" (from one to another) or "disturbed" (by other work).
    """

    def one(latency: float) -> str:
        if latency < near / 2.5:
            return "rare"
        if latency < 2.5 * near:
            return "near"
        return "far" if latency < 15 * near else "disturbed"

    first, second = one(before), one(after)
    if "disturbed" in (first, second):
        return "disturbed"
    return first if first == second else "moved"


def describe() -> dict[str, object]:
    """Processor, caches, kernel and load: what a reader needs to judge absolute times."""
    return {
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)),
        "caches": _caches(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "load": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def in_words(machine: dict[str, object]) -> str:
    """One line of what `describe` gives."""
    what = f"on {machine['processor']}, {machine['processors']} processors, Linux {machine['kernel']}"
    return f"{what}, load {machine['load']:.1f}, {machine['date']}"


def _processor() -> str:
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _caches() -> dict[str, str]:
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ("".join(_lines(index / name)).strip() for name in ("level", "type", "size"))
        found[f"L{level} {kind.lower()}"] = size
    return found


def _lines(path: Path) -> Iterable[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
