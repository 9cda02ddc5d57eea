"""The rank's side of a NicJob: one JSON object a line comes over an inherited socket, and one goes back."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from typing import Any

# Tells a rank the number of its socket.
CONTROL = "THESEUS_BENCH_CONTROL"


def obey(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answers every command until there are no more."""
    with contextlib.closing(socket.socket(fileno=int(os.environ[CONTROL]))) as control, control.makefile("rw") as lines:
        for line in lines:
            lines.write(json.dumps(answer(json.loads(line))) + "\n")
            lines.flush()
