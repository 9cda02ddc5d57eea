"""The job's context through real agents: records rain while agents are killed; ranks never notice nor disagree."""

from __future__ import annotations

import os
import random
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from process.processes import PATIENCE, Ranks
from process.test_context import Log, rain, schedules_run, traces

pytest.importorskip("pysyncobj", reason="agents need it")

from theseus_py.agent.client import AgentConnection, connect, find
from theseus_py.errors import InvalidUsage, RemoteError, SystemError_, TheseusError, Timeout


class Job:
    """Two virtual hosts of two ranks each, with their agents."""

    def __init__(self, folder: Path) -> None:
        self.name = f"chaos-{secrets.token_hex(4)}"
        self.log = Log(folder)  # for its folder alone
        self.environment = {
            "THESEUS_JOB_ID": self.name,
            "THESEUS_STATE_DIR": str(folder / "state"),
            "THESEUS_AGENT": f"{sys.executable} -m theseus_py.agent",
            "THESEUS_ADAPT": "on",
            "THESEUS_HEALING": "off",
            "THESEUS_TRACE": f"{self.log.path}.trace.%p",
        }

    def place(self, rank: int) -> dict[str, str]:
        host = rank // 2
        return {"THESEUS_HOST": f"{self.name}-{host}", "THESEUS_NICS": f"127.0.{host + 1}.1"}

    def agents(self) -> list[AgentConnection]:
        return [agent for agent in find() if agent.job == self.name]

    def connect(self) -> AgentConnection:
        """An agent of the job that answers; the test fails where none does in time."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                return connect(self.name)
            except (RemoteError, InvalidUsage, Timeout):
                time.sleep(0.1)
        pytest.fail("no agent of the job answers")

    def wait_for_log(self) -> None:
        """Until the agents have found each other and begun a log."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with self.connect() as agent:
                if agent.status()["log_id"] != 0:
                    return
            time.sleep(0.1)
        pytest.fail("the agents have no log")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for agent in made.agents():
        os.kill(agent.status()["pid"], signal.SIGKILL)
        agent.close()


class Rain:
    """Stands in for a Log: what `rain` appends goes to the agents, whoever of them lives."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.taken = self.refused = self.lost = 0

    def append(self, **record: Any) -> None:
        try:
            with self._job.connect() as agent:
                agent.append(record)
            self.taken += 1
        except (Timeout, RemoteError, SystemError_):
            self.lost += 1
        except TheseusError:
            self.refused += 1


@pytest.mark.parametrize("seed", [1])
def test_ranks_agree_while_agents_are_killed(job: Job, seed: int) -> None:
    draw = random.Random(seed)
    names = (f"s{number}" for number in range(10**6))
    alive: list[tuple[str, str]] = []
    with Ranks("follow_context", 4, job.place, job.environment, seed=seed, requests=1, until_told=True) as ranks:
        ranks.wait_for("ready")
        job.wait_for_log()
        shower = Rain(job)
        shower.append(kind="attribute", name="mode")
        for number in range(30):
            rain(shower, draw, names, alive)  # type: ignore[arg-type]
            if number in (10, 20):
                victims = job.agents()
                os.kill(draw.choice(victims).status()["pid"], signal.SIGKILL)
                for agent in victims:
                    agent.close()
        with job.connect() as agent:
            status = agent.status()
        ranks.tell(position=status["position"])
        states = [report["state"] for report in ranks.wait_for("done")]
        assert [each.wait_for_end() for each in ranks.all] == [0] * 4
    assert shower.taken > 10
    assert len({(state["installed"], state["epoch"], state["log_id"]) for state in states}) == 1
    assert states[0]["installed"] >= status["position"]
    runs = [schedules_run(trace) for trace in traces(job.log)]
    assert len(runs) == 4
    assert runs[1:] == runs[:1] * 3
    assert len({schedule for _, _, schedule in runs[0] if schedule.startswith("s")}) >= 2
