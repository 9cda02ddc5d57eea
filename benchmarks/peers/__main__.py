"""`python -m benchmarks.peers install [NAME ...]` and `python -m benchmarks.peers list`."""

from __future__ import annotations

import argparse
import sys

from benchmarks.peers.catalog import NOT_SCRIPTED, PEERS, bench_folder
from benchmarks.peers.install import install_all


def main() -> int:
    """Entry point; 1 if a peer could not be installed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    install = commands.add_parser("install", help="download, unpack and build peers (about 180 MB)")
    install.add_argument("names", nargs="*", metavar="NAME", help="all, if none is named")
    commands.add_parser("list", help="show which peers are ready")
    arguments = parser.parse_args()
    names = [peer.name for peer in PEERS]
    unknown = sorted(set(getattr(arguments, "names", [])) - set(names))
    if unknown:
        parser.error(f"unknown peer {', '.join(unknown)}; there are {', '.join(names)}")
    failed = install_all(arguments.names) if arguments.command == "install" else {}
    print(f"peers in {bench_folder()}")
    for peer in PEERS:
        state = f"failed: {failed[peer.name]}" if peer.name in failed else peer.missing() or "ready"
        print(f"  {peer.name:10s} {peer.title:28s} {state}")
    for reason in NOT_SCRIPTED.values():
        print(f"  {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
