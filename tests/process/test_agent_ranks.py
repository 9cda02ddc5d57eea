"""Ranks and agents together: started by the ranks, started again when killed, gone with the last rank."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from process.agents import attribute, eventually, update

from theseus_py import AGENT_COMMAND
from theseus_py.agent.client import AgentConnection, find

_RANK = """
import json, os, pathlib, sys, time
import numpy as np
import theseus_py
folder = pathlib.Path(sys.argv[1])
data = np.ones(64, np.float32)
with theseus_py.Communicator.from_env() as communicator:
    told = {}
    while True:
        # All ranks end after the same request: rank 0 decides.
        stop = np.array([int((folder / "stop").exists())], np.int32)
        communicator.broadcast(stop, 0)
        if stop[0]:
            break
        data[:] = 1
        communicator.all_reduce(data)
        assert (data == communicator.ranks).all()
        state = communicator.context_state()
        if state != told:
            told = state
            name = folder / f"state{communicator.rank}"
            name.with_suffix(".new").write_text(json.dumps(state))
            name.with_suffix(".new").replace(name)
        time.sleep(0.002)
while not (folder / "leave").exists():
    time.sleep(0.01)
"""


class Job:
    """Two ranks on two virtual hosts, which start their agents themselves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = f"job-{secrets.token_hex(4)}"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.ranks = [self._start(rank, port) for rank in range(2)]

    def _start(self, rank: int, port: int) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "THESEUS_AGENT": AGENT_COMMAND,
            "THESEUS_STATE_DIR": str(self.folder / "state"),
            "THESEUS_JOB_ID": self.name,
            "THESEUS_HOST": f"host{rank}",
            "THESEUS_NICS": "127.0.0.1",
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        return subprocess.Popen([sys.executable, "-c", _RANK, str(self.folder)], env=environment)

    def agents(self) -> list[dict[str, Any]]:
        """Return the status of each agent of this job."""
        found = []
        for agent in find():
            with agent:
                if agent.job == self.name:
                    found.append(agent.status())
        return found

    def together(self) -> list[dict[str, Any]] | None:
        """Return both agents' status once they have a log, and each other."""
        agents = self.agents()
        good = len(agents) == 2 and all(
            each["has_quorum"] and each["log_id"] and len(each["members"]) == 2 for each in agents
        )
        return agents if good else None

    def connect(self) -> AgentConnection:
        agents = [agent for agent in find() if agent.job == self.name]
        for spare in agents[1:]:
            spare.close()
        return agents[0]

    def installed(self, rank: int) -> int:
        """Return how far a rank's installed context is."""
        path = self.folder / f"state{rank}"
        state = json.loads(path.read_text()) if path.exists() else None
        return int(state["installed"]) if state else 0

    def close(self) -> None:
        (self.folder / "stop").touch()
        (self.folder / "leave").touch()
        for rank in self.ranks:
            try:
                rank.wait(60)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()

    def told(self, good: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]] | None:
        """Return what each agent's rank says of its one communicator, once that is good on both."""
        found = [each for agent in self.agents() for each in agent["communicators"]]
        return found if len(found) == 2 and all(good(each) for each in found) else None


def row_of(communicator: dict[str, Any], collective: str) -> dict[str, Any]:
    """Return the one row of a collective that runs in one size."""
    (row,) = [each for each in communicator["schedules"] if each["collective"] == collective]
    return row


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


def test_ranks_start_keep_and_end_their_agents(job: Job) -> None:
    """Nobody starts an agent by hand; killed ones come back with the same log; ranks install what was appended."""
    before = eventually(job.together, "both hosts have agents, and they have a log")
    assert len({each["log_id"] for each in before}) == 1
    with job.connect() as agent:
        agent.append(attribute("signal"))
        agent.append({"kind": "schedule", "name": "mine", "collective": "AllReduce", "algorithm": "ring"})
    for rank in range(2):
        eventually(lambda rank=rank: job.installed(rank) >= 2, f"rank {rank} has installed both records")
    for each in before:
        os.kill(each["pid"], signal.SIGKILL)

    def restarted() -> list[dict[str, Any]] | None:
        agents = job.together()
        fresh = agents is not None and not {each["pid"] for each in agents} & {each["pid"] for each in before}
        return agents if fresh else None

    after = eventually(restarted, "the ranks have started new agents")
    assert {each["log_id"] for each in after} == {before[0]["log_id"]}
    with job.connect() as agent:
        eventually(lambda: agent.status()["position"] == 2, "all that was agreed is there")
        agent.append(update("signal", 0.25))
    for rank in range(2):
        eventually(lambda rank=rank: job.installed(rank) >= 3, f"rank {rank} goes on with the new agent")
    assert all(rank.poll() is None for rank in job.ranks)
    job.close()
    assert [rank.returncode for rank in job.ranks] == [0, 0]
    eventually(lambda: not job.agents(), "the agents end")
    eventually(lambda: not (job.folder / "state").exists(), "and leave no file")


def test_agents_show_what_their_ranks_do(job: Job) -> None:
    """Context, cost and schedules in use, before and after a schedule is published; nothing of what is over."""
    eventually(job.together, "both hosts have agents, and they have a log")
    measured = eventually(
        lambda: job.told(lambda each: each["local"][0]["tte"]["samples"] > 0 and len(each["schedules"]) == 2),
        "both ranks have told of their requests",
    )
    assert len({each["id"] for each in measured}) == 1
    assert [each["ranks"] for each in measured] == [2, 2]
    assert sorted(each["local"][0]["rank"] for each in measured) == [0, 1]
    for each in measured:
        (rank,) = each["local"]
        assert 0 < rank["tte"]["p50"] <= rank["tte"]["p99"]
        assert rank["resources"]["bytes"] > 0 and rank["resources"]["nodes"] >= 4  # a path has a node a layer
        assert rank["installed"] == 0 and rank["agreements"] > 0 and rank["next_k"] > 0
        for collective, size in (("AllReduce", 256), ("Broadcast", 4)):
            row = row_of(each, collective)
            assert (row["from_bytes"], row["to_bytes"], row["origin"]) == (size, 2 * size - 1, "built-in")
    with job.connect() as agent:
        agent.append({"kind": "schedule", "name": "mine", "collective": "AllReduce", "algorithm": "ring"})
    switched = eventually(
        lambda: job.told(lambda each: row_of(each, "AllReduce")["schedule"] == "mine"), "both run what was published"
    )
    assert len({row_of(each, "AllReduce")["since"] for each in switched}) == 1  # ranks switch before one request
    for each in switched:
        assert row_of(each, "AllReduce")["origin"] == "context"
        assert row_of(each, "Broadcast") == row_of(measured[0], "Broadcast")
    settled = eventually(
        lambda: job.told(lambda each: each["local"][0]["installed"] == 1), "both have installed the record"
    )
    for each in settled:
        assert each["local"][0]["read"] == 1
        assert each["local"][0]["epoch"] > measured[0]["local"][0]["epoch"]
    shown = subprocess.run(
        [sys.executable, "-c", "from theseus_py.cli import main; main()", "top", "--once", "--job", job.name],
        capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"},
    ).stdout  # fmt: skip
    assert "1 of 2" in shown and "mine" in shown
    (job.folder / "stop").touch()
    eventually(lambda: [each["communicators"] for each in job.agents()] == [[], []], "what is over is not shown")
    assert all(rank.poll() is None for rank in job.ranks)
