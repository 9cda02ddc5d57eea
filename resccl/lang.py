"""ResCCLang: how algorithms are written (ResCCL, section 3).

An algorithm says what moves where: `Transfer(src, dst, step, chunk, op)` over the chunks of a collective. Channels,
thread blocks and sub-pipelines are the compiler's business.

    algorithm = Algorithm("mesh", "AllGather", ranks=4)
    with algorithm.phase("exchange") as phase:
        for src in algorithm.all_ranks:
            for dst in algorithm.all_ranks:
                if src != dst:
                    phase.send(src, dst, step=0, chunk=src)

`step` orders the transfers of one chunk: a transfer reads what all smaller steps left. Reduces that arrive at one rank
for one chunk in one step are combined, the rank's own value among them.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from resccl.check import Fault, find_fault
from resccl.collectives import ChunkSpace
from resccl.errors import AlgorithmError

_COLUMNS = ("src", "dst", "step", "chunk", "op", "rail")
_MOST_STEPS = 1 << 24
_MOST_RAILS = 1 << 15


class Op(IntEnum):
    """What the receiver does with a chunk that arrives."""

    COPY = 0  # it replaces the receiver's version: the paper's send and recv, the two ends of one transfer
    REDUCE = 1  # it is combined with the receiver's version: recvReduceCopy

    @classmethod
    def of(cls, name: Op | str | int) -> Op:
        """Return the op of a name: copy, send, recv; reduce, recvReduceCopy, rrc."""
        if isinstance(name, str):
            found = _OP_NAMES.get(name.replace("_", "").lower())
            if found is None:
                raise ValueError(
                    f"there is no op '{name}'; there are send (or recv, copy) and recvReduceCopy (or reduce)"
                )
            return found
        return cls(name)


_OP_NAMES = {
    "copy": Op.COPY,
    "send": Op.COPY,
    "recv": Op.COPY,
    "reduce": Op.REDUCE,
    "recvreducecopy": Op.REDUCE,
    "rrc": Op.REDUCE,
}


class Transfer:
    """One chunk on its way from `src` to `dst`; `rail` -1 leaves the rail to the compiler. Remembers its line."""

    __slots__ = ("_file", "_line", "chunk", "dst", "op", "rail", "src", "step")

    def __init__(self, src: int, dst: int, step: int, chunk: int, op: Op | str | int = Op.COPY, rail: int = -1) -> None:
        self.src = src
        self.dst = dst
        self.step = step
        self.chunk = chunk
        self.op = Op.of(op)
        self.rail = rail
        frame = sys._getframe(1)
        self._file = frame.f_code.co_filename
        self._line = frame.f_lineno

    def __repr__(self) -> str:
        op = "recvReduceCopy" if self.op else "send"
        rail = f", rail={self.rail}" if self.rail >= 0 else ""
        return f"Transfer({self.src}, {self.dst}, step={self.step}, chunk={self.chunk}, op='{op}'{rail})"


class Phase:
    """A named stretch of steps; made by Algorithm.phase. Steps given to it count from its first."""

    def __init__(self, algorithm: Algorithm, name: str, first_step: int) -> None:
        self._algorithm = algorithm
        self.name = name
        self.first_step = first_step
        self.steps = 0  # how many it has used

    def send(self, src: int, dst: int, step: int, chunk: int, rail: int = -1) -> None:
        """Add a transfer that replaces the receiver's version of the chunk."""
        self._algorithm._append(self, (src, dst, step, chunk, Op.COPY, rail), sys._getframe(1))

    def recv_reduce_copy(self, src: int, dst: int, step: int, chunk: int, rail: int = -1) -> None:
        """Add a transfer that is combined with the receiver's version of the chunk."""
        self._algorithm._append(self, (src, dst, step, chunk, Op.REDUCE, rail), sys._getframe(1))

    copy = send
    reduce = recv_reduce_copy

    def add(self, *transfers: Transfer) -> None:
        """Add transfers; an error names the line that made the Transfer."""
        for t in transfers:
            self._algorithm._append(self, (t.src, t.dst, t.step, t.chunk, t.op, t.rail), (t._file, t._line))

    def add_array(self, transfers: ArrayLike) -> None:
        """Add transfers from integers of shape (n, 4) to (n, 6): src, dst, step, chunk, op (default 0), rail (-1)."""
        self._algorithm._extend(self, transfers, sys._getframe(1))


class Algorithm:
    """A collective, and the transfers that do it.

    `chunks` is the number of pieces that the collective's data is cut into, of all ranks together: a multiple of the
    ranks for AllGather, ReduceScatter, Gather and Scatter (rank r's block is chunks r*k to (r+1)*k - 1), of the ranks
    squared for AllToAll (block s*ranks + d goes from s to d). Default: the fewest, or one a rank for AllReduce.
    """

    def __init__(self, name: str, collective: str, ranks: int, chunks: int | None = None, root: int = 0) -> None:
        if chunks is None:
            chunks = ranks if collective == "AllReduce" else ChunkSpace(collective, ranks, ranks**2, root).blocks
        self.space = ChunkSpace(collective, ranks, chunks, root)
        self.name = name
        self.phases: list[Phase] = []
        self._whole = Phase(self, "", 0)
        self._open: Phase | None = None
        self._rows = array("i")
        self._lines = array("i")
        self._files: dict[str, int] = {}
        self._file_of = array("i")

    @property
    def collective(self) -> str:
        return self.space.collective

    @property
    def ranks(self) -> int:
        return self.space.ranks

    @property
    def chunks(self) -> int:
        return self.space.chunks

    @property
    def root(self) -> int:
        return self.space.root

    @property
    def all_ranks(self) -> range:
        return range(self.ranks)

    @property
    def transfers(self) -> NDArray[np.int32]:
        """A copy of all transfers, shape (n, 6): src, dst, step, chunk, op, rail."""
        return np.array(self._rows, dtype=np.int32).reshape(-1, len(_COLUMNS))

    @property
    def steps(self) -> int:
        """One more than the largest step."""
        return max([self._whole.steps, *(phase.first_step + phase.steps for phase in self.phases)])

    def __len__(self) -> int:
        return len(self._lines)

    def __repr__(self) -> str:
        what = f"{self.ranks} ranks, {self.chunks} chunks, {len(self)} transfers"
        return f"Algorithm({self.name!r}, {self.collective}, {what})"

    @contextmanager
    def phase(self, name: str, at: int | None = None) -> Iterator[Phase]:
        """Open a phase whose step 0 is the first step after all before, or step `at` of the algorithm."""
        if at is not None and not 0 <= at < _MOST_STEPS:
            raise AlgorithmError(f"phase '{name}' begins at step {at}: steps count from 0 and stay below {_MOST_STEPS}")
        if self._open is not None:
            raise AlgorithmError(f"phase '{name}' begins inside phase '{self._open.name}'; close that one first")
        phase = Phase(self, name, self.steps if at is None else at)
        self.phases.append(phase)
        self._open = phase
        try:
            yield phase
        finally:
            self._open = None

    def send(self, src: int, dst: int, step: int, chunk: int, rail: int = -1) -> None:
        """Add a transfer that replaces the receiver's version of the chunk."""
        self._append(self._whole, (src, dst, step, chunk, Op.COPY, rail), sys._getframe(1))

    def recv_reduce_copy(self, src: int, dst: int, step: int, chunk: int, rail: int = -1) -> None:
        """Add a transfer that is combined with the receiver's version of the chunk."""
        self._append(self._whole, (src, dst, step, chunk, Op.REDUCE, rail), sys._getframe(1))

    copy = send
    reduce = recv_reduce_copy

    def add(self, *transfers: Transfer) -> None:
        """Add transfers; an error names the line that made the Transfer."""
        for t in transfers:
            self._append(self._whole, (t.src, t.dst, t.step, t.chunk, t.op, t.rail), (t._file, t._line))

    def add_array(self, transfers: ArrayLike) -> None:
        """Add transfers from integers of shape (n, 4) to (n, 6): src, dst, step, chunk, op (default 0), rail (-1)."""
        self._extend(self._whole, transfers, sys._getframe(1))

    def check(self) -> None:
        """Find what only the whole algorithm shows; AlgorithmError names the line that made the transfer at fault.

        A chunk sent by a rank that does not hold it yet, a copy that arrives beside another transfer, a contribution
        that is reduced twice, an output that stays incomplete.
        """
        fault = find_fault(self.space, self.transfers)
        if fault is not None:
            self.raise_fault(fault)

    def raise_fault(self, fault: Fault) -> NoReturn:
        """Raise the AlgorithmError for a fault of `resccl.check`."""
        file, line = self.line_of(fault.transfer) if fault.transfer is not None else (None, None)
        raise AlgorithmError(f"algorithm '{self.name}': {fault.text}", file, line)

    def line_of(self, transfer: int) -> tuple[str | None, int | None]:
        """Return the file and line that made a transfer; None where it came from no program."""
        line = self._lines[transfer]
        return (None, None) if line == 0 else (list(self._files)[self._file_of[transfer]], line)

    def to_dict(self) -> dict[str, Any]:
        """Return what the compiler takes: name, collective, ranks, chunks, root, transfers as an array."""
        return {
            "name": self.name,
            "collective": self.collective,
            "ranks": self.ranks,
            "chunks": self.chunks,
            "root": self.root,
            "transfers": self.transfers,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Algorithm:
        """Return the algorithm of to_dict's fields; its transfers may be nested lists."""
        algorithm = cls(fields["name"], fields["collective"], fields["ranks"], fields["chunks"], fields.get("root", 0))
        algorithm._extend(algorithm._whole, fields["transfers"], None)
        return algorithm

    def _append(
        self, phase: Phase, row: tuple[int, int, int, int, int, int], where: FrameType | tuple[str, int]
    ) -> None:
        file, line = (where.f_code.co_filename, where.f_lineno) if isinstance(where, FrameType) else where
        src, dst, step, chunk, op, rail = row
        ranks = self.space.ranks
        good = (
            0 <= src < ranks
            and 0 <= dst < ranks
            and src != dst
            and 0 <= step < _MOST_STEPS
            and 0 <= chunk < self.space.chunks
            and -1 <= rail < _MOST_RAILS
            and (op == 0 or self.space.reducing)
        )
        if not good:
            raise AlgorithmError(f"algorithm '{self.name}': {self._fault_of(row)}", file, line)
        self._note_steps(phase, step, file, line)
        self._rows.extend((src, dst, phase.first_step + step, chunk, op, rail))
        self._file_of.append(self._files.setdefault(file, len(self._files)))
        self._lines.append(line)

    def _extend(self, phase: Phase, transfers: ArrayLike, frame: FrameType | None) -> None:
        file, line = (None, 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
        try:
            rows = _six_columns(transfers)
        except ValueError as error:
            raise AlgorithmError(f"algorithm '{self.name}': {error}", file, line or None) from error
        if len(rows) == 0:
            return
        src, dst, step, chunk, op, rail = rows.T
        ranks = self.space.ranks
        good = (src >= 0) & (src < ranks) & (dst >= 0) & (dst < ranks) & (src != dst) & (step >= 0)
        good &= (step < _MOST_STEPS) & (chunk >= 0) & (chunk < self.chunks) & (rail >= -1) & (rail < _MOST_RAILS)
        good &= (op == 0) | ((op == 1) & self.space.reducing)
        if not good.all():
            first = int(np.argmin(good))
            why = self._fault_of(tuple(int(value) for value in rows[first]))
            raise AlgorithmError(f"algorithm '{self.name}', row {first} of the array: {why}", file, line or None)
        self._note_steps(phase, int(step.max()), file, line or None)
        rows[:, 2] += phase.first_step
        self._rows.frombytes(rows.astype(np.int32).tobytes())
        number = 0 if file is None else self._files.setdefault(file, len(self._files))
        self._file_of.extend([number] * len(rows))
        self._lines.extend([line] * len(rows))

    def _note_steps(self, phase: Phase, step: int, file: str | None, line: int | None) -> None:
        if phase is self._whole and self._open is not None:
            raise AlgorithmError(f"phase '{self._open.name}' is open: add its transfers to it", file, line)
        phase.steps = max(phase.steps, step + 1)

    def _fault_of(self, row: Iterable[int]) -> str:
        src, dst, step, chunk, op, rail = row
        who = f"transfer {src} -> {dst} of chunk {chunk} at step {step}: "
        if not (0 <= src < self.ranks and 0 <= dst < self.ranks):
            return who + f"there are ranks 0 to {self.ranks - 1}"
        if src == dst:
            return who + "a rank cannot send to itself"
        if not 0 <= chunk < self.chunks:
            return who + f"there are chunks 0 to {self.chunks - 1}"
        if not 0 <= step < _MOST_STEPS:
            return who + f"steps count from 0 and stay below {_MOST_STEPS}"
        if not -1 <= rail < _MOST_RAILS:
            return who + f"rail {rail}: rails count from 0, and -1 leaves the choice to the compiler"
        if op in (0, 1):
            return who + f"{self.collective} does not reduce"
        return who + f"there is no op {op}; 0 copies, 1 reduces"


def _six_columns(transfers: ArrayLike) -> NDArray[np.int64]:
    """Return a fresh array of shape (n, 6); ValueError where the numbers are no integers or the columns do not fit."""
    given = np.asarray(transfers)
    if given.size == 0:
        return np.empty((0, len(_COLUMNS)), dtype=np.int64)
    if given.dtype.kind not in "iu":
        raise ValueError(f"an array of transfers holds integers, not {given.dtype}")
    if given.ndim != 2 or not 4 <= given.shape[1] <= len(_COLUMNS):
        raise ValueError(f"an array of transfers has the columns {', '.join(_COLUMNS)} (the last two may be left out)")
    rows = np.zeros((len(given), len(_COLUMNS)), dtype=np.int64)
    rows[:, 5] = -1
    rows[:, : given.shape[1]] = given
    return rows
