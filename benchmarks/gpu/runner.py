"""Runs parts one after another, each in a process of its own: a hang or a crash costs a row, not the table."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.row import BAD, LEFT_OUT, Row, shorten

ROOT = Path(__file__).resolve().parents[2]
ROWS_VARIABLE = "GPU_CHECK_ROWS"
_KILL_AFTER_SECONDS = 2.0


@dataclass(frozen=True)
class Part:
    """What one process does: `function` of `module` with `arguments`, which yields rows, in at most `seconds`."""

    name: str
    module: str
    function: str
    seconds: float
    arguments: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


def part_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The variables of a part: ours to import, no agent, more hardware queues than streams that wait for each other."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    base = {"PYTHONPATH": path, "THESEUS_AGENT": "off", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    return {**os.environ, **base, **extra}


def command_of(part: Part) -> list[str]:
    """The command line of a part, which writes rows to the descriptor that ROWS_VARIABLE names, else prints them."""
    return [sys.executable, "-m", "benchmarks.gpu.part", part.module, part.function, json.dumps(part.arguments)]


def run_part(part: Part, seconds: float, on_row: Callable[[Row], None]) -> None:
    """Hand on the part's rows as they come; then one more, if it was killed after `seconds`, crashed or raised."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command_of(part),
            env={**part_environment(part.environment), ROWS_VARIABLE: str(writing)},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            pass_fds=(writing,),
            start_new_session=True,
        )
        os.close(writing)
        try:
            count, in_time = _read_rows(reading, time.monotonic() + seconds, on_row)
            if in_time:
                process.wait(timeout=_KILL_AFTER_SECONDS + 3)
        except subprocess.TimeoutExpired:
            in_time = False
        finally:
            os.close(reading)
            _end(process)
        if in_time and process.returncode == 0:
            return
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    had = f" after {count} rows" if count else ""
    last = f": {shorten(lines[-1])}" if lines else ""
    if not in_time:
        why = f"killed after {seconds:.0f} s{had}{last}"
    elif process.returncode < 0:
        why = f"ended by {signal.Signals(-process.returncode).name}{had}{last}"
    else:
        why = f"ended with {process.returncode}{had}{last}"
    on_row(Row(part.name, "the process of this part", BAD, note=why, values={"said": lines[-20:]}))


def _read_rows(reading: int, deadline: float, on_row: Callable[[Row], None]) -> tuple[int, bool]:
    """Rows until the pipe ends. How many, and whether it ended before the deadline."""
    pending = b""
    count = 0
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                continue
            data = os.read(reading, 65536)
            if not data:
                return count, True
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                on_row(Row.from_line(line.decode()))
                count += 1
    return count, False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what still runs, with its ranks, which are in its session; of one that ended, they ended with it."""
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        try:
            process.wait(_KILL_AFTER_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def run_parts(
    parts: list[Part], budget: float, on_row: Callable[[Row], None], on_start: Callable[[Part, int], None]
) -> None:
    """All parts in turn, while `budget` seconds last; what is left then is named."""
    end = time.monotonic() + budget
    for number, part in enumerate(parts):
        left = end - time.monotonic()
        if left < min(3.0, part.seconds):
            on_row(Row(part.name, "all of this part", LEFT_OUT, note="the time was over"))
            continue
        on_start(part, number)
        run_part(part, min(part.seconds, left), on_row)
