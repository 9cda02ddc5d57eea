"""Finds the processes of jobs that know nothing of LEVELLER."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from leveller.jobs.sockets import inodes_at_port, socket_inodes

__all__ = ["JobProcesses", "Process", "Rule"]

#: A process with this in its environment says itself whose it is.
VARIABLE = b"LEVELLER_JOB="
_MOST_ENVIRONMENT = 1 << 20
_NAME = re.compile(r"[\x21-\x7e]{1,128}")
#: A process that is nobody's is looked at again every so many scans: it may have been moved into a cgroup.
_TURNS = 16
#: No line of ancestors is longer; one that seems to be was read while it changed.
_MOST_ANCESTORS = 64


@dataclass(frozen=True, slots=True)
class Process:
    """A process; `started`, in ticks since boot, tells it from a later one of the same number."""

    pid: int
    started: int


@dataclass(frozen=True)
class Rule:
    """Says which processes are the job `job`'s: all that are given must hold.

    command: a regular expression that is found in the command line, its words separated by blanks
    cgroup: a path below /sys/fs/cgroup; what is in it or below it
    pid: that process, but no later one of the same number
    port: a TCP port at either end of a connection of the process, or one that it listens on
    Children of a process that matches are the job's too.
    """

    job: str
    command: str | None = None
    cgroup: str | None = None
    pid: int | None = None
    port: int | None = None

    def __post_init__(self) -> None:
        if self.command is None and self.cgroup is None and self.pid is None and self.port is None:
            raise ValueError(f"job {self.job}: say which processes it has, by command, cgroup, pid or port")
        if self.port is not None and not 0 < self.port < 65536:
            raise ValueError(f"job {self.job}: {self.port} is no port")
        if self.command is not None:
            try:
                re.compile(self.command)
            except re.error as error:
                raise ValueError(f"job {self.job}: command is no regular expression: {error}") from None


@dataclass(slots=True)
class _Known:
    """A process as it was seen last.

    parent: its parent's number
    image: changes when the process executes another program, and then its environment and command line do
    said: the job that its environment or a rule says
    job: `said`, else its ancestors'; stays when these end
    away: the job that it says it is of, in another network namespace
    """

    process: Process
    parent: int
    image: tuple[bytes, ...]
    said: str | None = None
    job: str | None = None
    away: str | None = None


class JobProcesses:
    """Looks through /proc for processes of this network namespace. Whose one is, once found, stays.

    Processes of other network namespaces are for the agent there: their connections cannot be seen, and are not marked,
    from here. `elsewhere` has those of them that say whose they are.
    A scan reads one file a process; environment, command line and cgroup are read again only after an execve, and for
    processes that are nobody's in every sixteenth scan.
    """

    def __init__(self, rules: Sequence[Rule] = (), proc: Path = Path("/proc")) -> None:
        self._rules = rules
        self._proc = str(proc)
        self._network = _network_of(f"{proc}/self")
        self._known: dict[int, _Known] = {}
        self._first: dict[Rule, Process] = {}
        self._turn = 0
        self.elsewhere: dict[str, list[Process]] = {}

    def scan(self) -> dict[str, list[Process]]:
        """Returns the jobs that have processes here. Those of other users are left out where we may not look."""
        self._turn += 1
        at_port = self._at_ports()
        seen: dict[int, _Known] = {}
        for entry in os.scandir(self._proc):
            if entry.name.isdigit() and (found := _read_stat(self._proc, entry.name)) is not None:
                seen[found.process.pid] = self._compared(found, at_port)
        self._known = seen
        jobs: dict[str, list[Process]] = {}
        self.elsewhere = {}
        for known in seen.values():
            known.job = _job_of(known, seen)
            if known.job is not None:
                jobs.setdefault(known.job, []).append(known.process)
            if known.away is not None:
                self.elsewhere.setdefault(known.away, []).append(known.process)
        return jobs

    def _compared(self, found: _Known, at_port: Mapping[int, set[int]]) -> _Known:
        """Tells whose a process is by what was known of it, where nothing has changed."""
        before = self._known.get(found.process.pid)
        if before is not None and before.process == found.process:
            due = before.said is None and (found.process.pid + self._turn) % _TURNS == 0
            if before.image == found.image and not due and not (at_port and before.said is None):
                before.parent = found.parent
                return before
            found.job = before.job
        folder = f"{self._proc}/{found.process.pid}"
        network = _network_of(folder)
        if network == self._network:
            found.said = self._said_of(found.process, folder, at_port)
        elif network is not None:
            found.away = _job_in_environment(folder)
        return found

    def _said_of(self, process: Process, folder: str, at_port: Mapping[int, set[int]]) -> str | None:
        for rule in self._rules:
            if self._matches(rule, process, folder, at_port):
                return rule.job
        return _job_in_environment(folder)

    def _matches(self, rule: Rule, process: Process, folder: str, at_port: Mapping[int, set[int]]) -> bool:
        if rule.pid is not None and (rule.pid != process.pid or self._first.setdefault(rule, process) != process):
            return False
        try:
            if rule.command is not None:
                command = _head(f"{folder}/cmdline", 4096).replace(b"\0", b" ").decode(errors="replace")
                if re.search(rule.command, command) is None:
                    return False
            if rule.cgroup is not None and not _within(rule.cgroup, _head(f"{folder}/cgroup", 1 << 16)):
                return False
        except OSError:
            return False  # it has ended
        return rule.port is None or not at_port.get(rule.port, set()).isdisjoint(socket_inodes(process.pid))

    def _at_ports(self) -> dict[int, set[int]]:
        """The sockets at the ports that rules name; nothing where no rule names any, or none is there."""
        ports = {rule.port for rule in self._rules if rule.port is not None}
        with suppress(OSError):
            return {port: inodes for port in ports if (inodes := inodes_at_port(port))}
        return {}


def _job_of(known: _Known, by_pid: Mapping[int, _Known]) -> str | None:
    """The job of a process, or of the nearest ancestor that has one."""
    at: _Known | None = known
    for _ in range(_MOST_ANCESTORS):
        if at is None:
            return None
        if (job := at.said or at.job) is not None:
            return job
        at = by_pid.get(at.parent)
    return None


def _read_stat(proc: str, pid: str) -> _Known | None:
    """What the kernel says of a process; None: it has ended."""
    try:
        text = _head(f"{proc}/{pid}/stat", 4096)
    except OSError:
        return None
    # The name, in brackets, may hold anything; what follows its last bracket is numbers.
    end = text.rfind(b")")
    fields = text[end + 2 :].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    # Name, code, arguments and environment: their addresses are drawn anew by each execve (0 where we may not look).
    image = (text[text.find(b"(") : end], fields[23] if len(fields) > 23 else b"", *fields[45:48])
    return _Known(Process(int(pid), int(fields[19])), int(fields[1]), image)


def _job_in_environment(folder: str) -> str | None:
    try:
        variables = _head(f"{folder}/environ", _MOST_ENVIRONMENT).split(b"\0")
    except OSError:
        return None  # another user's
    for each in variables:
        if each.startswith(VARIABLE):
            name = each[len(VARIABLE) :].decode(errors="replace")
            return name if _NAME.fullmatch(name) else None
    return None


def _within(cgroup: str, listed: bytes) -> bool:
    """Whether one of the paths of /proc/PID/cgroup is `cgroup` or below it."""
    wanted = cgroup.strip("/")
    paths: Iterable[str] = (line.split(":", 2)[-1].strip("/") for line in listed.decode(errors="replace").splitlines())
    return any(path == wanted or path.startswith(wanted + "/") for path in paths)


def _network_of(folder: str) -> str | None:
    """The network namespace of a process; None where we may not look."""
    try:
        return os.readlink(f"{folder}/ns/net")
    except OSError:
        return None


def _head(path: str, most: int) -> bytes:
    """Reads up to `most` bytes of a file of /proc; a file object would cost more than the reading."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(descriptor, most)
        while len(data) < most and (more := os.read(descriptor, most - len(data))):
            data += more
        return data
    finally:
        os.close(descriptor)
