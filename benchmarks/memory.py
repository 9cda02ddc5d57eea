"""What a communicator holds in memory: idle, and after a large all-reduce; 4 ranks on one machine, in C.

Counted is what the kernel says the processes have more than before: anonymous memory, and their shares (Pss) of shared
memory, so that a page that four ranks use counts once. Stacks of threads, heap and segments are in it; program text and
the caller's buffers are not.
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import Result, describe, finish, format_size, in_words, ours, parser
from benchmarks.harness.native import NativeFailed, build, output_of
from benchmarks.peers.install import InstallError

RANKS = 4
BYTES = 64 << 20
MIB = 1 << 20


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if the benchmark could not run."""
    made = parser(__doc__)
    made.add_argument("--ranks", type=int, default=RANKS, help="all on this machine")
    made.add_argument("--theseus", type=Path, metavar="FOLDER", help="holds include/nccl.h and lib/libnccl.so.2")
    given = made.parse_args()
    machine = describe()
    print(in_words(machine))
    try:
        program = build("memory", ("memory.c", "ranks.c"), ours.find(given.theseus))
        lines = output_of([str(program), str(given.ranks), str(BYTES)])
    except (ours.NotBuilt, InstallError, NativeFailed) as error:
        print(error, file=sys.stderr)
        return 2
    stages = {line[0]: {"private": float(line[1]), "shared": float(line[2])} for line in lines}
    names = {
        "idle": ("the first communicator, idle", 1.0),
        "used": (f"after an all-reduce of {format_size(BYTES)}", 16.0),
        "second": ("a second one beside it, idle", 1.0),
    }
    results = []
    for stage, (title, target) in names.items():
        private, shared = stages[stage]["private"] / MIB, stages[stage]["shared"] / MIB
        name = f"{title} (private {private:.2f}, shared {shared:.2f})"
        results.append(Result(name, private + shared, target, "MiB a rank"))
    return finish(given, machine, results, ranks=given.ranks, stages=stages)


if __name__ == "__main__":
    sys.exit(main())
