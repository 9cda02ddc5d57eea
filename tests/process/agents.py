"""Agents as processes, on hosts that are only names: what the tests of the agent start and look at."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from theseus_py import _core
from theseus_py.agent.client import AgentConnection
from theseus_py.agent.wire import Role, socket_name
from theseus_py.errors import TheseusError

PATIENCE = 90.0  # bounds a wait for something that must come; nothing is measured


def eventually(condition: Callable[[], Any], what: str) -> Any:
    """Return the condition's first true value; fail where none comes."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if value := condition():
                return value
        except TheseusError as error:
            if time.monotonic() >= deadline:
                raise AssertionError(f"{what}: {error}") from error
        if time.monotonic() >= deadline:
            raise AssertionError(f"it did not come to this: {what}")
        time.sleep(0.02)


class Cluster:
    """Agents of one job on hosts that are only names, each with a connection that stands for its ranks."""

    def __init__(self, state: Path, hosts: int) -> None:
        self.state = state
        self.job = f"job-{secrets.token_hex(4)}"
        self.secret = secrets.token_bytes(32)
        self.hosts = [f"h{i}" for i in range(hosts)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ranks: dict[str, AgentConnection] = {}
        self.members: list[tuple[str, str]] = []
        for host in self.hosts:
            self.start(host)
        self.members = [(host, self.ranks[host].address) for host in self.hosts]
        for host in self.hosts:
            self.ranks[host].set_members(self.secret, self.members)

    def start(self, host: str, **options: Any) -> None:
        environment = {**os.environ, "THESEUS_STATE_DIR": str(self.state), "THESEUS_HOST": host}
        command = [sys.executable, "-m", "theseus_py.agent", "--job", self.job, "--host", host]
        self.processes[host] = subprocess.Popen(command, env=environment, **options)
        self.meet(host)

    def meet(self, host: str) -> None:
        def connect() -> AgentConnection:
            return AgentConnection(socket_name(self.job, host), self.job, host, role=Role.RANK)

        self.ranks[host] = eventually(connect, f"the agent of {host} listens")
        if self.members:
            self.ranks[host].set_members(self.secret, self.members)

    def kill(self, *hosts: str) -> None:
        for host in hosts:
            self.processes[host].kill()
        for host in hosts:
            self.processes[host].wait()
            self.ranks[host].close()

    def ready(self, *hosts: str) -> None:
        """Wait until each of these hosts has a log and a quorum."""
        for host in hosts or self.hosts:
            eventually(
                lambda host=host: self.status(host)["has_quorum"] and self.status(host)["readable"] >= 0, "quorum"
            )
            eventually(lambda host=host: self.reader(host) is not None, "a log")

    def status(self, host: str) -> dict[str, Any]:
        return self.ranks[host].status()

    def reader(self, host: str) -> _core.SharedLogReader | None:
        with AgentConnection(socket_name(self.job, host), self.job, host) as fresh:
            return None if fresh.log is None else _core.SharedLogReader.from_fd(os.dup(fresh.log))

    def records(self, host: str) -> list[dict[str, Any]]:
        reader = self.reader(host)
        assert reader is not None
        return read_all(reader)

    def agree(self, hosts: list[str], count: int) -> list[dict[str, Any]]:
        """Wait until all of these hosts hold `count` records, and return them: they are the same."""
        for host in hosts:
            eventually(lambda host=host: len(self.records(host)) >= count, f"{host} has {count} records")
        logs = [self.records(host) for host in hosts]
        assert all(log == logs[0] for log in logs)
        assert len(logs[0]) == count
        assert len({self.status(host)["log_id"] for host in hosts}) == 1
        return logs[0]

    def leader(self, hosts: list[str]) -> str:
        return str(
            eventually(lambda: self.status(hosts[0])["leader"] in hosts and self.status(hosts[0])["leader"], "a leader")
        )

    def close(self) -> None:
        for rank in self.ranks.values():
            rank.close()
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(30)


def read_all(reader: _core.SharedLogReader) -> list[dict[str, Any]]:
    found = []
    while (record := reader.next()) is not None:
        found.append(_core.decode_record(record))
    return found


def attribute(name: str, length: int = 1) -> dict[str, Any]:
    return {"kind": "attribute", "name": name, "length": length}


def update(name: str, value: float, index: int = 0) -> dict[str, Any]:
    return {"kind": "update", "name": name, "elements": [(index, value)]}
