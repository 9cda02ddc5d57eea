"""Ranks as processes: starts them, hears what they report, talks to them, stops and kills them."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import pytest

Report = dict[str, Any]
# Far more than any step needs, even on a machine that is busy with other things.
PATIENCE = 90.0


def two_hosts(rank: int) -> dict[str, str]:
    """Ranks 0 and 1 play one host, 2 and 3 another: shared memory inside, TCP between."""
    return {"THESEUS_HOST": f"host{rank // 2}", "THESEUS_NICS": f"127.0.{rank // 2 + 1}.1"}


def one_host(rank: int) -> dict[str, str]:
    """All ranks share memory."""
    return {}


class RankProcess:
    """One rank, running a function of bodies.py."""

    def __init__(self, body: str, rank: int, ranks: int, arguments: Mapping[str, Any], environment: Mapping[str, str]):
        self.rank = rank
        self.seen: list[Report] = []
        self._passed_over: list[Report] = []
        self._reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        command = [sys.executable, "-u", str(Path(__file__).with_name("bodies.py")), body, str(rank), str(ranks)]
        self.process = subprocess.Popen(
            [*command, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": _python_path(), **environment},
        )
        for reader in (self._read_reports, self._read_errors):
            threading.Thread(target=reader, daemon=True).start()

    def _read_reports(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._reports.put(json.loads(line))
        self._reports.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    def wait_for(self, kind: str, seconds: float = PATIENCE) -> Report:
        """The next report of that kind; those of other kinds wait. The test fails where none comes."""
        deadline = time.monotonic() + seconds
        for report in self._passed_over:
            if report["kind"] == kind:
                self._passed_over.remove(report)
                return report
        while True:
            try:
                report = self._reports.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.fail(f"does not report {kind!r} within {seconds:.0f} s")
            if report is None:
                self.fail(f"ended before it reported {kind!r}")
            self.seen.append(report)
            if report["kind"] == kind:
                return report
            if report["kind"] == "crash":
                self.fail(f"failed before it reported {kind!r}")
            self._passed_over.append(report)

    def fail(self, what: str) -> NoReturn:
        """Fail the test, with all that is known of this rank."""
        said = "".join(self._errors[-12:])
        pytest.fail(f"rank {self.rank} {what}; status {self.process.poll()}; it reported {self.seen}; stderr: {said}")

    def tell(self, **values: Any) -> None:
        """Send one message, which hear() returns over there."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(values) + "\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait_for_end(self, seconds: float = PATIENCE) -> int:
        """The exit status; the test fails where the process does not end."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.fail(f"does not end within {seconds:.0f} s")

    def end(self) -> None:
        """Kill it where it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def _python_path() -> str:
    folders = [str(Path(__file__).resolve().parents[1]), *(each for each in sys.path if each)]
    return os.pathsep.join(folders)


class Ranks:
    """All ranks of one communicator, each a process that runs `body`; leaving the block ends what still runs.

    Rank 0 makes the unique id, and the others get it through here.
    """

    def __init__(
        self,
        body: str,
        ranks: int,
        place: Callable[[int], Mapping[str, str]] = one_host,
        environment: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> None:
        self.all = [
            RankProcess(body, rank, ranks, arguments, {**place(rank), **(environment or {})}) for rank in range(ranks)
        ]

    def __enter__(self) -> Ranks:
        try:
            unique_id = self.all[0].wait_for("id")["id"]
            for each in self.all[1:]:
                each.tell(id=unique_id)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def __getitem__(self, rank: int) -> RankProcess:
        return self.all[rank]

    def but(self, *left_out: int) -> list[RankProcess]:
        """All but some ranks."""
        return [each for each in self.all if each.rank not in left_out]

    def wait_for(self, kind: str, *left_out: int) -> list[Report]:
        """The next report of that kind of every rank but some."""
        return [each.wait_for(kind) for each in self.but(*left_out)]

    def tell(self, *left_out: int, **values: Any) -> None:
        """Send one message to every rank but some."""
        for each in self.but(*left_out):
            each.tell(**values)

    def end(self) -> None:
        """End what still runs."""
        for each in self.all:
            each.end()
