"""Runs a sweep on ranks of its own, or as one rank of a launcher's, and prints nccl-tests' report as rows arrive."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import theseus_py
from theseus_py import launch
from theseus_py.errors import InvalidUsage
from theseus_py.perf import report as reports
from theseus_py.perf.options import SweepOptions
from theseus_py.perf.report import RankPlace, Row, Timing
from theseus_py.spawn import Layout, RankFailed, Report, python_command, spawn

_DEFAULT_RANKS = 2


class LaunchFailed(RuntimeError):
    """A rank failed. The message names it and says why; `details` are its last lines of output."""

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = list(details)


class JsonFile:
    """Where -J writes. Created before the sweep, so that a bad path is known before minutes are spent."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def create(cls, name: str) -> JsonFile:
        """Never overwrites: FILE.0, FILE.1... where FILE exists, as nccl-tests does. ValueError: cannot be written."""
        for path in itertools.chain([Path(name)], (Path(f"{name}.{number}") for number in itertools.count())):
            try:
                path.open("x").close()
            except FileExistsError:
                continue
            except OSError as error:
                raise ValueError(f"cannot write {path} (-J): {error.strerror}") from error
            return cls(path)
        raise AssertionError("unreachable: the names never end")

    def write(self, text: str) -> None:
        self._path.write_text(text + "\n")

    def discard(self) -> None:
        """For a sweep that failed: leaves no empty file."""
        self._path.unlink(missing_ok=True)


class Collector:
    """Rank 0's rows: printed as they come, kept for the totals and the JSON."""

    def __init__(self, options: SweepOptions, emit: Callable[[str], None]) -> None:
        self._options = options
        self._emit = emit
        self._started = time.strftime("%Y-%m-%d %H:%M:%S")
        self.places: list[RankPlace] = []
        self.rows: list[Row] = []

    def start(self, places: list[RankPlace], _rows: int) -> None:
        self.places = places
        for line in reports.header_lines(self._options, theseus_py.__version__, places):
            self._emit(line)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._emit(reports.row_line(row))

    def finish(self) -> tuple[int, dict[str, Any]]:
        """Prints the totals. Returns the number of wrong elements, and the JSON report."""
        totals = reports.Totals.of(self.rows)
        for line in reports.footer_lines(self._options, totals):
            self._emit(line)
        times = {"start_time": self._started, "end_time": time.strftime("%Y-%m-%d %H:%M:%S")}
        extra = {**times, "theseus_version": theseus_py.__version__}
        return totals.wrong, reports.json_report(self._options, self.rows, self.places, extra)

    def on_report(self, rank: int, message: Report) -> None:
        if rank == 0 and message["kind"] == "start":
            self.start([RankPlace(**place) for place in message["places"]], message["rows"])
        elif rank == 0 and message["kind"] == "row":
            self.add(row_of(message["row"]))


def row_of(values: Mapping[str, Any]) -> Row:
    """A Row from its dataclasses.asdict."""
    in_place = values["in_place"]
    return Row(
        **{
            **values,
            "out_of_place": Timing(**values["out_of_place"]),
            "in_place": Timing(**in_place) if in_place is not None else None,
        }
    )


def sweep_command(options: SweepOptions) -> list[str]:
    """The command line of one spawned rank."""
    return python_command("theseus_py.perf.worker", json.dumps(options.to_dict()))


def run(
    options: SweepOptions,
    ranks: int | None,
    hosts: int,
    rails: int,
    emit: Callable[[str], None],
) -> tuple[int, dict[str, Any] | None]:
    """Measures and prints. Returns wrong elements and the JSON report; None on ranks of a launcher other than 0.

    ValueError: options that do not fit together. LaunchFailed: a rank failed.
    """
    place = _launched(os.environ)
    collector = Collector(options, emit)
    if place is None:
        processes = 1 if options.threads > 1 else _DEFAULT_RANKS
        layout = Layout(processes if ranks is None else ranks, hosts, rails)
        options.roots(layout.ranks * options.threads)
        try:
            spawn(sweep_command(options), layout, on_report=collector.on_report)
        except RankFailed as failure:
            raise LaunchFailed(str(failure), failure.output) from failure
        return collector.finish()
    if (ranks is not None and ranks != place.ranks) or hosts != 1 or rails != 1:
        raise ValueError(
            f"--ranks, --hosts and --rails start ranks, but {place.source} has started {place.ranks}: leave them out"
        )
    options.roots(place.ranks * options.threads)
    _run_launched(options, collector, place.rank)
    return collector.finish() if place.rank == 0 else (0, None)


def is_first() -> bool:
    """Whether this process writes results: rank 0 of a launch, or the one that starts ranks itself."""
    place = _launched(os.environ)
    return place is None or place.rank == 0


def _launched(environment: Mapping[str, str]) -> launch.Place | None:
    """This process's place where torchrun, mpirun or srun started it."""
    try:
        return launch.discover(environment)
    except InvalidUsage:
        return None


def _run_launched(options: SweepOptions, collector: Collector, rank: int) -> None:
    from theseus_py.errors import TheseusError
    from theseus_py.perf.worker import run_process

    try:
        run_process(options, collector.start, collector.add)
    except TheseusError as error:
        raise LaunchFailed(f"rank {rank} failed: {error}") from error
