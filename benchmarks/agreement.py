"""What an agreement costs: latency and messages a rank, for real ranks on this machine, and for many by simulation.

The simulation runs the same state machines for up to 16,384 ranks over messages that take as long as they were measured
to take among the real ranks. Latency is from when a rank joins to when it knows the decision; nobody waits for it: an
agreement is under way while requests go on.
"""

from __future__ import annotations

import math
import signal
import sys
import tempfile
from pathlib import Path
from statistics import mean, median

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import Result, describe, finish, format_time, in_words, parser, table
from benchmarks.tte import JobLog

REAL = (2, 4, 8, 16, 32, 64)
SIMULATED = (64, 256, 1024, 4096, 16384)
RANKS_PER_HOST = 8
HANDLING = 2e-6  # seconds that a rank is busy with a message


def measure(ranks: int, agreements: int, hosts: int) -> tuple[float, float, float]:
    """Median latency over the ranks, mean and largest number of messages a rank and agreement."""
    from theseus_py import spawn

    reports: list[spawn.Report] = []
    with tempfile.TemporaryDirectory() as folder:
        log = JobLog(folder)
        log.append(kind="attribute", name="load")
        command = spawn.python_command("benchmarks.harness.agreement_rank", "--agreements", str(agreements))
        environment = {"THESEUS_JOB_LOG": log.path, "THESEUS_ADAPT": "on"}
        layout = spawn.Layout(ranks, hosts=hosts)
        spawn.spawn(
            command, layout, environment=environment, timeout=600, on_report=lambda rank, report: reports.append(report)
        )
    messages = [report["messages"] for report in reports]
    return median(report["latency"] for report in reports), mean(messages), max(messages)


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if the benchmark could not run."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    from theseus_py import _core

    given = parser(__doc__).parse_args()
    machine = describe()
    print(in_words(machine))
    results, rows = [], []
    agreements = 10 if given.quick else 30
    real = REAL[:3] if given.quick else REAL
    for ranks in real:
        latency, average, most = measure(ranks, agreements, max(1, ranks // RANKS_PER_HOST))
        rows.append([f"{ranks} real", format_time(latency), f"{average:.2f}", f"{most:.2f}"])
        # Sent by a rank: two messages an edge at most, over log2(ranks) + 1 edges.
        limit = 2 * (math.log2(ranks) + 1)
        results.append(Result(f"{ranks} ranks, messages of the busiest rank", most, limit, ""))
    # What a message takes, through sockets and another thread: two ranks on two hosts exchange one up and one down.
    message = measure(2, agreements, 2)[0] / 2
    rows.append(["a message", format_time(message), "", ""])
    for ranks in SIMULATED[:3] if given.quick else SIMULATED:
        for changes in (False, True):
            run = _core.simulate_agreement(ranks, RANKS_PER_HOST, changes, message, message, HANDLING)
            kind = "simulated, changes" if changes else "simulated"
            rows.append(
                [
                    f"{ranks} {kind}",
                    format_time(run["latency"]),
                    f"{run['mean_messages']:.2f}",
                    f"{run['most_messages']:.0f}",
                ]
            )
            # Four messages an edge and agreement, six where something changes, over at most log2(ranks) + 1 edges.
            most = (6 if changes else 4) * (math.log2(ranks) + 1)
            results.append(Result(f"{ranks} ranks {kind}, messages of the busiest", run["most_messages"], most, ""))
    print(table(["ranks", "latency", "messages a rank", "at most"], rows))
    return finish(given, machine, results, samples={})


if __name__ == "__main__":
    sys.exit(main())
