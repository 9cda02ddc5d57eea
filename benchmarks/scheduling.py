"""Plans with sub-pipelines (HPDS) against the first cut (a thread block a connection), on the same runtime.

Both run side by side, batches in turn. The ratio is the first cut's median over that of HPDS: above 1, HPDS is faster;
from 0.95 on it counts as level. TB counts are those of the rank with the most, for the algorithm that the policy picks.
"""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import Result, describe, finish, format_size, format_time, in_words, ours, parse_size, parser
from benchmarks.harness.rounds import Contender, seconds_per_call
from benchmarks.harness.server import COLLECTIVES, Launch, LoopError, LoopServer
from benchmarks.harness.verdict import LEVEL
from benchmarks.peers.install import InstallError

SCHEDULINGS = ("per-connection", "hpds")
SIZES = ["8", "1K", "16K", "128K", "1M", "8M"]
QUICK_SIZES = ["8", "16K", "1M"]
NAMES = {
    "allreduce": ("AllReduce", 0),
    "allgather": ("AllGather", 1),
    "reduce_scatter": ("ReduceScatter", 2),
    "broadcast": ("Broadcast", 3),
    "alltoall": ("AllToAll", 5),
}


@dataclass(frozen=True)
class Shape:
    """Ranks on virtual hosts."""

    ranks: int
    hosts: int = 1
    rails: int = 1

    def words(self) -> str:
        return f"{self.ranks} ranks" if self.hosts == 1 else f"{self.ranks} ranks on {self.hosts} x {self.rails} rails"


SHAPES = (Shape(2), Shape(4), Shape(4, 2, 2))


def arguments() -> argparse.Namespace:
    """The command line, with the defaults of --quick filled in."""
    made = parser(None)
    made.description = (__doc__ or "").split("\n")[0]
    made.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=list(COLLECTIVES))
    made.add_argument("--sizes", nargs="+", type=parse_size, metavar="SIZE")
    made.add_argument("--shapes", nargs="+", type=int, choices=range(len(SHAPES)), default=list(range(len(SHAPES))))
    made.add_argument("--rounds", type=int, help="15 if not given, and 5 with --quick")
    made.add_argument("--milliseconds", type=float, help="length of a batch: 30 if not given, and 10 with --quick")
    made.add_argument("--ahead", action="store_true", help="put ranks before other work of a busy machine; needs root")
    made.add_argument("--theseus", type=Path, metavar="FOLDER", help="holds include/nccl.h and lib/libnccl.so.2")
    given = made.parse_args()
    given.rounds = given.rounds or (5 if given.quick else 15)
    given.milliseconds = given.milliseconds or (10 if given.quick else 30)
    given.sizes = given.sizes or [parse_size(size) for size in (QUICK_SIZES if given.quick else SIZES)]
    return given


def thread_blocks(shape: Shape, collective: str, size: int) -> tuple[str, int, int]:
    """The algorithm that the policy picks, and the TBs of its first cut and of HPDS."""
    import resccl
    from theseus_py import _core

    name, number = NAMES[collective]
    algorithm = _core.explain(number, size, shape.ranks, shape.hosts, shape.rails)["chosen"]
    topology = resccl.Topology.uniform(shape.hosts, shape.ranks // shape.hosts, shape.rails)
    built = resccl.built_in(algorithm, name, topology)
    cut = resccl.compile(built, topology, scheduling="per_connection")
    # As the runtime compiles them.
    fuse = shape.hosts == shape.ranks or built.chunks == 1
    hpds = resccl.compile(built, topology, scheduling="hpds_improved", allocation="state_based_apart", fuse=fuse)
    return algorithm, cut.thread_blocks, hpds.thread_blocks


def measure(given: argparse.Namespace, program: Path, shape: Shape) -> dict[tuple[str, int], dict[str, list[float]]]:
    """Seconds a call by cell and scheduling, a value a round. Raises LoopError."""
    cells = [(collective, size) for collective in given.collectives for size in given.sizes]
    samples: dict[tuple[str, int], dict[str, list[float]]] = {cell: {} for cell in cells}
    with ExitStack() as stack:
        servers = []
        for scheduling in SCHEDULINGS:
            launch = ours.launch(program, shape.ranks, shared_buffers=False)
            environment = {**launch.environment, "THESEUS_SCHEDULING": scheduling}
            if shape.hosts > 1:
                environment |= {"THESEUS_BENCH_HOSTS": str(shape.hosts), "THESEUS_BENCH_RAILS": str(shape.rails)}
            named = Launch(launch.command, environment)
            server = stack.enter_context(LoopServer(scheduling, named, shape.ranks, max(given.sizes), given.ahead))
            server.start()
            servers.append(server)
        calls = {cell: calls_of(servers, cell, given.milliseconds / 1000) for cell in cells}
        for number in range(given.rounds):
            for cell in cells:
                for server in servers if number % 2 == 0 else reversed(servers):
                    seconds = server.batch(*cell, calls[cell]).seconds
                    samples[cell].setdefault(server.name, []).append(seconds)
    return samples


def calls_of(servers: list[LoopServer], cell: tuple[str, int], seconds: float) -> int:
    """How many calls a batch holds; checks both servers' results first."""
    slowest = max(seconds_per_call(Contender(each.name, each.batch, each.check), cell, seconds) for each in servers)
    return max(1, min(100_000, int(seconds / slowest)))


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if the benchmark could not run."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    given = arguments()
    machine = describe()
    print(f"{in_words(machine)}; medians of {given.rounds} batches of {given.milliseconds:g} ms")
    results, details = [], []
    try:
        program = ours.build_loop(ours.find(given.theseus))
        for shape in (SHAPES[index] for index in given.shapes):
            for (collective, size), times in measure(given, program, shape).items():
                cut, hpds = (median(times[scheduling]) for scheduling in SCHEDULINGS)
                algorithm, cut_blocks, hpds_blocks = thread_blocks(shape, collective, size)
                where = f"{shape.words()}, {collective} {format_size(size)} ({algorithm}, {format_time(cut)})"
                results.append(Result(where, cut / hpds, LEVEL, "x the first cut's speed", at_least=True))
                results.append(Result(f"{where}: TBs of HPDS", hpds_blocks, cut_blocks, "TBs"))
                details.append({"cell": where, "samples": times, "thread_blocks": [cut_blocks, hpds_blocks]})
    except (ours.NotBuilt, InstallError, LoopError) as error:
        print(error, file=sys.stderr)
        return 2
    return finish(given, machine, results, cells=details)


if __name__ == "__main__":
    sys.exit(main())
