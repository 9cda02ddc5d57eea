"""What adaptation costs while nothing changes: switched on, with a context installed, against switched off.

Both run side by side, batches in turn. Small requests are judged by what each takes longer, large ones by the ratio.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import Result, describe, finish, format_size, format_time, in_words, ours, parse_size, parser
from benchmarks.harness.server import COLLECTIVES, Launch, LoopError, LoopServer
from benchmarks.peers.install import InstallError
from benchmarks.scheduling import calls_of
from benchmarks.tte import JobLog

MODES = ("off", "on")
SIZES = ["8", "1K", "16K", "64K", "1M", "16M"]
QUICK_SIZES = ["8", "1K", "64K", "1M"]
LARGE = 64 << 10
SMALL_COST = 50.0  # ns a request
LARGE_COST = 1.01  # times


def arguments() -> argparse.Namespace:
    """The command line, with the defaults of --quick filled in."""
    made = parser(None)
    made.description = (__doc__ or "").split("\n")[0]
    made.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=["allreduce", "allgather"])
    made.add_argument("--sizes", nargs="+", type=parse_size, metavar="SIZE")
    made.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    made.add_argument("--rounds", type=int, help="41 if not given, and 11 with --quick")
    made.add_argument("--milliseconds", type=float, help="length of a batch: 50 if not given, and 20 with --quick")
    made.add_argument("--ahead", action="store_true", help="put ranks before other work of a busy machine; needs root")
    made.add_argument("--theseus", type=Path, metavar="FOLDER", help="holds include/nccl.h and lib/libnccl.so.2")
    given = made.parse_args()
    given.rounds = given.rounds or (11 if given.quick else 41)
    given.milliseconds = given.milliseconds or (20 if given.quick else 50)
    given.sizes = given.sizes or [parse_size(size) for size in (QUICK_SIZES if given.quick else SIZES)]
    return given


def measure(given: argparse.Namespace, program: Path, ranks: int) -> dict[tuple[str, int], dict[str, list[float]]]:
    """Seconds a call by cell and mode, a value a round. Raises LoopError."""
    cells = [(collective, size) for collective in given.collectives for size in given.sizes]
    samples: dict[tuple[str, int], dict[str, list[float]]] = {cell: {mode: [] for mode in MODES} for cell in cells}
    with ExitStack() as stack:
        log = JobLog(stack.enter_context(tempfile.TemporaryDirectory()))
        # Schedules that could be chosen, and are not: both modes run the same plans.
        log.append(kind="attribute", name="load")
        for collective in ("AllReduce", "AllGather"):
            log.append(kind="schedule", name=collective, collective=collective, algorithm="ring", usable="load > 1")
        servers = []
        for mode in MODES:
            launch = ours.launch(program, ranks, shared_buffers=False)
            environment = {**launch.environment, "THESEUS_JOB_LOG": log.path, "THESEUS_ADAPT": mode}
            named = Launch(launch.command, environment)
            server = stack.enter_context(LoopServer(mode, named, ranks, max(given.sizes), given.ahead))
            server.start()
            servers.append(server)
        calls = {cell: calls_of(servers, cell, given.milliseconds / 1000) for cell in cells}
        for number in range(given.rounds):
            for cell in cells:
                for server in servers if number % 2 == 0 else reversed(servers):
                    samples[cell][server.name].append(server.batch(*cell, calls[cell]).seconds)
    return samples


def judge(ranks: int, cell: tuple[str, int], times: dict[str, list[float]]) -> Result:
    """Of the medians of all rounds; each round's two batches ran one after the other."""
    off = median(times["off"])
    collective, size = cell
    where = f"{ranks} ranks, {collective} {format_size(size)} ({format_time(off)})"
    if size >= LARGE:
        ratio = median(on / before for on, before in zip(times["on"], times["off"], strict=True))
        return Result(where, ratio, LARGE_COST, "x the time without")
    added = median(on - before for on, before in zip(times["on"], times["off"], strict=True))
    return Result(where, added * 1e9, SMALL_COST, "ns a request more")


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if the benchmark could not run."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    given = arguments()
    machine = describe()
    print(f"{in_words(machine)}; {given.rounds} batches of {given.milliseconds:g} ms each")
    results, details = [], []
    try:
        program = ours.build_loop(ours.find(given.theseus))
        for ranks in given.ranks:
            for cell, times in measure(given, program, ranks).items():
                results.append(judge(ranks, cell, times))
                details.append({"ranks": ranks, "cell": cell, "samples": times})
    except (ours.NotBuilt, InstallError, LoopError) as error:
        print(error, file=sys.stderr)
        return 2
    return finish(given, machine, results, cells=details)


if __name__ == "__main__":
    sys.exit(main())
