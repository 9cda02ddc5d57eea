"""The report of a sweep: nccl-tests' text, which many tools parse, and its JSON. Pure: returns lines and dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from theseus_py.perf.options import SweepOptions

JSON_VERSION = 2


@dataclass(frozen=True)
class Timing:
    """One measured form (out of place or in place) of one row. `wrong` None: not checked."""

    microseconds: float
    algorithm_gbps: float  # 10^9 bytes a second
    bus_gbps: float
    wrong: int | None

    @staticmethod
    def of(bytes_moved: int, seconds: float, bus_factor: float, wrong: int | None) -> Timing:
        algorithm = bytes_moved / 1e9 / seconds if seconds > 0 else 0.0
        return Timing(seconds * 1e6, algorithm, algorithm * bus_factor, wrong)


@dataclass(frozen=True)
class Row:
    """One line of the table. `in_place` None: the collective has no in-place form."""

    size: int
    count: int
    type: str
    operation: str
    root: int
    out_of_place: Timing
    in_place: Timing | None

    def timings(self) -> list[Timing]:
        return [self.out_of_place] if self.in_place is None else [self.out_of_place, self.in_place]


@dataclass(frozen=True)
class RankPlace:
    """Where a rank ran, and the GPU that its buffers were on: number, place on the bus and name."""

    rank: int
    pid: int
    host: str
    device: str = "host memory"
    ordinal: int = 0
    bus: str = "host"


@dataclass(frozen=True)
class Totals:
    """What all rows of a sweep come to."""

    wrong: int
    bus_gbps: float

    @staticmethod
    def of(rows: Sequence[Row]) -> Totals:
        """Wrong elements of all rows; the mean bus bandwidth over everything that was timed."""
        timings = [timing for row in rows for timing in row.timings()]
        mean = sum(timing.bus_gbps for timing in timings) / len(timings) if timings else 0.0
        return Totals(sum(timing.wrong or 0 for timing in timings), mean)


def fit_number(value: float, width: int) -> str:
    """`value` in `width` columns with as many decimals, at most two, as leave a column free."""
    digits = len(str(int(value))) if value >= 1 else 0
    if digits < width - 2:
        return f"{value:{width}.2f}"
    if digits < width - 1:
        return f"{value:{width}.1f}"
    if digits <= width:
        return f"{value:{width}.0f}"
    return f"{value:{width}.{1 if width >= 7 else 0}e}"


def header_lines(options: SweepOptions, version: str, places: Sequence[RankPlace]) -> list[str]:
    """Everything above the first row: the settings, where the ranks run, the columns."""
    step = f"{options.step_factor}(factor)" if options.step_factor > 1 else f"{options.step_bytes}(bytes)"
    blank = f"# {'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}"
    columns = f"{'time':>7}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}"
    units = f"{'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>6}"
    return [
        f"# theseus {version}",
        f"# Collective test starting: {options.collective}_perf",
        f"# nThread {options.threads} nGpus 1 minBytes {options.min_bytes} maxBytes {options.max_bytes} step: {step} "
        f"warmup iters: {options.warmup} iters: {options.iterations} agg iters: 1 validation: {options.check} graph: 0",
        "#",
        "# Using devices",
        *(
            f"#  Rank {place.rank:2d} Group  0 Pid {place.pid:6d} on {place.host:>10} "
            f"device {place.ordinal:2d} [{place.bus}] {place.device}"
            for place in places
        ),
        "#",
        f"{blank}           out-of-place                       in-place          ",
        f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}  {columns}  {columns} ",
        f"# {'(B)':>10}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}  {units}  {units} ",
    ]


def row_line(row: Row) -> str:
    """One row of the table."""
    start = f"{row.size:12d}  {row.count:12d}  {row.type:>8}  {row.operation:>6}  {row.root:6d}"
    return start + _timing_text(row.out_of_place) + (_timing_text(row.in_place) if row.in_place else _NOT_MEASURED)


_NOT_MEASURED = f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"


def _timing_text(timing: Timing) -> str:
    wrong = "   N/A" if timing.wrong is None else f"{float(timing.wrong):6g}"
    return (
        f"  {fit_number(timing.microseconds, 7)}  {fit_number(timing.algorithm_gbps, 6)}"
        f"  {fit_number(timing.bus_gbps, 6)}  {wrong}"
    )


def footer_lines(options: SweepOptions, totals: Totals) -> list[str]:
    """Everything below the last row: the totals."""
    return [
        f"# {'Out of bounds values':<20} : {totals.wrong} {'FAILED' if totals.wrong else 'OK'}",
        f"# {'Avg bus bandwidth':<20} : {totals.bus_gbps:g} ",
        "#",
        f"# Collective test concluded: {options.collective}_perf",
        "#",
    ]


def json_report(
    options: SweepOptions,
    rows: Sequence[Row],
    places: Sequence[RankPlace],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """nccl-tests' JSON (its field names and its spelling of booleans), with `extra` fields of the caller in front."""
    totals = Totals.of(rows)
    return {
        "version": JSON_VERSION,
        **extra,
        "config": {
            "nthreads": options.threads,
            "ngpus": 1,
            "minimum_bytes": options.min_bytes,
            "maximum_bytes": options.max_bytes,
            **({"step_factor": options.step_factor} if options.step_factor > 1 else {"step_bytes": options.step_bytes}),
            "warmup_iters": options.warmup,
            "iterations": options.iterations,
            "aggregated_iterations": 1,
            "validation": options.check,
            "graph": 0,
            "blocking_collectives": "true",
            "devices": [
                {
                    "rank": place.rank,
                    "group": 0,
                    "pid": place.pid,
                    "hostname": place.host,
                    "device": place.ordinal,
                    "device_hex": place.bus,
                    "device_info": place.device,
                }
                for place in places
            ],
        },
        "results": [_row_json(row, options) for row in rows],
        "out_of_bounds": {"count": totals.wrong, "okay": "true" if totals.wrong == 0 else "false"},
        "average_bus_bandwidth": {"bandwidth": totals.bus_gbps, "okay": "unchecked"},
    }


def _row_json(row: Row, options: SweepOptions) -> dict[str, Any]:
    return {
        "size": row.size,
        "count": row.count,
        "type": row.type,
        "redop": row.operation,
        "root": str(row.root),
        "out_of_place": _timing_json(row.out_of_place),
        "in_place": _timing_json(row.in_place) if row.in_place else None,
        "actual_iterations": options.iterations,
        "experiment_name": f"{options.collective}_perf",
    }


def _timing_json(timing: Timing) -> dict[str, Any]:
    return {
        "time": timing.microseconds,
        "alg_bw": timing.algorithm_gbps,
        "bus_bw": timing.bus_gbps,
        "nwrong": timing.wrong,
    }
