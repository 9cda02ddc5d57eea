"""Finds the processes of jobs that know nothing of LEVELLER."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["JobProcesses", "Process", "Rule"]

#: A process with this in its environment says itself whose it is.
VARIABLE = b"LEVELLER_JOB="
_MOST_ENVIRONMENT = 1 << 20
_NAME = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(frozen=True)
class Process:
    """A process; `started`, in ticks since boot, tells it from a later one of the same number."""

    pid: int
    started: int


@dataclass(frozen=True)
class Rule:
    """Says which processes are the job `job`'s: all that are given must hold.

    command: a regular expression that is found in the command line, its words separated by blanks
    cgroup: a prefix of the path below /sys/fs/cgroup
    pid: that process
    Children of a process that matches are the job's too.
    """

    job: str
    command: str | None = None
    cgroup: str | None = None
    pid: int | None = None

    def __post_init__(self) -> None:
        if self.command is None and self.cgroup is None and self.pid is None:
            raise ValueError(f"job {self.job}: say which processes it has, by command, cgroup or pid")
        if self.command is not None:
            try:
                re.compile(self.command)
            except re.error as error:
                raise ValueError(f"job {self.job}: command is no regular expression: {error}") from None


class JobProcesses:
    """Looks through /proc for processes of this network namespace. Whose one is, once found, stays."""

    def __init__(self, rules: Sequence[Rule] = (), proc: Path = Path("/proc")) -> None:
        self._rules = rules
        self._proc = proc
        self._network = _network_of(proc / "self")
        self._jobs: dict[Process, str | None] = {}

    def scan(self) -> dict[str, list[Process]]:
        """Returns the jobs that have processes here. Those of other users are left out where we may not look."""
        found: dict[Process, int] = {}
        for entry in os.scandir(self._proc):
            if entry.name.isdigit() and (read := self._stat(entry.name)) is not None:
                process, parent = read
                found[process] = parent
        self._jobs = {process: self._jobs.get(process) or self._job_of(process) for process in found}
        by_pid = {process.pid: process for process in found}
        jobs: dict[str, list[Process]] = {}
        for process in found:
            job = self._inherited(process, found, by_pid)
            if job is not None:
                jobs.setdefault(job, []).append(process)
        return jobs

    def _inherited(self, process: Process, parents: dict[Process, int], by_pid: dict[int, Process]) -> str | None:
        """The job of a process, or of the nearest ancestor that has one."""
        at: Process | None = process
        for _ in range(64):
            if at is None:
                return None
            if (job := self._jobs[at]) is not None:
                return job
            at = by_pid.get(parents[at])
        return None

    def _stat(self, pid: str) -> tuple[Process, int] | None:
        try:
            text = (self._proc / pid / "stat").read_bytes()
        except OSError:
            return None  # gone meanwhile
        # The name, in brackets, may hold anything; what follows its last bracket is numbers.
        fields = text[text.rfind(b")") + 2 :].split()
        if len(fields) < 20 or fields[0] in (b"Z", b"X"):
            return None
        return Process(int(pid), int(fields[19])), int(fields[1])

    def _job_of(self, process: Process) -> str | None:
        folder = self._proc / str(process.pid)
        if _network_of(folder) != self._network:
            return None  # another network namespace: its own agent's
        for rule in self._rules:
            if self._matches(rule, process, folder):
                return rule.job
        return self._said(folder)

    def _matches(self, rule: Rule, process: Process, folder: Path) -> bool:
        if rule.pid is not None and rule.pid != process.pid:
            return False
        try:
            if rule.command is not None:
                command = (folder / "cmdline").read_bytes()[:4096].replace(b"\0", b" ").decode(errors="replace")
                if re.search(rule.command, command) is None:
                    return False
            if rule.cgroup is not None:
                paths = [line.split(":", 2)[-1] for line in (folder / "cgroup").read_text().splitlines()]
                return any(path.strip("/").startswith(rule.cgroup.strip("/")) for path in paths)
        except OSError:
            return False
        return True

    def _said(self, folder: Path) -> str | None:
        try:
            with (folder / "environ").open("rb") as file:
                variables = file.read(_MOST_ENVIRONMENT).split(b"\0")
        except OSError:
            return None  # another user's
        for each in variables:
            if each.startswith(VARIABLE):
                name = each[len(VARIABLE) :].decode(errors="replace")
                return name if _NAME.fullmatch(name) else None
        return None


def _network_of(folder: Path) -> str | None:
    """The network namespace of a process; None where we may not look."""
    try:
        return os.readlink(folder / "ns" / "net")
    except OSError:
        return None
