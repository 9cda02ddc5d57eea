"""Time to execution: from a collective's call to its first instruction, with 10, 100 and 1,000 schedules to choose of.

Wall time and the calling thread's CPU time of every request, recorded inside the library; by what each met on its way
(Theseus, Table 3): a remembered selection, a selection made anew, an agreement. Then the first request after each of
many switches between two prepared schedules.
"""

from __future__ import annotations

import base64
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import Result, describe, finish, in_words, parser, table

SELECTION, AGREEMENT, WAIT, SETUP, MIGRATION = 1, 2, 4, 8, 16
PERCENTILES = (50, 95, 99, 99.9)
ALGORITHMS = {"AllReduce": ("ring", "direct", "halving_doubling"), "AllGather": ("ring", "direct")}


class JobLog:
    """A job log in a temporary folder, written by this process in the agent's place."""

    def __init__(self, folder: str) -> None:
        from theseus_py import _core

        self._encode = _core.encode_record
        self.path = str(Path(folder) / "log")
        self._writer = _core.SharedLogWriter(self.path, 1)
        self.position = 0

    def append(self, **record: Any) -> None:
        self._writer.append(self.position, self._encode(record))
        self.position += 1

    def add_schedules(self, count: int) -> None:
        """`count` schedules whose policies read the request and an attribute; each is usable for some requests."""
        self.append(kind="attribute", name="load")
        for number in range(count):
            collective = "AllReduce" if number % 2 == 0 else "AllGather"
            choices = ALGORITHMS[collective]
            lower = 1 << (number % 12)
            self.append(
                kind="schedule",
                name=f"s{number}",
                collective=collective,
                algorithm=choices[number % len(choices)],
                usable=f"bytes >= {lower} and bytes < {lower * 4096} and load < {1 + number}",
                score=f"{number % 7} + bytes / {1000 + number} - load",
            )


def run_ranks(
    log: JobLog, ranks: int, requests: int, *, varied: int = 0, switches: int = 0, adapt: str = "on"
) -> dict[str, list[Any]]:
    """What the ranks report, by kind. Every "ready" of rank 0 is answered by a change of the attribute `mode`."""
    from theseus_py import spawn

    reports: dict[str, list[Any]] = {"tte": [], "varied": [], "switch": []}

    def keep(rank: int, report: spawn.Report) -> None:
        if rank == 0 and report["kind"] == "ready":
            log.append(kind="update", name="mode", elements=[(0, report["number"] % 2)])
        elif report["kind"] in reports:
            reports[report["kind"]].append(report)

    numbers = {"position": log.position, "requests": requests, "varied": varied, "switches": switches}
    arguments = [part for name, number in numbers.items() for part in (f"--{name}", str(number))]
    command = spawn.python_command("benchmarks.harness.tte_rank", *arguments)
    environment = {"THESEUS_JOB_LOG": log.path, "THESEUS_ADAPT": adapt}
    spawn.spawn(command, spawn.Layout(ranks), environment=environment, on_report=keep, timeout=600)
    return reports


def percentiles(samples: np.ndarray) -> list[str]:
    """In microseconds, the largest last."""
    values = [*np.percentile(samples, PERCENTILES), samples.max()]
    return [f"{value / 1e3:.2f}" for value in values]


def breakdown(wall: np.ndarray, events: np.ndarray) -> list[list[str]]:
    """Share of requests, and mean, by what they met."""
    kinds = [
        ("remembered", (events & (SELECTION | AGREEMENT)) == 0),
        ("selection", (events & SELECTION) != 0),
        ("agreement", (events & AGREEMENT) != 0),
        ("  that waited", (events & WAIT) != 0),
        ("set-up", (events & SETUP) != 0),
        ("delta migration", (events & MIGRATION) != 0),
    ]
    return [
        [name, f"{100 * chosen.mean():.3f} %", f"{wall[chosen].mean() / 1e3:.2f}" if chosen.any() else "-"]
        for name, chosen in kinds
    ]


def array(report: dict[str, Any], name: str, kind: type) -> np.ndarray:
    """One column of a report."""
    return np.frombuffer(base64.b64decode(report[name]), kind)


def samples_of(reports: dict[str, list[Any]], kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Wall ns, CPU ns and events of all ranks' requests."""
    wanted = reports[kind]
    parts = (("wall", np.uint32), ("cpu", np.uint32), ("events", np.uint8))
    wall, cpu, events = (np.concatenate([array(report, name, kind_) for report in wanted]) for name, kind_ in parts)
    return wall, cpu, events


def measure_schedules(count: int, ranks: int, requests: int, rows: list[list[str]]) -> list[Result]:
    """One row of percentiles and the breakdown for so many schedules; printed as it goes."""
    with tempfile.TemporaryDirectory() as folder:
        log = JobLog(folder)
        log.add_schedules(count)
        reports = run_ranks(log, ranks, requests, varied=2000)
    wall, cpu, events = samples_of(reports, "tte")
    rows.append([f"{count}, wall", *percentiles(wall)])
    rows.append([f"{count}, CPU", *percentiles(cpu)])
    print(f"{count} schedules")
    print(table(["a request met", "share", "mean us"], breakdown(wall, events)))
    varied_wall, _, varied_events = samples_of(reports, "varied")
    selected = varied_wall[(varied_events & (SELECTION | AGREEMENT | SETUP)) == SELECTION]
    print(f"selection made anew, all lengths different: median {np.median(selected) / 1e3:.2f} us\n")
    return [
        Result(f"{count} schedules, p95", float(np.percentile(wall, 95)) / 1e3, 5.0, "us"),
        Result(f"{count} schedules, selection made anew, median", float(np.median(selected)) / 1e3, 10.0, "us"),
    ]


def measure_remembered(ranks: int, requests: int) -> Result:
    """What an agreed context adds to a request whose selection is remembered: medians, on against off."""
    medians = {}
    for adapt in ("on", "off"):
        with tempfile.TemporaryDirectory() as folder:
            log = JobLog(folder)
            log.add_schedules(1000)
            wall, _, events = samples_of(run_ranks(log, ranks, requests, adapt=adapt), "tte")
        medians[adapt] = float(np.median(wall[(events & (SELECTION | AGREEMENT)) == 0]))
    print(f"remembered: {medians['on']:.0f} ns with a context of 1,000 schedules, {medians['off']:.0f} ns without")
    return Result("remembered selection, added by the context", medians["on"] - medians["off"], 50.0, "ns")


def measure_switches(ranks: int, switches: int) -> tuple[Result, list[int]]:
    """The first request after each of so many switches between two prepared schedules."""
    with tempfile.TemporaryDirectory() as folder:
        log = JobLog(folder)
        log.append(kind="attribute", name="mode")
        log.append(kind="schedule", name="one", collective="AllReduce", algorithm="ring", usable="mode == 1")
        log.append(kind="schedule", name="zero", collective="AllReduce", algorithm="direct", usable="mode == 0")
        reports = run_ranks(log, ranks, 0, switches=switches)
    wall = np.array([report["wall"] for report in reports["switch"]])
    cpu = np.array([report["cpu"] for report in reports["switch"]])
    rows = [["wall", *percentiles(wall)], ["CPU", *percentiles(cpu)]]
    print(table([f"first request after {switches} switches", *(f"p{p:g}" for p in PERCENTILES), "max"], rows))
    name = f"first request after {switches} switches, p99"
    return Result(name, float(np.percentile(wall, 99)) / 1e3, 1000.0, "us"), wall.tolist()


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if the benchmark could not run."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    made = parser(__doc__)
    made.add_argument("--ranks", type=int, default=4, help="all on this machine")
    made.add_argument("--requests", type=int, help="500,000 if not given, and 50,000 with --quick")
    made.add_argument("--switches", type=int, help="200 if not given, and 40 with --quick")
    given = made.parse_args()
    requests = given.requests or (50_000 if given.quick else 500_000)
    switches = given.switches or (40 if given.quick else 200)
    machine = describe()
    print(in_words(machine) + f"; {given.ranks} ranks, {requests} requests")
    results: list[Result] = []
    rows: list[list[str]] = []
    for count in (10, 100, 1000):
        results += measure_schedules(count, given.ranks, requests, rows)
    print(table(["schedules, us", *(f"p{p:g}" for p in PERCENTILES), "max"], rows))
    results.append(measure_remembered(given.ranks, requests // 5))
    switched, samples = measure_switches(given.ranks, switches)
    results.append(switched)
    return finish(given, machine, results, samples={"switch": samples})


if __name__ == "__main__":
    sys.exit(main())
