"""Runs one `Case` on one rank, in a guarded piece of memory, and checks what it left there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from process.reference import COLLECTIVES, OPS, Array, Case, ElementType, decode, encode, factor
from process.reference import input_blocks as blocks_in
from process.reference import output_blocks as blocks_out

from theseus_py import Communicator

_GUARD = 192  # bytes before and behind each buffer, which must stay as they are
_PATTERN = 0xA5


class Guarded:
    """`count` elements, `shift` elements off a 64-byte boundary, between bytes that nothing may write."""

    def __init__(self, count: int, kind: ElementType, shift: int) -> None:
        self.memory = np.full(2 * _GUARD + 64 + (count + shift) * kind.size, _PATTERN, np.uint8)
        self.start = _GUARD + -(self.memory.ctypes.data + _GUARD) % 64 + shift * kind.size
        self.end = self.start + count * kind.size
        # NumPy computes on misaligned views as on any others.
        self.array: Array = self.memory[self.start : self.end].view(kind.storage)
        self.address = self.memory.ctypes.data + self.start

    def guards_are_whole(self) -> bool:
        return bool((self.memory[: self.start] == _PATTERN).all() and (self.memory[self.end :] == _PATTERN).all())


@dataclass
class Outcome:
    """What one rank has after a case: its output as stored, and what is wrong with the memory around."""

    output: Array
    faults: list[str] = field(default_factory=list)


def run_case(communicator: Communicator, case: Case, own: Array, plan: int = 0) -> Outcome:
    """Run `case` with `own` as this rank's input, on the loaded plan of that id if there is one."""
    rank, ranks, kind, count = communicator.rank, communicator.ranks, case.element, case.count
    inputs, outputs = blocks_in(case, ranks, rank), blocks_out(case, ranks, rank)
    send = Guarded(max(inputs, 1) * count, kind, case.send_shift)
    recv = Guarded(max(outputs, 1) * count, kind, case.recv_shift)
    send_address, recv_address = send.address, recv.address
    result, kept = recv, [(send, slice(0, inputs * count), own)]
    block = count * kind.size
    if case.in_place and case.collective != "AllToAll":
        if case.collective in ("ReduceScatter", "Scatter") and inputs:
            recv_address = send.address + rank * block
            result, kept = send, []
            result_slice = slice(rank * count, (rank + 1) * count)
            others = np.ones(inputs * count, bool)
            others[result_slice] = False
        elif outputs:
            offset = rank * block if case.collective in ("AllGather", "Gather") else 0
            send_address, kept = recv.address + offset, []
    if result is recv:
        result_slice = slice(0, outputs * count)
    _fill(case, send, send_address, recv, own)
    if not outputs:
        recv_address = 0  # NULL is legal where nothing is received
    if not inputs:
        send_address = 0
    _submit(communicator, case, send_address, recv_address, plan)
    outcome = Outcome(result.array[result_slice].copy())
    if not (send.guards_are_whole() and recv.guards_are_whole()):
        outcome.faults.append("bytes beside a buffer were written")
    for guarded, where, before in kept:
        if guarded.array[where].tobytes() != before.tobytes():
            outcome.faults.append("the input was written")
    if result is send and send.array[others].tobytes() != own[others].tobytes():
        outcome.faults.append("blocks of sendbuff that are not this rank's were written")
    if not outputs and (recv.array.view(np.uint8) != _PATTERN).any():
        outcome.faults.append("a recvbuff that gets nothing was written")
    return outcome


def _fill(case: Case, send: Guarded, send_address: int, recv: Guarded, own: Array) -> None:
    if not recv.address <= send_address < recv.address + max(1, recv.array.nbytes):
        send.array[: len(own)] = own
        return
    start = (send_address - recv.address) // case.element.size
    recv.array[start : start + len(own)] = own


def _submit(communicator: Communicator, case: Case, send: int, recv: int, plan: int) -> None:
    core, kind = communicator._core, case.element
    op = OPS.index(case.op)
    premulsum = case.op == "PreMulSum"
    if premulsum:
        op = core.create_premulsum(kind.number, encode(np.array([factor(communicator.rank)]), kind).tobytes())
    try:
        core.run_plan(plan, COLLECTIVES.index(case.collective), send, recv, case.count, kind.number, op, case.root, 0)
    finally:
        if premulsum:
            core.destroy_op(op)


def check_outcomes(case: Case, outcomes: list[Outcome], wanted: list[tuple[Array, Array]]) -> list[str]:
    """What is wrong with the ranks' outcomes; empty: nothing."""
    problems = [f"rank {rank}: {fault}" for rank, each in enumerate(outcomes) for fault in each.faults]
    for rank, (outcome, (values, tolerance)) in enumerate(zip(outcomes, wanted, strict=True)):
        problems += [f"rank {rank}: {text}" for text in _differences(case, outcome.output, values, tolerance)]
    if case.collective in ("AllReduce", "AllGather", "Broadcast"):
        first = outcomes[0].output.tobytes()
        unequal = [rank for rank, each in enumerate(outcomes) if each.output.tobytes() != first]
        if unequal:
            problems.append(f"ranks {unequal} hold other bits than rank 0")
    return problems


def _differences(case: Case, output: Array, values: Array, tolerance: Array) -> list[str]:
    got = decode(output, case.element)
    if len(got) != len(values):
        return [f"{len(got)} elements instead of {len(values)}"]
    if case.element.is_float:
        with np.errstate(invalid="ignore"):
            good = (np.abs(got - values) <= tolerance) | (got == values) | (np.isnan(got) & np.isnan(values))
    else:
        good = got == values
    wrong = np.flatnonzero(~good)
    if not len(wrong):
        return []
    at: Any = wrong[0]
    return [f"{len(wrong)} of {len(got)} elements are wrong, first [{at}]: {got[at]} instead of {values[at]}"]
