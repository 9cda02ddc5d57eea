"""The ranks of one job on a testbed: started together, heard line by line, ended together."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from theseus_py.testbed.errors import TestbedError
from theseus_py.testbed.shape import Shape

if TYPE_CHECKING:
    from theseus_py.testbed.bed import HostProcess, Testbed

# Survivors of a dead rank fail too, a little later; what they have to say is kept, not waited for.
_GRACE_SECONDS = 1.0
_KEPT_LINES = 20
_FIRST_PORT, _PORT_STRIDE, _PORT_SPAN = 20000, 16, 2000
# Settings of this process that would contradict what the testbed says.
_DROPPED = ("THESEUS_HOST", "NCCL_HOSTID", "THESEUS_NIC_RATE", "NCCL_COMM_ID")


class JobFailed(RuntimeError):
    """A rank ended badly. `rank` is the first that did, `output` its last lines."""

    def __init__(self, rank: int, reason: str, output: Sequence[str]) -> None:
        super().__init__(f"rank {rank} failed: {reason}")
        self.rank = rank
        self.reason = reason
        self.output = list(output)


def rank_environments(
    shape: Shape, hosts: Sequence[int], ranks_per_host: int, number: int, extra: Mapping[str, str]
) -> list[dict[str, str]]:
    """Returns each rank's whole environment: this process's, then `extra`, then what makes it that rank.

    Rank 0 is reached over the management network, and control messages go there; data goes over the NICs. The network
    namespace is the host's identity, so no THESEUS_HOST is set. `number` keeps the ports of a testbed's jobs apart.
    """
    base = {name: value for name, value in {**os.environ, **extra}.items() if name not in _DROPPED}
    base.setdefault("OMP_NUM_THREADS", "1")
    base.setdefault("PYTHONUNBUFFERED", "1")
    base.setdefault("THESEUS_JOB_ID", f"job-{secrets.token_hex(4)}")
    interfaces = ",".join(shape.interfaces())
    made = []
    for rank in range(len(hosts) * ranks_per_host):
        place = rank // ranks_per_host
        fixed = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(hosts) * ranks_per_host),
            "LOCAL_RANK": str(rank % ranks_per_host),
            "LOCAL_WORLD_SIZE": str(ranks_per_host),
            "GROUP_RANK": str(place),
            "MASTER_ADDR": shape.management_address(hosts[0]),
            "MASTER_PORT": str(_FIRST_PORT + number * _PORT_STRIDE % (_PORT_SPAN * _PORT_STRIDE)),
        }
        choices = {
            "THESEUS_NICS": interfaces,
            "NCCL_SOCKET_IFNAME": "=mgmt0",
            "GLOO_SOCKET_IFNAME": interfaces,
        }
        made.append({**base, **{name: extra.get(name, value) for name, value in choices.items()}, **fixed})
    return made


@dataclass
class _Rank:
    number: int
    process: HostProcess
    pipe: int
    partial: bytes = b""
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))


class Job:
    """Ranks that run. Ended by wait(), kill() or the testbed's end; what they print is read while wait() waits."""

    def __init__(
        self,
        bed: Testbed,
        command: Sequence[str],
        ranks: Sequence[tuple[int, Mapping[str, str], Mapping[str, int]]],
        on_line: Callable[[int, str], None] | None,
    ) -> None:
        """Starts `command` for each of `ranks`: its host, environment and descriptors. Testbed.launch does it."""
        self._on_line = on_line or _print_line
        self._bed = bed
        self._ranks: list[_Rank] = []
        self._selector = selectors.DefaultSelector()
        try:
            for number, (host, environment, descriptors) in enumerate(ranks):
                self._start(number, host, command, environment, descriptors)
        except BaseException:
            self.kill()
            raise

    def _start(
        self,
        number: int,
        host: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Mapping[str, int],
    ) -> None:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        try:
            process = self._bed.start(
                host, command, environment=environment, stdout=writing, stderr=writing, descriptors=descriptors
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        rank = _Rank(number, process, reading)
        self._ranks.append(rank)
        self._selector.register(reading, selectors.EVENT_READ, rank)

    @property
    def processes(self) -> list[HostProcess]:
        """The ranks' processes, in order of rank."""
        return [rank.process for rank in self._ranks]

    def wait(self, timeout: float | None = None) -> None:
        """Waits until all ranks have ended well. By then, or when this raises, none is left.

        Raises JobFailed for the first rank that fails, TimeoutError after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while self.running():
                self.pump(0.05)
                failed = self._first_failure()
                if failed is not None:
                    self._linger(_GRACE_SECONDS)
                    raise JobFailed(failed.number, _reason(failed), failed.last_lines)
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError(f"ranks {self.running()} still run after {timeout} s")
            self.pump(0.0)
            if (failed := self._first_failure()) is not None:
                raise JobFailed(failed.number, _reason(failed), failed.last_lines)
        finally:
            self.kill()

    def running(self) -> list[int]:
        """Returns the ranks that have not ended."""
        return [rank.number for rank in self._ranks if rank.process.poll() is None]

    def pump(self, timeout: float) -> None:
        """Hands on what ranks have printed; waits at most `timeout` seconds for the first of it."""
        while self._selector.get_map():
            events = self._selector.select(timeout)
            for key, _ in events:
                self._read(key.data)
            if not events:
                return
            timeout = 0.0
        time.sleep(timeout)

    def kill(self) -> None:
        """Ends all ranks at once. Twice is allowed."""
        with contextlib.suppress(TestbedError):  # then they are gone already
            for rank in self._ranks:
                if rank.process.poll() is None:
                    rank.process.kill()
            for rank in self._ranks:
                rank.process.wait()
        self.pump(0.0)
        for rank in self._ranks:
            if rank.pipe >= 0:
                self._close(rank)

    def _read(self, rank: _Rank) -> None:
        try:
            data = os.read(rank.pipe, 65536)
        except BlockingIOError:
            return
        *lines, rest = (rank.partial + data).split(b"\n")
        if not data and rest:
            lines, rest = [rest], b""
        rank.partial = rest
        for line in lines:
            text = line.decode(errors="replace")
            rank.last_lines.append(text)
            self._on_line(rank.number, text)
        if not data:
            self._close(rank)

    def _close(self, rank: _Rank) -> None:
        self._selector.unregister(rank.pipe)
        os.close(rank.pipe)
        rank.pipe = -1

    def _linger(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.running() and time.monotonic() < deadline:
            self.pump(0.05)
        self.pump(0.0)

    def _first_failure(self) -> _Rank | None:
        """Of ranks found dead together, one killed by a signal is the cause; the others tell of its effect."""
        codes = [(rank.process.poll(), rank) for rank in self._ranks]
        failed = [(code, rank.number, rank) for code, rank in codes if code not in (None, 0)]
        return min(failed, key=lambda each: (each[0] is not None and each[0] >= 0, each[1]), default=(0, 0, None))[2]


def _reason(rank: _Rank) -> str:
    code = rank.process.poll() or 0
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by signal {-code} ({signal.Signals(-code).name})"
        return f"killed by signal {-code}"
    said = [line for line in rank.last_lines if line.strip()]
    return f"exit code {code}" + (f", last said: {said[-1].strip()}" if said else "")


def _print_line(rank: int, line: str) -> None:
    sys.stdout.write(f"[{rank}] {line}\n")
    sys.stdout.flush()
