"""Theseus: collective communication, a drop-in for NCCL that also runs in full on CPU memory.

    import numpy as np
    import theseus_py

    with theseus_py.Communicator.from_env() as communicator:   # under torchrun, mpirun or srun
        data = np.full(4, communicator.rank, np.float32)
        communicator.all_reduce(data)

Names are loaded on first use: importing this package, as torch does for its entry points, costs next to nothing.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from theseus_py.buffers import empty as empty
    from theseus_py.communicator import Candidate as Candidate
    from theseus_py.communicator import Communicator as Communicator
    from theseus_py.communicator import Explanation as Explanation
    from theseus_py.communicator import PreMulSum as PreMulSum
    from theseus_py.communicator import Work as Work
    from theseus_py.communicator import counters as counters
    from theseus_py.communicator import create_unique_id as create_unique_id
    from theseus_py.communicator import group as group
    from theseus_py.communicator import init_all as init_all
    from theseus_py.dtypes import DataType as DataType
    from theseus_py.dtypes import RedOp as RedOp
    from theseus_py.errors import TheseusError as TheseusError
    from theseus_py.progress import step as step

__version__ = "0.1.0"

# How a communicator that lives for a while starts the node's agent. Without the current folder on the path (-P), where
# a job may keep files that are called like modules of ours or Python's.
_PYTHON = [sys.executable, "-P"] if sys.version_info >= (3, 11) else [sys.executable]
AGENT_COMMAND = shlex.join([*_PYTHON, "-m", "theseus_py.agent"])
os.environ.setdefault("THESEUS_AGENT", AGENT_COMMAND)

_WHERE = {
    "Candidate": "communicator",
    "Communicator": "communicator",
    "DataType": "dtypes",
    "Explanation": "communicator",
    "PreMulSum": "communicator",
    "RedOp": "dtypes",
    "TheseusError": "errors",
    "Work": "communicator",
    "counters": "communicator",
    "create_unique_id": "communicator",
    "empty": "buffers",
    "group": "communicator",
    "init_all": "communicator",
    "step": "progress",
}
_SUBMODULES = ("buffers", "communicator", "device", "dtypes", "errors", "launch")

__all__ = [
    "Candidate",
    "Communicator",
    "DataType",
    "Explanation",
    "PreMulSum",
    "RedOp",
    "TheseusError",
    "Work",
    "counters",
    "create_unique_id",
    "empty",
    "group",
    "init_all",
    "step",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module(f"theseus_py.{_WHERE[name]}"), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"theseus_py.{name}")
    raise AttributeError(f"module 'theseus_py' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE, *_SUBMODULES})
