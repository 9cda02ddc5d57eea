"""How long ranks need from ncclCommInitRank to the end of their first all-reduce, in C, on one machine.

The processes are up already, and new for every repetition: everything that a process does once is counted. The clock
starts when the last rank is about to call, and stops when the last one has its result.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import Result, describe, finish, in_words, ours, parser
from benchmarks.harness.native import NativeFailed, build, output_of
from benchmarks.peers.install import InstallError

TARGETS = {4: 0.030, 64: 1.0}


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if the benchmark could not run."""
    made = parser(__doc__)
    made.add_argument("--repetitions", type=int, help="15 if not given, and 5 with --quick")
    made.add_argument("--theseus", type=Path, metavar="FOLDER", help="holds include/nccl.h and lib/libnccl.so.2")
    given = made.parse_args()
    repetitions = given.repetitions or (5 if given.quick else 15)
    machine = describe()
    print(in_words(machine) + f"; medians of {repetitions}")
    results, samples = [], {}
    try:
        program = build("startup", ("startup.c", "ranks.c"), ours.find(given.theseus))
        for ranks, target in TARGETS.items():
            lines = output_of([str(program), str(ranks), str(repetitions)])
            samples[ranks] = [{"seconds": float(line[0]), "ready": float(line[1])} for line in lines]
            whole = median(sample["seconds"] for sample in samples[ranks])
            ready = median(sample["ready"] for sample in samples[ranks])
            name = f"{ranks} ranks, first all-reduce done (ready {ready * 1e3:.3g} ms)"
            results.append(Result(name, whole * 1e3, target * 1e3, "ms"))
    except (ours.NotBuilt, InstallError, NativeFailed) as error:
        print(error, file=sys.stderr)
        return 2
    return finish(given, machine, results, samples=samples)


if __name__ == "__main__":
    sys.exit(main())
