"""Collectives over TCP rails of a set speed, against what all rails together allow.

Four virtual hosts on loopback with four rails each; every rail is paced at 200 Mbit/s in each direction. What a host
must send or receive at least, whatever the algorithm, divided by the speed of its rails, is the time allowed. With N
bytes in the sense of nccl-tests, H hosts and K ranks a host:

    all-reduce       2 (H-1)/H N   a host's part of the sum goes out, the sum of the others comes in
    all-gather         (H-1)/H N   N is what all ranks have in the end
    reduce-scatter     (H-1)/H N   N is what every rank puts in
    broadcast                  N   every other host receives it once
    all-to-all       K (H-1)/H N   N is what every rank sends in all
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from statistics import median

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import Result, describe, finish, format_size, format_time, in_words, ours, parser
from benchmarks.harness.server import COLLECTIVES, Launch, LoopError, LoopServer
from benchmarks.peers.catalog import KEEP_HEAP, start_ranks
from benchmarks.peers.install import InstallError

HOSTS = 4
RAILS = 4
RATE = "200Mbit"
BYTES_PER_SECOND = 200e6 / 8
TARGET = 0.95
CALLS = 2
# Long enough, at about half a second a call, that what a NIC saves up while it idles (10 ms) hardly counts.
SIZES = {
    "allreduce": 32 << 20,
    "allgather": 64 << 20,
    "reduce_scatter": 64 << 20,
    "broadcast": 48 << 20,
    "alltoall": 64 << 20,
}


def allowed_seconds(collective: str, size: int, ranks_per_host: int) -> float:
    """The least time in which the rails can move what the collective has to."""
    remote = (HOSTS - 1) / HOSTS
    factor = {
        "allreduce": 2 * remote,
        "allgather": remote,
        "reduce_scatter": remote,
        "broadcast": 1.0,
        "alltoall": remote * ranks_per_host,
    }
    return factor[collective] * size / (RAILS * BYTES_PER_SECOND)


def arguments() -> argparse.Namespace:
    """The command line, with the defaults of --quick filled in."""
    made = parser(None)
    made.description = (__doc__ or "").split("\n")[0]
    made.add_argument("--ranks-per-host", type=int, default=1, metavar="K", help="ranks on each of the four hosts")
    made.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=list(COLLECTIVES))
    made.add_argument("--rounds", type=int, help="5 if not given, and 2 with --quick")
    made.add_argument("--ahead", action="store_true", help="put ranks before other work of a busy machine; needs root")
    made.add_argument("--theseus", type=Path, metavar="FOLDER", help="holds include/nccl.h and lib/libnccl.so.2")
    given = made.parse_args()
    given.rounds = given.rounds or (2 if given.quick else 5)
    return given


def measure(given: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds a call, a value a round, for each collective; the collectives take turns. Raises LoopError."""
    ranks = HOSTS * given.ranks_per_host
    program = ours.build_loop(ours.find(given.theseus))
    environment = {
        **KEEP_HEAP,
        "THESEUS_NIC_RATE": RATE,
        "THESEUS_BENCH_HOSTS": str(HOSTS),
        "THESEUS_BENCH_RAILS": str(RAILS),
    }
    launch = Launch(start_ranks(ranks, "free", str(program)), environment)
    samples: dict[str, list[float]] = {collective: [] for collective in given.collectives}
    sizes = {collective: size_for(collective, given.ranks_per_host) for collective in given.collectives}
    with LoopServer(ours.NAME, launch, ranks, max(sizes.values()), given.ahead) as server:
        server.start()
        for collective in given.collectives:
            server.check(collective, sizes[collective])
        for _ in range(given.rounds):
            for collective, seconds in samples.items():
                seconds.append(server.batch(collective, sizes[collective], CALLS).seconds)
    return samples


def size_for(collective: str, ranks_per_host: int) -> int:
    """Sizes grow with the ranks only where the rails' work does not."""
    return SIZES[collective] // (ranks_per_host if collective == "alltoall" else 1)


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if the benchmark could not run."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    given = arguments()
    machine = describe()
    setup = f"{HOSTS} virtual hosts x {RAILS} rails of {RATE}, {given.ranks_per_host} ranks a host"
    print(f"{in_words(machine)}; {setup}; medians of {given.rounds} x {CALLS} calls")
    try:
        samples = measure(given)
    except (ours.NotBuilt, InstallError, LoopError) as error:
        print(error, file=sys.stderr)
        return 2
    results = []
    for collective, seconds in samples.items():
        size = size_for(collective, given.ranks_per_host)
        allowed = allowed_seconds(collective, size, given.ranks_per_host)
        achieved = median(seconds)
        name = f"{collective} {format_size(size)} ({format_time(achieved)}, allowed {format_time(allowed)})"
        results.append(Result(name, 100 * allowed / achieved, 100 * TARGET, "% of the rails", at_least=True))
    return finish(given, machine, results, setup=setup, samples=samples)


if __name__ == "__main__":
    sys.exit(main())
