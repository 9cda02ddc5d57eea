"""The sweep engine: sizes, data, expected results, the timed loop and nccl-tests' report."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from theseus_py.perf import report
from theseus_py.perf.collectives import COLLECTIVES
from theseus_py.perf.memory import HostMemory
from theseus_py.perf.options import OPERATIONS, SweepOptions, parse_size
from theseus_py.perf.sweep import Call, row_count, run_sweep
from theseus_py.perf.values import ELEMENT_TYPES, Array, Problem


class Meeting:
    """All ranks as threads of one process; results computed from everybody's send buffer in float64 or int64."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.barrier = threading.Barrier(ranks, timeout=20)
        self.slots: list[Array] = [np.empty(0)] * ranks
        self.spoil = False


class Seat:
    memory = HostMemory()

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.ranks = meeting, rank, meeting.ranks

    def barrier(self) -> None:
        self.meeting.barrier.wait()

    def exchange(self, values: Array) -> list[Array]:
        self.meeting.slots[self.rank] = values.copy()
        self.barrier()
        everybody = list(self.meeting.slots)
        self.barrier()
        return everybody

    def total(self, values: list[float]) -> list[float]:
        return [float(x) for x in np.sum(self.exchange(np.array(values)), axis=0)]

    def prepare(self, call: Call) -> Callable[[], None]:
        return lambda: self.run(call)

    def run(self, call: Call) -> None:
        sent = self.exchange(call.send)
        mine = call.kind.name in ("reduce", "gather") and self.rank != call.root
        result = self.result(call, sent)
        if not mine and result is not None:
            call.receive[:] = result
            if self.meeting.spoil and self.rank == 1 and call.receive.size:
                call.receive[-1] += 1

    def result(self, call: Call, sent: list[Array]) -> Array | None:
        name, share = call.kind.name, call.receive.size
        if name in ("all_gather", "gather"):
            return np.concatenate(sent)
        if name == "alltoall":
            block = share // self.ranks
            return np.concatenate([s[self.rank * block : (self.rank + 1) * block] for s in sent])
        if name == "scatter":
            return sent[call.root][self.rank * share : (self.rank + 1) * share]
        if name == "broadcast":
            return sent[call.root]
        if name == "sendrecv":
            return sent[self.rank - 1]
        if name == "barrier":
            return None
        whole = self.reduce(call, np.stack([call.element.decode(s) for s in sent]))
        return whole[self.rank * share : (self.rank + 1) * share] if name == "reduce_scatter" else whole

    def reduce(self, call: Call, stack: Array) -> Array:
        function = {"sum": np.sum, "avg": np.sum, "prod": np.prod, "min": np.min, "max": np.max}[call.operation]
        reduced = function(stack, axis=0)
        if call.operation == "avg":
            reduced = reduced / self.ranks
            return (
                reduced.astype(call.element.storage)
                if call.element.floating
                else np.trunc(reduced).astype(call.element.storage)
            )
        return call.element.encode(reduced.astype(np.int64))


def sweep(options: SweepOptions, ranks: int, spoil: bool = False) -> list[report.Row]:
    meeting = Meeting(ranks)
    meeting.spoil = spoil
    rows: list[list[report.Row]] = [[] for _ in range(ranks)]

    def run(rank: int) -> None:
        rows[rank] = list(run_sweep(options, Seat(meeting, rank)))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(r) == row_count(options, ranks) for r in rows)
    return rows[0]


SMALL = SweepOptions(min_bytes=8, max_bytes=4096, step_factor=8, iterations=1, warmup=0)


@pytest.mark.parametrize("collective", sorted(COLLECTIVES))
def test_right_results_pass(collective: str) -> None:
    """A correct library shows #wrong 0 for every collective, every root, both forms."""
    rows = sweep(replace(SMALL, collective=collective, root=-1), ranks=3)
    assert rows
    assert all(timing.wrong == 0 for row in rows for timing in row.timings())


@pytest.mark.parametrize("operation", OPERATIONS)
def test_right_reductions_pass(operation: str) -> None:
    """Every reduction over a signed, an unsigned and a floating type; the float64 reference never rounds them."""
    for element in ("int8", "uint64", "double"):
        rows = sweep(replace(SMALL, operation=operation, element_type=element), ranks=4)
        assert all(timing.wrong == 0 for row in rows for timing in row.timings()), element


@pytest.mark.parametrize("collective", sorted(set(COLLECTIVES) - {"barrier"}))
def test_one_wrong_element_is_counted(collective: str) -> None:
    """One element spoilt on rank 1 shows as #wrong 1 on rank 0's report."""
    rows = sweep(replace(SMALL, collective=collective, root=1, min_bytes=512), ranks=2, spoil=True)
    assert {timing.wrong for row in rows for timing in row.timings()} == {1}


@pytest.mark.parametrize("name", sorted(ELEMENT_TYPES))
@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o != "avg"])
@pytest.mark.parametrize("ranks", [1, 2, 7, 64])
def test_partial_results_are_exact(name: str, operation: str, ranks: int) -> None:
    """Reducing step by step in the element type, in any order, loses nothing: else #wrong would blame the library."""
    element = ELEMENT_TYPES[name]
    problem = Problem(COLLECTIVES["all_reduce"], element, operation, ranks, -1, 3000)
    function = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[operation]
    order = np.random.default_rng(ranks).permutation(ranks)
    value = element.decode(problem.input(int(order[0])))
    for rank in order[1:]:
        value = function(value, element.decode(problem.input(int(rank))))
        if element.floating:
            value = element.decode(element.encode(value))
    wrapped = value.astype(np.int64).astype(element.storage) if not element.floating else element.encode(value)
    assert problem.wrong(0, wrapped) == 0


@pytest.mark.parametrize("name", ["half", "bfloat16", "f8e4m3", "f8e5m2", "float"])
def test_average_allows_rounding_and_no_more(name: str) -> None:
    """The sum in place of the average is wrong; the average itself is not; nor does NaN pass."""
    element = ELEMENT_TYPES[name]
    problem = Problem(COLLECTIVES["all_reduce"], element, "avg", 2, -1, 2000)
    total = element.decode(problem.input(0)) + element.decode(problem.input(1))
    halves = element.encode(np.round(total / 2))
    even = total % 2 == 0
    assert np.all(np.abs(element.decode(halves) - total / 2)[even] == 0)
    assert problem.wrong(0, element.encode(total)) > 500
    nan = {"half": 0x7E00, "bfloat16": 0x7FC0, "f8e4m3": 0x7F, "f8e5m2": 0x7F, "float": 0x7FC00000}[name]
    bits = np.full(2000, nan, f"uint{8 * element.bytes}").view(element.storage)
    assert problem.wrong(0, bits) == 2000


def test_swapped_chunks_are_noticed() -> None:
    """Data of one place in another place is wrong, for chunks of any power of two."""
    problem = Problem(COLLECTIVES["broadcast"], ELEMENT_TYPES["float"], "none", 2, 0, 1 << 18)
    data = problem.input(0)
    for chunk in (1 << shift for shift in range(4, 18)):
        assert problem.wrong(1, np.roll(data, chunk)) > data.size // 2


def test_sizes() -> None:
    """-b -e -f -i as in nccl-tests; bad values are refused with the flag's name."""
    assert SweepOptions(min_bytes=8, max_bytes=64, step_factor=2).sizes() == [8, 16, 32, 64]
    assert SweepOptions(min_bytes=0, max_bytes=10, step_bytes=4).sizes() == [0, 4, 8]
    assert [parse_size(text) for text in ("8", "1K", "2m", "1.5G", "3MB", "4KiB")] == [
        8, 1024, 2 << 20, 3 << 29, 3 << 20, 4096,
    ]  # fmt: skip
    for text in ("", "-1", "1T", "M", "8 8"):
        with pytest.raises(ValueError, match="is no size"):
            parse_size(text)
    for bad, said in (
        ({"min_bytes": 9, "max_bytes": 8}, "-e 8"),
        ({"min_bytes": 0, "step_factor": 2}, "-b"),
        ({"iterations": 0}, "-n"),
        ({"step_bytes": 1}, "-i 1"),
        ({"collective": "allreduce"}, "all_reduce"),
        ({"element_type": "fp32"}, "float"),
        ({"operation": "mean"}, "avg"),
    ):
        with pytest.raises(ValueError, match=said):
            SweepOptions(**{"min_bytes": 8, **bad})
    with pytest.raises(ValueError, match="root 4"):
        SweepOptions(collective="reduce", root=4).roots(4)


def test_report_has_nccl_tests_columns() -> None:
    """The table as parsers of nccl-tests read it: 13 fields a row, a header of the same, the two totals."""
    options = SweepOptions(min_bytes=1 << 20, max_bytes=1 << 20)
    timing = report.Timing.of(1 << 20, 123.456e-6, 1.5, 0)
    row = report.Row(1 << 20, 1 << 18, "float", "sum", -1, timing, timing)
    measured = ["123.46", "8.49", "12.74", "0"]
    assert report.row_line(row).split() == ["1048576", "262144", "float", "sum", "-1", *measured, *measured]
    header = report.header_lines(options, "0.1.0", [report.RankPlace(0, 42, "host0")])
    columns = ["time", "algbw", "busbw", "#wrong"]
    assert header[-2].split() == ["#", "size", "count", "type", "redop", "root", *columns, *columns]
    assert len(header[-2].rstrip()) == len(report.row_line(row))
    footer = report.footer_lines(options, report.Totals.of([row]))
    assert footer[0] == "# Out of bounds values : 0 OK"
    assert footer[1].startswith("# Avg bus bandwidth    : 12.74")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "   0.00"), (9.876, "   9.88"), (1234.5, "1234.50"), (98765.4, "98765.4"), (1234567.0, "1234567"),
     (12345678.0, "1.2e+07")],
)  # fmt: skip
def test_numbers_keep_their_column(value: float, text: str) -> None:
    """Seven columns hold any time, so that the table never shifts."""
    assert report.fit_number(value, 7) == text


def test_json_report_names_wrong_results() -> None:
    """The JSON says whether data was right, and keeps rows without an in-place form."""
    bad = report.Row(8, 2, "float", "none", -1, report.Timing.of(8, 1e-6, 1, 3), None)
    data = report.json_report(SweepOptions(min_bytes=8), [bad], [report.RankPlace(0, 1, "host0")], {})
    assert data["out_of_bounds"] == {"count": 3, "okay": "false"}
    assert data["results"][0]["in_place"] is None
    assert data["results"][0]["out_of_place"]["nwrong"] == 3
