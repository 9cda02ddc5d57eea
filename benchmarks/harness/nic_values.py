"""Inputs that are small integers, so that every order of summing gives the same bits, and what must come out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
# Prime, so that no chunk of a schedule repeats it; sums over 64 ranks stay far below 2^24.
_PERIOD = 251
_RANK_STEP = 3


class Expected:
    """Element i of rank r's input is i % 251 + 3 r. Collectives are named as the communicator's methods are."""

    def __init__(self, rank: int, ranks: int, most: int) -> None:
        self.rank = rank
        self.ranks = ranks
        self._pattern = np.resize(np.arange(_PERIOD, dtype=np.float32), most)
        self._input = self._pattern + np.float32(_RANK_STEP * rank)

    def buffers(self, collective: str, count: int, recv: Array) -> tuple[Array, Array]:
        """Input and output of a collective in which `count` elements are all that one rank sends or has in the end."""
        block = count // self.ranks
        sent, received = {
            "all_reduce": (count, count),
            "all_gather": (block, count),
            "reduce_scatter": (count, block),
            "broadcast": (count, count),
        }[collective]
        output = recv[:received]
        if collective == "broadcast" and self.rank == 0:
            output[:] = self._input[:count]
        else:
            output.fill(-1)
        return self._input[:sent], output

    def wrong(self, collective: str, count: int, recv: Array) -> int:
        """Returns how many elements of the output are not what they must be."""
        block = count // self.ranks
        if collective == "all_gather":
            parts = recv.reshape(self.ranks, block) - np.arange(0, _RANK_STEP * self.ranks, _RANK_STEP)[:, None]
            return int(np.count_nonzero(parts != self._pattern[:block]))
        if collective == "broadcast":
            return int(np.count_nonzero(recv != self._pattern[:count]))
        first = block * self.rank if collective == "reduce_scatter" else 0
        own = self._pattern[first : first + len(recv)]
        total = np.float32(_RANK_STEP * (self.ranks - 1) * self.ranks // 2)
        return int(np.count_nonzero(recv != own * np.float32(self.ranks) + total))
