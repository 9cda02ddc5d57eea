"""Jobs on testbeds of their own that stay, and run collectives when told (nic_rank.py is their rank)."""

from __future__ import annotations

import base64
import contextlib
import json
import select
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from benchmarks.harness.nic_caps import Cap
from benchmarks.harness.nic_control import CONTROL
from theseus_py.testbed import Shape, Testbed, TestbedError, Traffic

_START_SECONDS = 120.0
# Of what each rank said last.
_KEPT_LINES = 2
# After a stall: what it takes until connections that backed off try again.
_RECOVERY_SECONDS = 180.0


class JobError(RuntimeError):
    """A job could not be started, ended, or computed something wrong; the text names it."""


@dataclass(frozen=True)
class Run:
    """One collective. `seconds` from the word go to the last rank's end; at `stalled`, it had not ended by its limit
    under the caps, which were then lifted to let it end. `traffic` is what crossed each host's NICs.
    """

    seconds: float
    stalled: bool
    traffic: list[list[Traffic]]


class NicJob:
    """Ranks on all hosts of a testbed of their own, so that jobs can take turns under caps of their own."""

    def __init__(
        self,
        name: str,
        shape: Shape,
        command: Sequence[str],
        ranks_per_host: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts `command` as every rank. Raises JobError."""
        self.name = name
        self._shape = shape
        self._said: dict[int, deque[str]] = {}
        self._caps: list[Cap] = []
        try:
            self.bed = Testbed(shape.hosts, shape.nics, shape.rate)
        except TestbedError as error:
            raise JobError(f"{name}: {error}") from error
        self._controls: list[socket.socket] = []
        self._pending: list[bytes] = []
        remote = []
        for _ in range(shape.hosts * ranks_per_host):
            ours, theirs = socket.socketpair()
            self._controls.append(ours)
            self._pending.append(b"")
            remote.append(theirs)
        try:
            self._job = self.bed.launch(
                command,
                ranks_per_host=ranks_per_host,
                environment=environment,
                descriptors=[{CONTROL: end.fileno()} for end in remote],
                on_line=self._note,
            )
        except TestbedError as error:
            self.close()
            raise JobError(f"{name}: {error}") from error
        finally:
            for end in remote:
                end.close()

    def explain(self, collective: str, size: int) -> str:
        """Returns what would run."""
        answers = self.ask({"do": "explain", "collective": collective, "bytes": size})
        return str(answers[0]["chosen"])

    def load(self, name: str, plan: bytes) -> None:
        """Gives all ranks a plan, which runs can name."""
        self.ask({"do": "load", "name": name, "plan": base64.b64encode(plan).decode()})

    def cap(self, caps: Sequence[Cap]) -> None:
        """Caps these NICs and heals all others."""
        for old in self._caps:
            if old not in caps:
                self.bed.cap(old.host, old.nic, 1.0)
        for new in caps:
            if new not in self._caps:
                self.bed.cap(new.host, new.nic, new.fraction)
        self._caps = list(caps)

    def run(self, collective: str, size: int, plan: str | None = None, limit: float = 60.0) -> Run:
        """Runs a collective once. Where it takes more than `limit` seconds, all caps are lifted. Raises JobError."""
        self.ask({"do": "prepare", "collective": collective, "bytes": size, "plan": plan})
        before = self.bed.bytes()
        begin = time.monotonic()
        answers, stalled = self.ask_or_heal({"do": "go"}, limit)
        wrong = sum(answer["wrong"] for answer in answers)
        if wrong:
            raise JobError(f"{self.name}: {collective} of {size} bytes: {wrong} elements are wrong")
        seconds = max(answer["end"] for answer in answers) - begin
        return Run(seconds, stalled, _difference(before, self.bed.bytes()))

    def ask(self, command: dict[str, Any]) -> list[dict[str, Any]]:
        """Tells all ranks something that they answer whatever the caps. Raises JobError."""
        self._tell(command)
        answers = self._hear(_START_SECONDS)
        if answers is None:
            raise JobError(f"{self.name}: no answer to {command['do']!r}. {self._last_words()}")
        return answers

    def ask_or_heal(self, command: dict[str, Any], limit: float) -> tuple[list[dict[str, Any]], bool]:
        """Tells all ranks something, and returns their answers, and whether there were none within `limit` seconds
        under the caps, which were then lifted until there were. Raises JobError.
        """
        self._tell(command)
        answers = self._hear(limit)
        if answers is not None:
            return answers, False
        caps = self._caps
        self.cap([])
        answers = self._hear(_RECOVERY_SECONDS)
        self.cap(caps)
        if answers is None:
            raise JobError(f"{self.name}: {command['do']!r} did not end with all NICs healed. {self._last_words()}")
        return answers, True

    def close(self) -> None:
        """Ends the job and its testbed."""
        for control in self._controls:
            control.close()
        self.bed.close()

    def __enter__(self) -> NicJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell(self, command: dict[str, Any]) -> None:
        data = (json.dumps(command) + "\n").encode()
        with contextlib.suppress(BrokenPipeError):  # its end is found when it is listened to
            for control in self._controls:
                control.sendall(data)

    def _hear(self, limit: float) -> list[dict[str, Any]] | None:
        """One answer of each rank; None where some are missing after `limit` seconds."""
        deadline = time.monotonic() + limit
        poller = select.poll()
        ranks = {control.fileno(): rank for rank, control in enumerate(self._controls)}
        for descriptor in ranks:
            poller.register(descriptor, select.POLLIN)
        while any(b"\n" not in pending for pending in self._pending):
            self._job.pump(0.0)
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            for descriptor, _ in poller.poll(min(left, 0.5) * 1000):
                data = self._controls[ranks[descriptor]].recv(65536)
                if not data:
                    raise JobError(f"{self.name}: rank {ranks[descriptor]} ended. {self._last_words()}")
                self._pending[ranks[descriptor]] += data
                if b"\n" in self._pending[ranks[descriptor]]:
                    poller.unregister(descriptor)
        answers = []
        for rank, pending in enumerate(self._pending):
            line, _, self._pending[rank] = pending.partition(b"\n")
            answers.append(json.loads(line))
        return answers

    def _last_words(self) -> str:
        with contextlib.suppress(TestbedError):
            self._job.pump(0.3)
        return " | ".join(f"[{rank}] {line.strip()}" for rank, lines in sorted(self._said.items()) for line in lines)

    def _note(self, rank: int, line: str) -> None:
        if line.strip():
            self._said.setdefault(rank, deque(maxlen=_KEPT_LINES)).append(line)


def _difference(before: list[list[Traffic]], after: list[list[Traffic]]) -> list[list[Traffic]]:
    return [
        [Traffic(b.sent - a.sent, b.received - a.received) for a, b in zip(host_before, host_after, strict=True)]
        for host_before, host_after in zip(before, after, strict=True)
    ]
