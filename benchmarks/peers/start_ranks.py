"""Starts the ranks of a library that has no launcher: `start_ranks.py RANKS BIND COMMAND ...`.

All ranks share one session, as they do under an MPI launcher. That matters with more ranks than processors: Linux
shares processors between sessions, and sched_yield(2) does not reach beyond the caller's own. BIND is "bind" for a
processor a rank, "free", or "sessions" for a session a rank, as torchrun has it, and no binding.

With THESEUS_BENCH_HOSTS and THESEUS_BENCH_RAILS the ranks play that many hosts with that many rails each, on loopback.
"""

from __future__ import annotations

import os
import subprocess
import sys


def place(rank: int, ranks: int) -> dict[str, str]:
    """What tells a rank who it is."""
    variables = {"THESEUS_BENCH_RANK": str(rank), "THESEUS_BENCH_RANKS": str(ranks)}
    hosts = int(os.environ.get("THESEUS_BENCH_HOSTS", "1"))
    if hosts > 1:
        host, rails = rank * hosts // ranks, int(os.environ.get("THESEUS_BENCH_RAILS", "1"))
        # Hosts of one name share their NICs, whichever job they belong to.
        variables["THESEUS_HOST"] = f"bench{os.getpid()}-{host}"
        variables["THESEUS_NICS"] = ",".join(f"127.0.{host + 1}.{rail + 1}" for rail in range(rails))
    return variables


def main() -> int:
    """Run all ranks to their end; if one fails, or this process is asked to end, the others are ended too."""
    ranks, how, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    processors = sorted(os.sched_getaffinity(0))
    children: dict[int, subprocess.Popen[bytes]] = {}
    for rank in range(ranks):
        own = ["taskset", "-c", str(processors[rank % len(processors)]), *command] if how == "bind" else command
        environment = {**os.environ, **place(rank, ranks)}
        child = subprocess.Popen(own, env=environment, start_new_session=how == "sessions")
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
