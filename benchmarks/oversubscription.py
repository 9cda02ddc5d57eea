"""Eight ranks on one processor: 1,000 all-reduces of 1 KB.

A rank that waits must let the others run. Linux shares processors between sessions, so there are two cases: all ranks
in one session, as MPI launchers have it, and each in its own, as torchrun has it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from statistics import median

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import Result, describe, finish, in_words, ours, parser
from benchmarks.harness.server import Launch, LoopError, LoopServer
from benchmarks.peers.catalog import start_ranks
from benchmarks.peers.install import InstallError

RANKS = 8
CALLS = 1000
BYTES = 1 << 10
TARGET = 5.0
CASES = {"free": "ranks in one session", "sessions": "a session a rank"}


def launch(program: Path, how: str) -> Launch:
    """All ranks on the first processor that this process may use."""
    processor = min(os.sched_getaffinity(0))
    return Launch(["taskset", "-c", str(processor), *start_ranks(RANKS, how, str(program))], {})


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if the benchmark could not run."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    made = parser(__doc__)
    made.add_argument("--rounds", type=int, help="5 if not given, and 2 with --quick")
    made.add_argument("--ahead", action="store_true", help="put ranks before other work of a busy machine; needs root")
    made.add_argument("--theseus", type=Path, metavar="FOLDER", help="holds include/nccl.h and lib/libnccl.so.2")
    given = made.parse_args()
    rounds = given.rounds or (2 if given.quick else 5)
    machine = describe()
    print(in_words(machine) + f"; medians of {rounds}")
    results, samples = [], {}
    try:
        program = ours.build_loop(ours.find(given.theseus))
        for how, title in CASES.items():
            with LoopServer(title, launch(program, how), RANKS, BYTES, given.ahead) as server:
                server.start()
                server.check("allreduce", BYTES)
                samples[how] = [server.batch("allreduce", BYTES, CALLS).seconds * CALLS for _ in range(rounds)]
            results.append(Result(f"{RANKS} ranks on one processor, {title}", median(samples[how]), TARGET, "s"))
    except (ours.NotBuilt, InstallError, LoopError) as error:
        print(error, file=sys.stderr)
        return 2
    return finish(given, machine, results, samples=samples)


if __name__ == "__main__":
    sys.exit(main())
