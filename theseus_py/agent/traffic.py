"""What NICs carry, whoever sends it: the kernel's counters."""

from __future__ import annotations

import functools
from pathlib import Path

from theseus_py import _core

__all__ = ["Traffic", "traffic_of"]

Traffic = tuple[int, int]  # bytes sent, bytes received
# Not /sys/class/net: that shows the network namespace that it was mounted in.
_COUNTERS = Path("/proc/self/net/dev")


def traffic_of(address: str) -> Traffic | None:
    """Returns what went through the NIC of this host that has an address; None where that cannot be told."""
    name = _names().get(address)
    try:
        lines = [] if name is None else _COUNTERS.read_text().splitlines()
        fields = next(line.split(":")[1].split() for line in lines if line.split(":")[0].strip() == name)
        return int(fields[8]), int(fields[0])
    except (OSError, ValueError, IndexError, StopIteration):
        return None


@functools.cache
def _names() -> dict[str, str]:
    try:
        rails = _core.local_rails()
    except RuntimeError:
        return {}
    return {address.rpartition(":")[0].strip("[]"): name for name, addresses in rails for address in addresses}
