"""The process of one part: `python -m benchmarks.gpu.part MODULE FUNCTION ARGUMENTS`, the last as JSON."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys

from benchmarks.gpu.row import BAD, Row, shorten
from benchmarks.gpu.runner import ROWS_VARIABLE


def _end_with_parent() -> None:
    """A part inside a part goes when that one is killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


def main() -> int:
    """Write the rows of the part as they come; an exception of its own becomes the last one."""
    _end_with_parent()
    module, function, arguments = sys.argv[1:4]
    descriptor = int(os.environ.pop(ROWS_VARIABLE, "1"))

    def write(row: Row) -> None:
        data = (row.to_line() + "\n").encode()
        while data:
            data = data[os.write(descriptor, data) :]

    rows = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    try:
        for row in rows:
            write(row)
    except Exception as error:
        write(Row(module.rpartition(".")[2], function, BAD, note=shorten(f"{type(error).__name__}: {error}")))
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Not through the interpreter's end: a driver that crashed may hang there.
    os._exit(status)
