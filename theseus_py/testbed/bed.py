"""The testbed as its users see it: made, or found by name, then told what to run and which NICs to cap."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import TracebackType
from typing import Any

from theseus_py.testbed import wire
from theseus_py.testbed.errors import TestbedError
from theseus_py.testbed.job import Job, rank_environments
from theseus_py.testbed.shape import Shape, Traffic, parse_rate

_PROBE = Shape(hosts=2, nics=1, rate=1e8, priorities=True)
_PLAIN_PROBE = Shape(hosts=2, nics=1, rate=1e8)


@cache
def missing() -> list[str]:
    """Returns what this machine lacks for testbeds, one sentence each; nothing where they work.

    Found by making a small one, since permissions and kernels can be asked no other way.
    """
    if not sys.platform.startswith("linux"):
        return ["testbeds need Linux"]
    reason = _trial(_PROBE)
    if reason is None:
        return []
    plain = _trial(_PLAIN_PROBE)
    return [plain] if plain is not None else [f"strict priorities (the rest works): {reason}"]


def _trial(shape: Shape) -> str | None:
    try:
        _start_keeper(shape, None).close()
    except TestbedError as error:
        return str(error)
    return None


class HostProcess:
    """A process on one host. `pid` is its id outside, where it was asked for. It ends with the testbed."""

    def __init__(self, bed: Testbed, pid: int, host: int) -> None:
        self._bed = bed
        self.pid = pid
        self.host = host

    def poll(self) -> int | None:
        """Returns how it ended, as subprocess does (-9: killed by signal 9); None while it runs."""
        self._bed.hear(0.0)
        # What nobody told of before the end has ended with the testbed.
        return self._bed.exits.get(self.pid, None if self._bed.is_open else -signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end, and returns how it ended. Raises TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"process {self.pid} on host {self.host} still runs after {timeout} s")
            self._bed.hear(min(left, 1.0))
        return code

    def send_signal(self, number: int) -> None:
        """Signals it and what it started in its session. Does nothing after its end."""
        self._bed.ask({"do": "signal", "pid": self.pid, "signal": int(number)})

    def kill(self) -> None:
        """Kills it, and what it started in its session, by SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Testbed:
    """A virtual cluster. `Testbed(...)` makes one that ends with its `with` block, or with this process.

    `rate` is a number in bit/s, or text such as "200mbit"; None for no limit; `trunk` alike. Safe to use from
    several threads. Raises TestbedError, which says why not; `missing()` says it before.
    """

    __test__ = False  # not a class of tests, whatever pytest makes of its name

    def __init__(
        self,
        hosts: int = 4,
        nics: int = 4,
        rate: float | str | None = "200mbit",
        *,
        priorities: bool = False,
        leaves: int = 1,
        spines: int = 1,
        trunk: float | str | None = None,
    ) -> None:
        speed, between = (parse_rate(each) if isinstance(each, str) else each for each in (rate, trunk))
        shape = Shape(hosts, nics, speed, priorities, leaves, spines, between)
        self._open(_start_keeper(shape, None), shape)

    @classmethod
    def attach(cls, name: str = "default") -> Testbed:
        """Returns the testbed of this user that `up` made under that name. It outlives the object."""
        try:
            connection = wire.connect(name)
        except OSError as error:
            reason = "" if isinstance(error, ConnectionRefusedError) else f" ({error})"
            raise TestbedError(f"no testbed named '{name}' is up{reason}; make one: theseus testbed up") from error
        bed = cls.__new__(cls)
        bed._open(connection, Shape())
        try:
            bed.shape = Shape(**bed.status()["shape"])
        except TestbedError as error:
            bed.close()
            raise TestbedError(f"no testbed named '{name}' is up: it ends just now") from error
        return bed

    @classmethod
    def up(cls, name: str = "default", shape: Shape | None = None) -> Testbed:
        """Makes a testbed that stays until `down`, or until its keeper is killed. Raises TestbedError."""
        _start_keeper(shape or Shape(), name).close()
        return cls.attach(name)

    def _open(self, connection: socket.socket, shape: Shape) -> None:
        self._connection = connection
        self._lock = threading.RLock()
        self._answers: list[wire.Message] = []
        self.shape = shape
        self.exits: dict[int, int] = {}

    @property
    def is_open(self) -> bool:
        """Whether this object still speaks with the keeper."""
        return self._connection.fileno() >= 0

    # --- Running things.

    def start(
        self,
        host: int,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        descriptors: Mapping[str, int] | None = None,
        folder: str | None = None,
    ) -> HostProcess:
        """Starts a command on a host, and returns at once.

        `environment` replaces this process's own where given. `stdout` and `stderr` are descriptors; by default this
        process's own. Each of `descriptors` is passed on under a number that the variable of its name tells.
        Raises TestbedError where it cannot be started.
        """
        named = dict(descriptors or {})
        message = {
            "do": "start",
            "host": host,
            "command": list(command),
            "environment": dict(os.environ if environment is None else environment),
            "folder": folder or os.getcwd(),
            "variables": list(named),
        }
        output = [1 if stdout is None else stdout, 2 if stderr is None else stderr]
        answer = self.ask(message, [*output, *named.values()])
        return HostProcess(self, answer["pid"], host)

    def launch(
        self,
        command: Sequence[str],
        *,
        hosts: Sequence[int] | None = None,
        ranks_per_host: int = 1,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[Mapping[str, int]] | None = None,
        on_line: Callable[[int, str], None] | None = None,
    ) -> Job:
        """Starts ranks of one job on `hosts` (all), with the variables of torchrun, and returns at once.

        `environment` is added to this process's own; `descriptors`, one mapping a rank, as in start(). `on_line` gets
        each line that a rank prints; by default it is printed with the rank's number in front. See Job.
        """
        chosen = list(range(self.shape.hosts)) if hosts is None else list(hosts)
        for host in chosen:
            self.shape.check(host, 0)
        if not chosen or ranks_per_host < 1:
            raise ValueError("a job needs at least one host and one rank on it")
        number = self.ask({"do": "job"})["job"]
        variables = rank_environments(self.shape, chosen, ranks_per_host, number, environment or {})
        passed = descriptors or [{}] * len(variables)
        ranks = [
            (chosen[rank // ranks_per_host], *both) for rank, both in enumerate(zip(variables, passed, strict=True))
        ]
        return Job(self, command, ranks, on_line)

    # --- The network.

    def cap(self, host: int, nic: int, fraction: float, direction: str = "both") -> None:
        """Lets a NIC have `fraction` of its rate from now on: 1 heals it, 0 stops it.

        `direction`: "out" of the host, "in" to it, or "both". Connections stay up. Raises ValueError.
        """
        self.ask({"do": "cap", "host": host, "nic": nic, "fraction": fraction, "direction": direction})

    def bytes(self) -> list[list[Traffic]]:
        """Returns for each host and NIC the bytes sent and received so far."""
        answer = self.ask({"do": "traffic"})["traffic"]
        return [[Traffic(*nic) for nic in host] for host in answer]

    def status(self) -> dict[str, Any]:
        """Returns the shape, the caps by host and NIC ([out, in]), running processes, and the keeper's pid."""
        return self.ask({"do": "status"})

    def down(self) -> None:
        """Ends the testbed and everything in it."""
        with contextlib.suppress(TestbedError):
            self.ask({"do": "down"})
        self.close()

    def close(self) -> None:
        """Ends what was started here, and the testbed too where this object made it. Twice is allowed."""
        with self._lock:
            if not self.is_open:
                return
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)
            # Until the keeper has ended what it should: then its end of the connection closes.
            self._connection.settimeout(10.0)
            with contextlib.suppress(OSError):
                while (received := wire.receive(self._connection)) is not None:
                    self._note(received[0])
            self._connection.close()

    def __enter__(self) -> Testbed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- Talking to the keeper.

    def ask(self, message: wire.Message, descriptors: Sequence[int] = ()) -> wire.Message:
        """Sends one request and returns its answer. Raises what the keeper answers with."""
        with self._lock:
            if not self.is_open:
                raise TestbedError("this testbed has been taken down")
            try:
                wire.send(self._connection, message, descriptors)
            except OSError as error:
                raise TestbedError(f"the testbed's keeper is gone: {error}") from error
            while not self._answers:
                self._next()
            answer = self._answers.pop()
        if "error" in answer:
            raise (ValueError if answer["kind"] == "ValueError" else TestbedError)(answer["error"])
        return answer

    def hear(self, timeout: float) -> None:
        """Takes note of processes that have ended; waits at most `timeout` seconds for the first."""
        with self._lock:
            if not self.is_open:
                return
            readable = _readable(self._connection, timeout)
            while readable:
                self._next()
                readable = _readable(self._connection, 0.0)

    def _next(self) -> None:
        received = wire.receive(self._connection)
        if received is None:
            raise TestbedError("the testbed's keeper is gone, and with it everything that ran there")
        self._note(received[0])

    def _note(self, message: wire.Message) -> None:
        if "exit" in message:
            self.exits[message["exit"]] = message["code"]
        else:
            self._answers.append(message)


def _readable(connection: socket.socket, timeout: float) -> bool:
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    return bool(poller.poll(timeout * 1000))


def _start_keeper(shape: Shape, name: str | None) -> socket.socket:
    """Starts a keeper, and returns the connection to it once its network stands. Raises TestbedError."""
    ours, theirs = wire.pair()
    options = json.dumps({**vars(shape), "name": name})
    path = [os.path.abspath(entry) for entry in sys.path]
    code = f"import sys; sys.path[:] = {path!r}; from theseus_py.testbed.keeper import main; main()"
    command = [sys.executable, "-c", code, str(theirs.fileno()), options]
    with theirs:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if name is not None else None,
            stderr=subprocess.PIPE if name is not None else None,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    received = wire.receive(ours)
    if received is not None and "ready" in received[0]:
        _reap_later(process)
        return ours
    ours.close()
    said = b"" if process.stderr is None else process.stderr.read()
    status = process.wait()
    if received is not None:
        raise TestbedError(received[0]["error"])
    words = said.decode(errors="replace").strip().splitlines()
    raise TestbedError(f"the testbed's keeper ended with {status}" + (f": {words[-1]}" if words else ""))


def _reap_later(process: subprocess.Popen[bytes]) -> None:
    """Reaps the keeper when it ends, however long this process lives; it stays no zombie."""
    if process.stderr is not None:
        process.stderr.close()
    threading.Thread(target=process.wait, name="testbed-reaper", daemon=True).start()
