"""`python -m theseus_py.agent --job J --host H`: the agent as a process. `theseus agent` is the same, for people."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from theseus_py.agent.main import Options, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until the job's last rank on this host is gone. 0: done, or another agent is there already; 1: it failed."""
    parser = argparse.ArgumentParser(prog="theseus_py.agent", description=__doc__, allow_abbrev=False)
    parser.add_argument("--job", required=True, help="name of the job")
    parser.add_argument("--host", required=True, help="name of this host, as the ranks have it")
    parser.add_argument("--port", type=int, default=0, help="where the other agents reach this one (0: any)")
    parser.add_argument("--keep", action="store_true", help="keep the state folder at the end")
    parser.add_argument("--stay", action="store_true", help="stay when the last rank is gone")
    chosen = parser.parse_args(arguments)
    return run(Options(chosen.job, chosen.host, chosen.port, chosen.keep, chosen.stay))


if __name__ == "__main__":
    sys.exit(main())
