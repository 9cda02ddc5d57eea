"""One rank of a job that runs collectives when told: `nic_rank.py theseus|gloo BYTES`; its control socket is inherited.

A run has two steps, so that preparing is not measured: "prepare" is
answered when inputs and outputs are set, "go" when the result is there and has been compared with exact integers.
"""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

if not __package__:
    # In place of this file's own folder, whose names would hide others.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.harness.nic_control import obey
from benchmarks.harness.nic_values import Expected

# gloo gives an operation one NIC, and takes them in turns: this many pieces keep all busy.
_GLOO_PIECES = 4

Array = npt.NDArray[np.float32]


class Theseus:
    """The collectives of this library."""

    def __init__(self) -> None:
        from theseus_py import Communicator

        self._communicator = Communicator.from_env(name="failslow")
        self.rank, self.ranks = self._communicator.rank, self._communicator.ranks
        self._plans: dict[str, Any] = {}

    def load(self, name: str, plan: bytes) -> None:
        """Takes in a plan that runs can name."""
        self._plans[name] = self._communicator.load_plan(plan)

    def explain(self, collective: str, count: int) -> str:
        """Returns the algorithm that would run."""
        return self._communicator.explain(collective, count).chosen

    def call(self, collective: str, send: Array, recv: Array, plan: str | None) -> None:
        """Runs one collective to its end."""
        chosen = None if plan is None else self._plans[plan]
        if collective == "broadcast":
            self._communicator.broadcast(recv, plan=chosen)
        else:
            getattr(self._communicator, collective)(send, recv, plan=chosen)


class Gloo:
    """The same calls over torch.distributed's gloo, in pieces that run side by side."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self._torch, self._dist = torch, dist

    def load(self, name: str, plan: bytes) -> None:
        raise RuntimeError("gloo runs no plans")

    def explain(self, collective: str, count: int) -> str:
        """Returns how calls are made."""
        return f"{_GLOO_PIECES} pieces"

    def call(self, collective: str, send: Array, recv: Array, plan: str | None) -> None:
        """Runs one collective to its end."""
        works = {
            "all_reduce": self._all_reduce,
            "all_gather": self._all_gather,
            "reduce_scatter": self._reduce_scatter,
            "broadcast": self._broadcast,
        }[collective](send, recv)
        for work in works:
            work.wait()

    def _pieces(self, array: Array) -> list[Any]:
        return list(self._torch.from_numpy(array).chunk(_GLOO_PIECES))

    def _blocks(self, array: Array) -> list[list[Any]]:
        """For each piece, its part of every rank's block."""
        blocks = [list(block.chunk(_GLOO_PIECES)) for block in self._torch.from_numpy(array).chunk(self.ranks)]
        return [list(piece) for piece in zip(*blocks, strict=True)]

    def _all_reduce(self, send: Array, recv: Array) -> list[Any]:
        recv[:] = send  # gloo works in place only; counted, as is a few per cent of the network's time at most
        return [self._dist.all_reduce(piece, async_op=True) for piece in self._pieces(recv)]

    def _all_gather(self, send: Array, recv: Array) -> list[Any]:
        pairs = zip(self._blocks(recv), self._pieces(send), strict=True)
        return [self._dist.all_gather(blocks, piece, async_op=True) for blocks, piece in pairs]

    def _reduce_scatter(self, send: Array, recv: Array) -> list[Any]:
        pairs = zip(self._pieces(recv), self._blocks(send), strict=True)
        return [self._dist.reduce_scatter(piece, blocks, async_op=True) for piece, blocks in pairs]

    def _broadcast(self, send: Array, recv: Array) -> list[Any]:
        return [self._dist.broadcast(piece, 0, async_op=True) for piece in self._pieces(recv)]


class Rank:
    """Obeys the commands."""

    def __init__(self, endpoint: Theseus | Gloo, most_bytes: int) -> None:
        self._endpoint = endpoint
        self._expected = Expected(endpoint.rank, endpoint.ranks, most_bytes // 4)
        self._recv = np.empty(most_bytes // 4, np.float32)
        self._next: Callable[[], None] = lambda: None
        self._compare: Callable[[], int] = lambda: 0

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        """Does what it is told, and returns the answer."""
        what = command["do"]
        if what == "prepare":
            self._prepare(command["collective"], command["bytes"] // 4, command["plan"])
        elif what == "go":
            begin = time.monotonic()
            self._next()
            end = time.monotonic()
            return {"begin": begin, "end": end, "wrong": self._compare()}
        elif what == "load":
            self._endpoint.load(command["name"], base64.b64decode(command["plan"]))
        elif what == "explain":
            return {"chosen": self._endpoint.explain(command["collective"], command["bytes"] // 4)}
        else:
            raise ValueError(f"unknown command {what!r}")
        return {}

    def _prepare(self, collective: str, count: int, plan: str | None) -> None:
        send, recv = self._expected.buffers(collective, count, self._recv)
        self._next = lambda: self._endpoint.call(collective, send, recv, plan)
        self._compare = lambda: self._expected.wrong(collective, count, recv)


if __name__ == "__main__":
    obey(Rank(Theseus() if sys.argv[1] == "theseus" else Gloo(), int(sys.argv[2])).obey)
