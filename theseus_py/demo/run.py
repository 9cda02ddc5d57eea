"""Runs the parts of the demo's first half, one after the other, on virtual hosts of this machine."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from theseus_py.demo.results import Results, Training
from theseus_py.perf.launcher import row_of, sweep_command
from theseus_py.perf.options import SweepOptions
from theseus_py.perf.report import Row
from theseus_py.spawn import Layout, Report, python_command, spawn

LAYOUT = Layout(ranks=4, hosts=2, rails=2)
# Far above what either part takes on a slow machine: it only keeps a defect from hanging the demo.
_PART_SECONDS = 600.0
# What heals itself comes in the second half.
_ENVIRONMENT = {"THESEUS_AGENT": "off"}

Update = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Plan:
    """How much the demo does. Sweeps run in turn: small sizes are quick and noisy, large ones slow and steady."""

    sweeps: tuple[SweepOptions, ...]
    steps: int


def plan(quick: bool) -> Plan:
    """The whole demo, or a coarse one."""
    if quick:
        return Plan((SweepOptions(min_bytes=8, max_bytes=2 << 20, step_factor=8, iterations=5, warmup=1),), steps=20)
    small = SweepOptions(min_bytes=8, max_bytes=64 << 10, step_factor=2, iterations=40, warmup=5)
    large = SweepOptions(min_bytes=128 << 10, max_bytes=64 << 20, step_factor=2, iterations=4, warmup=1)
    return Plan((small, large), steps=120)


def run(quick: bool, update: Update, *, with_torch: bool = True) -> Results:
    """Sweep and, with torch, both trainings. Raises RankFailed, which names the rank and the reason."""
    begin = time.monotonic()
    what = plan(quick)
    rows = _sweep(what.sweeps, update)
    trainings = _train(what.steps, update) if with_torch else {}
    return Results(LAYOUT.describe(), rows, trainings, time.monotonic() - begin, _environment())


def _sweep(sweeps: tuple[SweepOptions, ...], update: Update) -> list[Row]:
    rows: list[Row] = []
    total = sum(len(sweep.sizes()) for sweep in sweeps)

    def on_report(rank: int, message: Report) -> None:
        if message["kind"] == "row":
            rows.append(row_of(message["row"]))
            update("AllReduce sweep", len(rows), total)

    update("AllReduce sweep", 0, total)
    for sweep in sweeps:
        spawn(sweep_command(sweep), LAYOUT, on_report=on_report, environment=_ENVIRONMENT, timeout=_PART_SECONDS)
    return rows


def _train(steps: int, update: Update) -> dict[str, Training]:
    trainings: dict[str, Training] = {}

    def on_report(rank: int, message: Report) -> None:
        if message["kind"] == "result":
            backend = message["backend"]
            fields = {name: message[name] for name in ("loss", "milliseconds", "accuracy", "parameters")}
            trainings[backend] = Training(backend, **fields)
        elif message["kind"] == "progress" and rank == 0:
            update(f"training over {message['backend']}", message["done"], message["total"])

    command = python_command("theseus_py.demo.training", json.dumps({"steps": steps}))
    update("training over gloo", 0, steps)
    spawn(command, LAYOUT, on_report=on_report, environment=_ENVIRONMENT, timeout=_PART_SECONDS)
    return trainings


def _environment() -> dict[str, str]:
    import theseus_py

    return {
        "theseus": theseus_py.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "layout": json.dumps(asdict(LAYOUT)),
    }
