"""How long a change of marks takes."""

from __future__ import annotations

import time

from leveller.core.model import FiveTuple
from leveller.enforce.effective import Enforcer

__all__ = ["seconds_of_changes"]


def seconds_of_changes(enforcer: Enforcer, changed: int = 100, marked: int = 100, times: int = 15) -> list[float]:
    """Marks `marked` flows that nobody has, then changes `changed` of them, `times` times.

    Returns what each change took until the kernel had it and said so: seconds. RuntimeError: it refuses.
    """
    flows = [FiveTuple("tcp", "192.0.2.1", 1024 + n, "192.0.2.2", 9) for n in range(marked)]
    took = []
    for turn in range(times + 1):
        marks = {flow: (8, 40)[turn % 2] if n < changed else 16 for n, flow in enumerate(flows)}
        begin = time.perf_counter()
        found = enforcer.apply(marks)
        took.append(time.perf_counter() - begin)
        refused = [each.reason for each in found.values() if each.effective != each.requested]
        if refused:
            raise RuntimeError(f"{len(refused)} of {marked} marks are refused: {refused[0]}")
    return took[1:]
