"""How long thread blocks wait: the idle shares of the paper's Table 3."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from resccl.plan import Plan
from resccl.study.hardware import Hardware
from resccl.study.simulate import simulate
from resccl.topology import Topology

SIZE = 256 << 20


def idle_shares(
    plan: Plan, topology: Topology | str | Sequence[int], size: float = SIZE, hardware: Hardware | None = None
) -> NDArray[np.float64]:
    """Return, for each TB that does anything, the share of its life in which it moves nothing; rank by rank, 0 to 1.

    A TB lives from the start to its own last instruction (it then gives its SM back). It is busy while a message that
    it sends, or is there to receive, is on its way (alpha included), and while it copies or reduces. The mean is what
    the paper's Table 3 has. `size`: bytes, as for resccl.study.simulate.
    """
    return np.array([block.idle_share for block in simulate(plan, topology, size, hardware).blocks])
