"""From the cap of a NIC to the first request on another schedule, over many caps of one running job, and its parts.

Four virtual hosts with four paced rails each, on loopback; the job all-reduces without a pause. Detection is what the
monitor needs, planning the linear programs, the log Raft and its file, the rest what ranks need to make plans ready, to
agree, and to come to the end of the request that is under way: how long requests take stands below the parts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
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

from benchmarks.harness import Result, describe, finish, format_size, in_words, parse_size, parser, table

HOSTS, RAILS = 4, 4
RATE = 25e6  # bytes a second: 200 Mbit/s
TARGET_MS = 250.0
PARTS = ("detection", "planning", "log", "ready and agreed")
# Of the requests since the schedule before: the median, and the longest, which is as a rule one under the cap.
REQUESTS = {"request, healthy": "median_ns", "request, capped": "longest_ns"}


class DisturbedError(Exception):
    """The schedule changed by itself, as where a busy machine makes a NIC look slow."""


class Reactions:
    """Caps one NIC after the other while the ranks run, and notes when their schedule changes."""

    def __init__(self, job: str, runs: int, over: Path) -> None:
        """`over`: a file to make when it is done."""
        self.reports: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.rows: list[dict[str, float]] = []
        self.disturbed = 0
        self.failure = ""
        self._job = job
        self._runs = runs
        self._over = over
        self._draw = random.Random(1)

    def run(self) -> None:
        """Until so many caps are done, or one had no effect."""
        try:
            self._wait("the first request", healed=False, seconds=30)
            time.sleep(6)  # the agents find each other
            for _ in range(self._runs):
                try:
                    self._once()
                except DisturbedError:
                    self.disturbed += 1
        except TimeoutError as error:
            self.failure = f"{error}; what the monitors know: {json.dumps(self._monitors())}"
        finally:
            self._over.touch()

    def _once(self) -> None:
        from theseus_py import _core

        host, rail = self._draw.randrange(HOSTS), self._draw.randrange(RAILS)
        self._settle()
        capped = time.monotonic_ns()
        _core.set_nic_rate(f"{self._job}-{host}", rail, RATE * 0.3)
        report = self._wait("a cap", healed=True, seconds=20, since=capped)
        switched = int(report["at"])
        try:
            event = self._event_since(capped)
        finally:
            _core.set_nic_rate(f"{self._job}-{host}", rail, RATE)
            self._wait("a recovery", healed=False, seconds=60, since=switched)
        # The monitor looks into the log every 20 ms only: ranks may be faster.
        in_log = min(event["in_log"], switched)
        moments = [capped, event["detected"], event["planned"], in_log, switched]
        if sorted(moments) != moments:
            raise DisturbedError
        parts = {name: (b - a) / 1e6 for name, a, b in zip(PARTS, moments[:-1], moments[1:], strict=True)}
        requests = {name: report[key] / 1e6 for name, key in REQUESTS.items()}
        self.rows.append({**parts, "total": (switched - capped) / 1e6, **requests})

    def _settle(self) -> None:
        """Lets a while pass, until the job has run normally all the time."""
        quiet = time.monotonic() + self._draw.uniform(1.0, 1.3)
        while True:
            try:
                report = self.reports.get(timeout=max(0.0, quiet - time.monotonic()))
            except Empty:
                return
            if report["name"].startswith("heal."):
                self._wait("what looked like a slow NIC", healed=False, seconds=60)
            quiet = time.monotonic() + 1.0

    def _wait(self, what: str, *, healed: bool, seconds: float, since: int = 0) -> dict[str, Any]:
        """Returns the report of the first request on a healed schedule, or on a normal one, since a moment."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                report = self.reports.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise TimeoutError(f"{what} changed no schedule within {seconds:.0f} s") from None
            if report["name"].startswith("heal.") == healed and report["at"] >= since:
                return report

    def _monitors(self) -> list[dict[str, Any]]:
        """What the monitors of the job's agents say; of all but the leader's, little."""
        from theseus_py.agent.client import find

        with contextlib.ExitStack() as stack:
            agents = [stack.enter_context(agent) for agent in find() if agent.job == self._job]
            return [agent.status()["monitor"] or {"events": []} for agent in agents]

    def _event_since(self, moment: int) -> dict[str, int]:
        """What the judging monitor noted of the first change after a moment."""
        for event in (event for monitor in self._monitors() for event in monitor["events"]):
            if event["detected"] >= moment and "in_log" in event:
                return dict(event)
        raise DisturbedError


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if the benchmark could not run."""
    from theseus_py import spawn

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    made = parser(__doc__)
    made.add_argument("--runs", type=int, help="20 if not given, and 5 with --quick")
    made.add_argument("--bytes", type=parse_size, default="4M", help="of each all-reduce")
    made.add_argument("--png", type=Path, metavar="FILE", help="also draw the times as a histogram")
    given = made.parse_args()
    runs = given.runs or (5 if given.quick else 20)
    machine = describe()
    print(in_words(machine))
    job = f"reaction-{secrets.token_hex(4)}"
    # Agents may still be at it when the ranks are gone.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        over = Path(folder) / "over"
        reactions = Reactions(job, runs, over)
        # Longer than every wait of Reactions: where one is in vain, the agents still have to say what they know.
        arguments = ["--bytes", str(given.bytes), "--seconds", str(120 + 12 * runs), "--until", str(over)]
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
                timeout=180 + 12 * runs,
            )
        thread.join()
    if reactions.failure:
        print(reactions.failure, file=sys.stderr)
    if not reactions.rows:
        return 2
    return report_of(given, machine, reactions)


def report_of(given: argparse.Namespace, machine: dict[str, Any], reactions: Reactions) -> int:
    """Prints what was measured and returns an exit status."""
    rows = []
    for name in (*PARTS, "total", *REQUESTS):
        values = np.array([row[name] for row in reactions.rows])
        rows.append([name, *(f"{value:.0f}" for value in (np.median(values), np.percentile(values, 90), values.max()))])
    print(f"all-reduces of {format_size(given.bytes)}, {len(reactions.rows)} caps")
    print(table(["ms", "median", "p90", "max"], rows))
    if reactions.disturbed:
        print(f"left out: {reactions.disturbed} caps during which the schedule changed for another reason")
    totals = [row["total"] for row in reactions.rows]
    print(histogram(totals))
    if given.png is not None:
        draw(given.png, reactions.rows)
    what = f"cap to first request on another schedule, longest of {len(totals)}"
    return finish(given, machine, [Result(what, max(totals), TARGET_MS, "ms")], samples=reactions.rows)


def draw(path: Path, rows: list[dict[str, float]]) -> None:
    """A histogram of the totals above, the parts of each below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 7), layout="constrained")
    totals = np.array([row["total"] for row in rows])
    above.hist(totals, bins=max(5, len(rows) // 2), color="tab:blue")
    above.axvline(TARGET_MS, color="tab:red", label=f"target {TARGET_MS:.0f} ms")
    above.set(xlabel="cap to first request on another schedule, ms", ylabel="caps")
    above.legend()
    order = np.argsort(totals)
    start = np.zeros(len(rows))
    for name in PARTS:
        part = np.array([rows[index][name] for index in order])
        below.barh(np.arange(len(rows)), part, left=start, label=name)
        start += part
    below.set(xlabel="ms", ylabel="cap")
    below.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def histogram(values: list[float], width: int = 50) -> str:
    """One line for each `width` ms."""
    counts: dict[int, int] = {}
    for value in values:
        counts[int(value // width)] = counts.get(int(value // width), 0) + 1
    lines = range(min(counts), max(counts) + 1)
    return "\n".join(f"{line * width:5d}-{(line + 1) * width:<5d} ms {'#' * counts.get(line, 0)}" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
