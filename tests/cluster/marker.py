"""Marks one flow by nftables and says so, then waits: `marker.py SOURCE PORT DESTINATION PORT DSCP`."""

from __future__ import annotations

import sys
import time

from leveller.core.model import FiveTuple
from leveller.enforce.nft import NftEnforcer, NftError

if __name__ == "__main__":
    source, source_port, destination, destination_port, dscp = sys.argv[1:]
    flow = FiveTuple("tcp", source, int(source_port), destination, int(destination_port))
    try:
        enforcer = NftEnforcer()
        print(enforcer.apply({flow: int(dscp)})[flow].effective, flush=True)
    except NftError as error:
        print(error, flush=True)
    time.sleep(60)
