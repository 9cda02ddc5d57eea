"""Starts local ranks as processes, on one or several virtual hosts, and watches them.

A *virtual host* is a name plus loopback addresses of its own: ranks of different virtual hosts share no memory and
talk over TCP, one connection per rail, so that a laptop runs what a cluster would. Ranks report through a pipe
(`report`), one JSON object a line; the parent hands every report on while the ranks run. The first rank that fails ends
all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

Report = dict[str, Any]
# Private to this file, and so without the prefix of the settings.
REPORT_VARIABLE = "_THESEUS_SPAWN_REPORT"
_PARENT_VARIABLE = "_THESEUS_SPAWN_PARENT"
# A failure spreads: survivors of a dead rank fail too, a little later. What they have to say is kept, not waited for.
_GRACE_SECONDS = 1.0
_KILL_AFTER_SECONDS = 3.0
_KEPT_LINES = 20


@dataclass(frozen=True)
class Layout:
    """How many ranks, on how many virtual hosts, with how many rails each."""

    ranks: int
    hosts: int = 1
    rails: int = 1
    # Of the hosts' names. Jobs that name virtual hosts alike share their paced NICs.
    prefix: str = "host"

    def __post_init__(self) -> None:
        for name, value, top in (("ranks", self.ranks, 1024), ("hosts", self.hosts, 250), ("rails", self.rails, 16)):
            if not 1 <= value <= top:
                raise ValueError(f"{name} must be between 1 and {top}, not {value}")
        if self.hosts > self.ranks:
            raise ValueError(f"{self.hosts} hosts need at least as many ranks, not {self.ranks}")

    def host_of(self, rank: int) -> int:
        """Ranks fill the hosts in order, as evenly as possible."""
        return rank * self.hosts // self.ranks

    def ranks_of(self, host: int) -> list[int]:
        return [rank for rank in range(self.ranks) if self.host_of(rank) == host]

    def describe(self) -> str:
        hosts = f"{self.hosts} virtual hosts" if self.hosts > 1 else "1 host"
        rails = f" x {self.rails} rail{'s' if self.rails > 1 else ''}" if self.hosts > 1 else ""
        return f"{self.ranks} rank{'s' if self.ranks > 1 else ''} on {hosts}{rails}"


class RankFailed(RuntimeError):
    """A rank ended with an error. `rank` is the first that did, `reason` one sentence, `output` its last lines."""

    def __init__(self, rank: int, reason: str, output: Sequence[str] = ()) -> None:
        super().__init__(f"rank {rank} failed: {reason}")
        self.rank = rank
        self.reason = reason
        self.output = list(output)


def python_command(module: str, *arguments: str) -> list[str]:
    """The command line that calls `main()` of a module in a new interpreter, with the import path of this one.

    `python -m` would look in the current folder first, and find the sources there instead of what is installed.
    """
    path = [os.path.abspath(entry) for entry in sys.path]
    code = f"import sys; sys.path[:] = {path!r}; from {module} import main; main()"
    return [sys.executable, "-c", code, *arguments]


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def rank_environment(layout: Layout, rank: int, port: int) -> dict[str, str]:
    """The variables that make a process rank `rank` of `layout`; names as torchrun's."""
    host = layout.host_of(rank)
    on_host = layout.ranks_of(host)
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(layout.ranks),
        "LOCAL_RANK": str(rank - on_host[0]),
        "LOCAL_WORLD_SIZE": str(len(on_host)),
        "GROUP_RANK": str(host),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    if layout.hosts > 1:
        variables["THESEUS_HOST"] = f"{layout.prefix}{host}"
        variables["THESEUS_NICS"] = ",".join(f"127.0.{host + 1}.{rail + 1}" for rail in range(layout.rails))
    return variables


def report(kind: str, **values: Any) -> None:
    """Called by a rank: sends one report to the process that spawned it; without such a parent, does nothing."""
    descriptor = os.environ.get(REPORT_VARIABLE)
    if descriptor is None:
        return
    data = (json.dumps({"kind": kind, **values}) + "\n").encode()
    # A parent that is gone ends this rank by other means; a lost report must not hide the error being reported.
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(int(descriptor), data) :]


def die_with_parent() -> None:
    """Called by a rank: the kernel ends this process when its parent dies, so that no rank is left behind."""
    parent = os.environ.get(_PARENT_VARIABLE)
    if parent is None:
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        os._exit(1)


def end_with(error: Exception) -> NoReturn:
    """Called by a rank: reports why it ends, and ends it. A traceback only where the error is no foreseen one."""
    # torch appends the C++ stack to its messages.
    lines = str(error).strip().splitlines()
    report("error", message=lines[0] if lines else type(error).__name__)
    if not isinstance(error, (RuntimeError, OSError, ValueError, ImportError)):
        traceback.print_exception(error)
    sys.exit(1)


@dataclass
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    reports: int
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    partial: dict[str, bytes] = field(default_factory=lambda: {"report": b"", "stderr": b""})
    error: str = ""

    def feed(self, source: str, data: bytes) -> Iterator[str]:
        *lines, self.partial[source] = (self.partial[source] + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")


def spawn(
    command: Sequence[str],
    layout: Layout,
    *,
    on_report: Callable[[int, Report], None] | None = None,
    on_stderr: Callable[[int, str], None] | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> None:
    """Runs `command` once per rank and returns when all have ended well.

    Standard output is inherited. `environment` is added to the parent's own. Raises RankFailed for the first rank that
    fails, or when `timeout` seconds have passed; by then no rank is left running.
    """
    ranks = _start(command, layout, environment or {})
    try:
        _watch(ranks, on_report, on_stderr, None if timeout is None else time.monotonic() + timeout)
    finally:
        _end(ranks)
        for rank in ranks:
            os.close(rank.reports)
            if rank.process.stderr is not None:
                rank.process.stderr.close()


def _start(command: Sequence[str], layout: Layout, environment: Mapping[str, str]) -> list[_Rank]:
    port = free_port()
    ranks: list[_Rank] = []
    try:
        for number in range(layout.ranks):
            reading, writing = os.pipe()
            variables = {**os.environ, **environment, **rank_environment(layout, number, port)}
            variables.setdefault("OMP_NUM_THREADS", "1")
            variables[REPORT_VARIABLE] = str(writing)
            variables[_PARENT_VARIABLE] = str(os.getpid())
            try:
                process = subprocess.Popen(
                    list(command), env=variables, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=(writing,)
                )
            except OSError as error:
                os.close(reading)
                raise RankFailed(number, f"cannot start {command[0]}: {error.strerror}") from error
            finally:
                os.close(writing)
            ranks.append(_Rank(number, process, reading))
    except BaseException:
        _end(ranks)
        raise
    return ranks


def _watch(
    ranks: list[_Rank],
    on_report: Callable[[int, Report], None] | None,
    on_stderr: Callable[[int, str], None] | None,
    deadline: float | None,
) -> None:
    """Reads what the ranks say until all have ended; raises RankFailed a moment after the first failure."""
    first_failure: _Rank | None = None
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            assert rank.process.stderr is not None
            selector.register(rank.reports, selectors.EVENT_READ, (rank, "report"))
            selector.register(rank.process.stderr.fileno(), selectors.EVENT_READ, (rank, "stderr"))
        ended = False
        while True:
            events = selector.select(timeout=0 if ended else 0.05)
            # Not until end of file: a process that a rank left behind may hold the pipes open.
            if ended and not events:
                break
            ended = all(rank.process.poll() is not None for rank in ranks)
            for key, _ in events:
                rank, source = key.data
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fd)
                for line in rank.feed(source, data):
                    _handle(rank, source, line, on_report, on_stderr)
            if first_failure is None:
                first_failure = _first_failure(ranks)
                if first_failure is not None:
                    deadline = min(deadline or float("inf"), time.monotonic() + _GRACE_SECONDS)
            if deadline is not None and time.monotonic() > deadline:
                break
    first_failure = first_failure or _first_failure(ranks)
    if first_failure is not None:
        raise RankFailed(first_failure.number, _reason(first_failure), first_failure.last_lines)
    running = [rank.number for rank in ranks if rank.process.poll() is None]
    if running:
        raise RankFailed(running[0], f"still running at the time limit, as {len(running)} of {len(ranks)} ranks were")


def _first_failure(ranks: list[_Rank]) -> _Rank | None:
    """Of the ranks found dead together, one killed by a signal is the cause; the others tell of its effect."""
    failed = [rank for rank in ranks if rank.process.poll() not in (None, 0)]
    return min(failed, key=lambda rank: ((rank.process.returncode or 0) >= 0, rank.number), default=None)


def _handle(
    rank: _Rank,
    source: str,
    line: str,
    on_report: Callable[[int, Report], None] | None,
    on_stderr: Callable[[int, str], None] | None,
) -> None:
    if source == "stderr":
        rank.last_lines.append(line)
        if on_stderr is not None:
            on_stderr(rank.number, line)
        return
    with contextlib.suppress(json.JSONDecodeError):
        message = json.loads(line)
        if message.get("kind") == "error":
            rank.error = str(message.get("message", ""))
        elif on_report is not None:
            on_report(rank.number, message)


def _reason(rank: _Rank) -> str:
    code = rank.process.returncode or 0
    if code < 0:
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    if rank.error:
        return rank.error
    said = [line for line in rank.last_lines if line.strip()]
    return f"exit code {code}" + (f", last said: {said[-1].strip()}" if said else "")


def _end(ranks: list[_Rank]) -> None:
    """Ends what still runs: politely, then not. Every process is reaped."""
    for rank in ranks:
        if rank.process.poll() is None:
            rank.process.terminate()
    deadline = time.monotonic() + _KILL_AFTER_SECONDS
    for rank in ranks:
        try:
            rank.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.process.kill()
            rank.process.wait()
