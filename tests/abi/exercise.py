"""Every data call of the C interface on one communicator, checked against NumPy. Run as a script it is one rank."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from abi.binding import AVG, DATA_TYPES, MAX, MIN, PROD, SUM, Array, CollConfig, Nccl, UniqueId, pointer, size

COUNTS = (1, 3, 1000)


def inputs(ranks: int, count: int, kind: str, blocks: int = 1) -> Array:
    """Return what each rank puts in: row r is rank r's, small numbers that every type holds exactly."""
    values = np.arange(ranks * blocks * count).reshape(ranks, blocks * count)
    return ((values * 7 + values // 5) % 5 + 1).astype(kind)


def reduced(rows: Array, op: int) -> Array:
    """Return the reduction over ranks."""
    if op == AVG:
        result = rows.sum(axis=0, dtype=rows.dtype) / rows.dtype.type(len(rows))
    else:
        result = {SUM: np.add, PROD: np.multiply, MAX: np.maximum, MIN: np.minimum}[op].reduce(rows, axis=0)
    return np.asarray(result).astype(rows.dtype)


def assert_reduced(actual: Array, expected: Array, op: int) -> None:
    """Fail unless equal; a floating average may differ by the rounding of its inputs, which are scaled first."""
    if op == AVG and actual.dtype.kind == "f":
        np.testing.assert_allclose(actual, expected, rtol=4 * float(np.finfo(actual.dtype).eps))
    else:
        np.testing.assert_array_equal(actual, expected)


class Exercise:
    """The calls of one rank."""

    def __init__(self, nccl: Nccl, comm: ctypes.c_void_p, rank: int, ranks: int) -> None:
        """Remember whose calls these are."""
        self.nccl, self.comm, self.rank, self.ranks = nccl, comm, rank, ranks

    def run(self) -> None:
        """Run everything."""
        for kind, code in DATA_TYPES.items():
            for count in COUNTS:
                self.reductions(kind, code, count)
                self.movements(kind, code, count)
        self.in_place()
        self.nothing()
        self.point_to_point()

    def call(self, name: str, *arguments: object, options: CollConfig | None = None) -> None:
        """Call a function; communicator and stream, and the options if any, are added."""
        tail: tuple[object, ...] = (self.comm, None)
        if options is not None:
            name, tail = f"{name}Config", (*tail, ctypes.byref(options))
        self.nccl.check(getattr(self.nccl, name)(*arguments, *tail))

    def reductions(self, kind: str, code: int, count: int) -> None:
        """AllReduce, Reduce and ReduceScatter with every operator."""
        rank, ranks = self.rank, self.ranks
        for op in (SUM, PROD, MAX, MIN, AVG):
            rows = inputs(ranks, count, kind)
            out = np.zeros(count, kind)
            self.call("ncclAllReduce", pointer(rows[rank]), pointer(out), size(count), code, op)
            assert_reduced(out, reduced(rows, op), op)
            root = ranks - 1
            out = np.zeros(count, kind)
            self.call("ncclReduce", pointer(rows[rank]), pointer(out), size(count), code, op, root)
            assert_reduced(out, reduced(rows, op) if rank == root else np.zeros(count, kind), op)
            rows = inputs(ranks, count, kind, blocks=ranks)
            out = np.zeros(count, kind)
            self.call("ncclReduceScatter", pointer(rows[rank]), pointer(out), size(count), code, op)
            assert_reduced(out, reduced(rows, op)[rank * count : (rank + 1) * count], op)

    def movements(self, kind: str, code: int, count: int) -> None:
        """Broadcast, AllGather, AlltoAll, Gather and Scatter, plain and with options."""
        rank, ranks = self.rank, self.ranks
        rows = inputs(ranks, count, kind)
        blocks = inputs(ranks, count, kind, blocks=ranks)
        mine = np.s_[rank * count : (rank + 1) * count]
        for options in (None, CollConfig.default()):
            for root in range(ranks):
                out = np.zeros(count, kind)
                arguments = (pointer(rows[rank]), pointer(out), size(count), code, root)
                self.call("ncclBroadcast", *arguments, options=options)
                np.testing.assert_array_equal(out, rows[root])
                everything = np.zeros(count * ranks, kind)
                arguments = (pointer(rows[rank]), pointer(everything), size(count), code, root)
                self.call("ncclGather", *arguments, options=options)
                np.testing.assert_array_equal(everything, rows.ravel() if rank == root else 0 * rows.ravel())
                out = np.zeros(count, kind)
                sent = pointer(blocks[rank]) if rank == root else None
                self.call("ncclScatter", sent, pointer(out), size(count), code, root, options=options)
                np.testing.assert_array_equal(out, blocks[root][mine])
            everything = np.zeros(count * ranks, kind)
            self.call("ncclAllGather", pointer(rows[rank]), pointer(everything), size(count), code, options=options)
            np.testing.assert_array_equal(everything, rows.ravel())
            everything = np.zeros(count * ranks, kind)
            self.call("ncclAlltoAll", pointer(blocks[rank]), pointer(everything), size(count), code, options=options)
            np.testing.assert_array_equal(everything, blocks[:, mine].ravel())

    def in_place(self) -> None:
        """Buffers that NCCL calls in place: the same one, or one's own block of the larger one."""
        rank, ranks, count, code = self.rank, self.ranks, 100, DATA_TYPES["int32"]
        rows = inputs(ranks, count, "int32")
        blocks = inputs(ranks, count, "int32", blocks=ranks)
        mine = np.s_[rank * count : (rank + 1) * count]
        buffer = rows[rank].copy()
        self.call("ncclAllReduce", pointer(buffer), pointer(buffer), size(count), code, SUM)
        np.testing.assert_array_equal(buffer, rows.sum(axis=0))
        buffer = rows[rank].copy()
        self.call("ncclBcast", pointer(buffer), size(count), code, 0)
        np.testing.assert_array_equal(buffer, rows[0])
        large = np.zeros(count * ranks, "int32")
        large[mine] = rows[rank]
        self.call("ncclAllGather", pointer(large[mine]), pointer(large), size(count), code)
        np.testing.assert_array_equal(large, rows.ravel())
        large = blocks[rank].copy()
        self.call("ncclReduceScatter", pointer(large), pointer(large[mine]), size(count), code, SUM)
        np.testing.assert_array_equal(large[mine], blocks.sum(axis=0)[mine])

    def nothing(self) -> None:
        """A count of zero succeeds with NULL buffers, and its arguments are checked all the same."""
        nccl, none = self.nccl, size(0)
        self.call("ncclAllReduce", None, None, none, 7, SUM)
        self.call("ncclAllGather", None, None, none, 7)
        self.call("ncclBroadcast", None, None, none, 7, 0)
        nccl.refused(nccl.ncclAllReduce(None, None, none, 12, SUM, self.comm, None), 4, "datatype 12")
        nccl.refused(nccl.ncclAllReduce(None, None, none, 7, 77, self.comm, None), 4)
        nccl.refused(nccl.ncclAllReduce(None, None, none, 7, -1, self.comm, None), 4)
        nccl.refused(nccl.ncclBroadcast(None, None, none, 7, self.ranks, self.comm, None), 4, str(self.ranks))
        nccl.refused(nccl.ncclReduce(None, None, none, 7, SUM, -1, self.comm, None), 4)

    def point_to_point(self) -> None:
        """A ring of sends and receives in a group, two a peer: they arrive in order."""
        nccl, rank, ranks, count = self.nccl, self.rank, self.ranks, 50
        rows = inputs(ranks, count, "float32", blocks=2)
        out = np.zeros(2 * count, "float32")
        after, before = (rank + 1) % ranks, (rank - 1) % ranks
        nccl.check(nccl.ncclGroupStart())
        for part in (np.s_[:count], np.s_[count:]):
            self.call("ncclSend", pointer(rows[rank][part]), size(count), 7, after)
            self.call("ncclRecv", pointer(out[part]), size(count), 7, before)
        nccl.check(nccl.ncclGroupEnd())
        np.testing.assert_array_equal(out, rows[before])


def main() -> None:
    """Be one rank: FOLDER RANK RANKS ID (128 bytes in hexadecimal)."""
    nccl = Nccl(Path(sys.argv[1]))
    rank, ranks = int(sys.argv[2]), int(sys.argv[3])
    comm = nccl.join(UniqueId.from_buffer_copy(bytes.fromhex(sys.argv[4])), ranks, rank)
    Exercise(nccl, comm, rank, ranks).run()
    nccl.check(nccl.ncclCommFinalize(comm))
    nccl.check(nccl.ncclCommDestroy(comm))


if __name__ == "__main__":
    main()
