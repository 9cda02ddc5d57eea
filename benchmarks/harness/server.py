"""One library kept alive as a group of rank processes that run measured batches on command."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "broadcast", "alltoall")


class LoopError(RuntimeError):
    """A library could not be started, stopped answering, or gave a wrong result."""


@dataclass(frozen=True)
class Timing:
    """Seconds per call, and the share of them in which something else had a rank's processor; both the worst rank's."""

    seconds: float
    kept_waiting: float = 0.0


@dataclass(frozen=True)
class Launch:
    """How to start all ranks of one library: a launcher's command, and environment variables on top of ours.

    `LoopServer` appends the rendezvous folder and the largest size to the command.
    """

    command: Sequence[str]
    environment: Mapping[str, str]


class LoopServer:
    """Runs batches on one library. Between batches its ranks sleep in read(2), so it costs nothing.

    Use it as a context manager. `largest` is the largest size in bytes that will be asked for. With `ahead` the ranks
    go before all other work of the machine, which needs root.
    """

    def __init__(self, name: str, launch: Launch, ranks: int, largest: int, ahead: bool = False) -> None:
        self.name = name
        self._ahead = {"THESEUS_BENCH_AHEAD": "1"} if ahead else {}
        self._launch = launch
        self._ranks = ranks
        self._largest = largest
        self._launcher: subprocess.Popen[bytes] | None = None
        self._commands: list[int] = []
        self._result = -1
        self._pending = b""
        self.folder = Path()

    def __enter__(self) -> LoopServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, timeout: float = 30.0) -> None:
        """Start the ranks and wait until they are ready. Raises LoopError with the library's own words if not."""
        self.folder = Path(tempfile.mkdtemp(prefix="theseus-bench-"))
        for rank in range(self._ranks):
            self._commands.append(self._fifo(f"command.{rank}"))
        self._result = self._fifo("result")
        ours = {"THESEUS_BENCH_ID": str(self.folder / "id"), **self._ahead}
        with open(self.folder / "log", "ab") as log:
            self._launcher = subprocess.Popen(
                [*self._launch.command, str(self.folder), str(self._largest)],
                env={**os.environ, **ours, **self._launch.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        answer = self._answer(timeout)
        if not answer.startswith("ready"):
            raise LoopError(f"{self.name}: {answer}")
        if int(answer.split()[1]) != self._ranks:
            raise LoopError(f"{self.name}: started {answer.split()[1]} ranks in place of {self._ranks}")

    def batch(self, collective: str, size: int, iterations: int, timeout: float = 60.0) -> Timing:
        """Time `iterations` calls of `collective` on `size` bytes in a row."""
        return self._command(f"{collective} {size} {iterations} time", timeout)

    def check(self, collective: str, size: int, timeout: float = 60.0) -> None:
        """Run the collective once on known data. Raises LoopError if any rank holds a wrong element afterwards."""
        self._command(f"{collective} {size} 1 check", timeout)

    def stop(self) -> None:
        """End the ranks, and remove every trace of them. Safe to call twice."""
        for descriptor in self._commands:
            os.write(descriptor, b"quit\n")
        if self._launcher:
            try:
                self._launcher.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self._launcher.pid, signal.SIGKILL)
                self._launcher.wait()
        for descriptor in (*self._commands, self._result):
            if descriptor >= 0:
                os.close(descriptor)
        self._commands, self._launcher, self._result = [], None, -1
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder = Path()

    def _fifo(self, name: str) -> int:
        path = self.folder / name
        os.mkfifo(path)
        # Open for reading and writing: neither end then blocks on the other, and ranks see the end of the FIFO only
        # when this process is gone.
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def _command(self, line: str, timeout: float) -> Timing:
        for descriptor in self._commands:
            os.write(descriptor, f"{line}\n".encode())
        answer = self._answer(timeout)
        if not answer.startswith("ok "):
            raise LoopError(f"{self.name}: {answer}")
        _, seconds, waited = answer.split()
        return Timing(float(seconds), float(waited))

    def _answer(self, timeout: float) -> str:
        deadline = time.monotonic() + timeout
        while b"\n" not in self._pending:
            readable, _, _ = select.select([self._result], [], [], min(1.0, max(0.0, deadline - time.monotonic())))
            if readable:
                self._pending += os.read(self._result, 4096)
            elif self._launcher is None or self._launcher.poll() is not None:
                raise LoopError(f"{self.name}: a rank ended. {self._last_words()}")
            elif time.monotonic() >= deadline:
                raise LoopError(f"{self.name}: no answer in {timeout:.0f} s. {self._last_words()}")
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode(errors="replace")

    def _last_words(self) -> str:
        log = self.folder / "log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return " | ".join(line.strip() for line in lines[-12:] if line.strip())
