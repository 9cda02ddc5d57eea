"""A process beside the agent for what takes long: it ends with the agent, however that ends."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor

__all__ = ["make_worker"]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def _begin(parent: int, niceness: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call above
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(niceness)


def make_worker(niceness: int = 0) -> ProcessPoolExecutor:
    """Returns a pool of one process, started when it is first needed."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, context, initializer=_begin, initargs=(os.getpid(), niceness))
