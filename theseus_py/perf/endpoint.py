"""A communicator as the sweep sees it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from theseus_py.communicator import Communicator, LoadedPlan, group
from theseus_py.dtypes import Collective, RedOp, data_type
from theseus_py.perf.memory import Memory, memory_of
from theseus_py.perf.sweep import Call
from theseus_py.perf.values import Array

_COLLECTIVES = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "broadcast": Collective.BROADCAST,
    "reduce": Collective.REDUCE,
    "alltoall": Collective.ALL_TO_ALL,
    "gather": Collective.GATHER,
    "scatter": Collective.SCATTER,
}
_TEXT_BYTES = 256


class CommunicatorEndpoint:
    """Runs a sweep's calls on a theseus_py.Communicator, by address: element types that NumPy lacks need no wrapper.

    Buffers are where the communicator works, on the host or on its GPU. With `plan`, the calls run on that; what the
    sweep itself needs does not.
    """

    def __init__(self, communicator: Communicator, plan: LoadedPlan | None = None) -> None:
        self._communicator = communicator
        self._plan = 0 if plan is None else plan.id
        self.rank = communicator.rank
        self.ranks = communicator.ranks
        self.memory: Memory = memory_of(communicator.device)

    def prepare(self, call: Call) -> Callable[[], None]:
        if call.kind.name == "barrier":
            return self.barrier
        if call.kind.name == "sendrecv":
            return functools.partial(self._send_and_receive, call)
        shape_count = call.receive.size if call.kind.name in ("reduce_scatter", "scatter") else call.send.size
        count = shape_count // self.ranks if call.kind.name == "alltoall" else shape_count
        operation = RedOp[call.operation.upper()] if call.kind.reduces else RedOp.SUM
        return functools.partial(
            self._communicator._core.run_plan,
            self._plan,
            int(_COLLECTIVES[call.kind.name]),
            self.memory.address(call.send),
            self.memory.address(call.receive),
            count,
            int(data_type(call.element.canonical)),
            int(operation),
            call.root,
            self.memory.stream,
        )

    def _send_and_receive(self, call: Call) -> None:
        stream = self.memory.stream
        with group():
            self._communicator.send(call.send.view(np.uint8), (self.rank + 1) % self.ranks, stream=stream)
            self._communicator.recv(call.receive.view(np.uint8), (self.rank - 1) % self.ranks, stream=stream)

    def barrier(self) -> None:
        """Returns when every rank has come, and all that was queued here is done."""
        self.memory.settle()
        self._communicator.barrier()

    def total(self, values: list[float]) -> list[float]:
        array = self._sent(np.array(values, np.float64))
        self._communicator.all_reduce(array, stream=self.memory.stream)
        return [float(value) for value in self.memory.read(array)]

    def gather_text(self, text: str) -> list[str]:
        """What each rank passed, by rank, at most 256 bytes of it."""
        mine = np.zeros(_TEXT_BYTES, np.uint8)
        data = text.encode()[:_TEXT_BYTES]
        mine[: len(data)] = np.frombuffer(data, np.uint8)
        everybody = self.memory.zeros(self.ranks * _TEXT_BYTES, "uint8")
        self._communicator.all_gather(self._sent(mine), everybody, stream=self.memory.stream)
        rows = self.memory.read(everybody).reshape(self.ranks, _TEXT_BYTES)
        return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]

    def _sent(self, values: Array) -> Array:
        """The values, where the communicator works."""
        buffer: Array = self.memory.zeros(values.size, values.dtype.name)
        self.memory.write(buffer, values)
        return buffer
