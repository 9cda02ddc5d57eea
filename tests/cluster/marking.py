"""Marks flows, as a program: `marking.py nft|guarded|iptables FILE`, where FILE says what to mark, as JSON.

It looks for changes of FILE all the time, and prints for each what holds then. `guarded` is nft without table owners.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

from leveller.core.model import FiveTuple
from leveller.enforce import Enforcer, IptablesEnforcer, NftEnforcer

_TRIAL = """
import ctypes, sys
from leveller.enforce import IptablesEnforcer, NftEnforcer
if ctypes.CDLL(None, use_errno=True).unshare(0x40000000) and ctypes.CDLL(None).unshare(0x50000000):
    sys.exit("no network namespace can be made")
try:
    (IptablesEnforcer if sys.argv[1] == "iptables" else NftEnforcer)().close()
except OSError as error:
    sys.exit(error.strerror)
"""


@cache
def lacking(kind: str) -> str | None:
    """Returns why this machine cannot mark by "nft" or "iptables"; None: it can. Found by doing it."""
    ended = subprocess.run([sys.executable, "-c", _TRIAL, kind], capture_output=True, text=True, timeout=60)
    return (ended.stderr.strip().splitlines() or ["unknown"])[-1] if ended.returncode else None


def enforcer(kind: str) -> Enforcer:
    """Makes one."""
    return IptablesEnforcer() if kind == "iptables" else NftEnforcer(owner=kind == "nft")


def main(kind: str, file: Path) -> None:
    """Until it is killed."""
    try:
        made = enforcer(kind)
    except OSError as error:
        sys.exit(error.strerror)
    said = ""
    while True:
        if (now := file.read_text()) != said:
            said = now
            found = made.apply({FiveTuple(*flow): dscp for flow, dscp in json.loads(said)})
            print(json.dumps([[each.requested, each.effective] for each in found.values()]), flush=True)
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
