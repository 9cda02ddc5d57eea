"""Starts the ranks of a library that has no launcher: `start_ranks.py RANKS BIND COMMAND ...`.

All ranks share one session, as they do under an MPI launcher. That matters with more ranks than processors: Linux
shares processors between sessions, and sched_yield(2) does not reach beyond the caller's own. BIND is "bind" for a
processor a rank, or "free".
"""

from __future__ import annotations

import os
import subprocess
import sys


def main() -> int:
    """Run all ranks to their end; if one fails, the others are ended too. The first failure's exit status."""
    ranks, bind, command = int(sys.argv[1]), sys.argv[2] == "bind", sys.argv[3:]
    processors = sorted(os.sched_getaffinity(0))
    children: dict[int, subprocess.Popen[bytes]] = {}
    for rank in range(ranks):
        own = ["taskset", "-c", str(processors[rank % len(processors)]), *command] if bind else command
        environment = {**os.environ, "THESEUS_BENCH_RANK": str(rank), "THESEUS_BENCH_RANKS": str(ranks)}
        child = subprocess.Popen(own, env=environment)
        children[child.pid] = child
    while children:
        ended, status = os.wait()
        children.pop(ended, None)
        if status != 0:
            for child in children.values():
                child.kill()
            return os.waitstatus_to_exitcode(status) & 0xFF
    return 0


if __name__ == "__main__":
    sys.exit(main())
