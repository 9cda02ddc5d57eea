"""From the cap of a NIC to the first request on another schedule, over many caps of one running job, and its parts.

Four virtual hosts with four paced rails each, on loopback; the job all-reduces without a pause. Detection is what the
monitor needs, planning the linear programs, the log Raft and its file, the rest what ranks need to make plans ready and
to agree.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import Result, describe, finish, in_words, parser, table

HOSTS, RAILS = 4, 4
RATE = 25e6  # bytes a second: 200 Mbit/s
SIZE = 4 << 20
TARGET_MS = 250.0
PARTS = ("detection", "planning", "log", "ready and agreed")


class Reactions:
    """Caps one NIC after the other while the ranks run, and notes when their schedule changes."""

    def __init__(self, job: str, runs: int) -> None:
        self.reports: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.rows: list[dict[str, float]] = []
        self.failure = ""
        self._job = job
        self._runs = runs
        self._draw = random.Random(1)

    def run(self) -> None:
        """Until so many caps are done, or one had no effect."""
        try:
            self._wait("the first request", healed=False, seconds=30)
            time.sleep(6)  # the agents find each other
            for _ in range(self._runs):
                self._once()
        except TimeoutError as error:
            self.failure = str(error)

    def _once(self) -> None:
        from theseus_py import _core

        host, rail = self._draw.randrange(HOSTS), self._draw.randrange(RAILS)
        time.sleep(self._draw.uniform(1.0, 1.3))
        capped = time.monotonic_ns()
        _core.set_nic_rate(f"{self._job}-{host}", rail, RATE * 0.3)
        switched = self._wait("a cap", healed=True, seconds=20)
        event = self._event_since(capped)
        _core.set_nic_rate(f"{self._job}-{host}", rail, RATE)
        self._wait("a recovery", healed=False, seconds=60)
        moments = [capped, event["detected"], event["planned"], event["in_log"], switched]
        parts = {name: (b - a) / 1e6 for name, a, b in zip(PARTS, moments[:-1], moments[1:], strict=True)}
        self.rows.append({**parts, "total": (switched - capped) / 1e6})

    def _wait(self, what: str, *, healed: bool, seconds: float) -> int:
        """When a request first ran on a healed schedule, or on a normal one."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                report = self.reports.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise TimeoutError(f"{what} changed no schedule within {seconds:.0f} s") from None
            if report["name"].startswith("heal.") == healed:
                return int(report["at"])

    def _event_since(self, moment: int) -> dict[str, int]:
        """What the judging monitor noted of the first change after a moment."""
        from theseus_py.agent.client import find

        with contextlib.ExitStack() as stack:
            agents = [stack.enter_context(agent) for agent in find() if agent.job == self._job]
            events = [event for agent in agents for event in (agent.status()["monitor"] or {"events": []})["events"]]
        for event in events:
            if event["detected"] >= moment and "in_log" in event:
                return dict(event)
        raise TimeoutError("no monitor noted the change")


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if the benchmark could not run."""
    from theseus_py import spawn

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    made = parser(__doc__)
    made.add_argument("--runs", type=int, help="20 if not given, and 5 with --quick")
    given = made.parse_args()
    runs = given.runs or (5 if given.quick else 20)
    machine = describe()
    print(in_words(machine))
    job = f"reaction-{secrets.token_hex(4)}"
    reactions = Reactions(job, runs)
    arguments = ["--bytes", str(SIZE), "--seconds", str(20 + 12 * runs)]
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "THESEUS_NIC_RATE": str(int(RATE)),
            "THESEUS_JOB_ID": job,
            "THESEUS_STATE_DIR": folder,
            "THESEUS_AGENT": f"{sys.executable} -m theseus_py.agent",
        }
        os.environ["THESEUS_STATE_DIR"] = folder
        thread = threading.Thread(target=reactions.run)
        thread.start()
        with contextlib.suppress(KeyboardInterrupt):
            spawn.spawn(
                spawn.python_command("benchmarks.harness.reaction_rank", *arguments),
                spawn.Layout(HOSTS, HOSTS, RAILS, f"{job}-"),
                environment=environment,
                on_report=lambda rank, report: reactions.reports.put(report),
                timeout=60 + 12 * runs,
            )
        thread.join()
    if reactions.failure:
        print(reactions.failure, file=sys.stderr)
    if not reactions.rows:
        return 2
    rows = []
    for name in (*PARTS, "total"):
        values = np.array([row[name] for row in reactions.rows])
        rows.append([name, *(f"{value:.0f}" for value in (np.median(values), np.percentile(values, 90), values.max()))])
    print(table(["ms", "median", "p90", "max"], rows))
    print(histogram([row["total"] for row in reactions.rows]))
    total = max(row["total"] for row in reactions.rows)
    results = [
        Result(f"cap to first request on another schedule, longest of {len(reactions.rows)}", total, TARGET_MS, "ms")
    ]
    return finish(given, machine, results, samples=reactions.rows)


def histogram(values: list[float], width: int = 50) -> str:
    """One line for each `width` ms."""
    counts: dict[int, int] = {}
    for value in values:
        counts[int(value // width)] = counts.get(int(value // width), 0) + 1
    lines = range(min(counts), max(counts) + 1)
    return "\n".join(f"{line * width:5d}-{(line + 1) * width:<5d} ms {'#' * counts.get(line, 0)}" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
