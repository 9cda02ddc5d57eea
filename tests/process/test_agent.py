"""The node's agents as processes: one log on all hosts, whatever dies; bodies, commands, refusals."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from process.agents import Cluster, attribute, eventually, read_all, update

from theseus_py.agent.client import AgentConnection
from theseus_py.agent.wire import Role, socket_name
from theseus_py.errors import InvalidArgument, InvalidUsage, TheseusError, Timeout


def test_one_host_alone(cluster: Callable[[int], Cluster]) -> None:
    """A host alone agrees with itself; refusals name their reason and leave nothing behind."""
    job = cluster(1)
    rank = job.ranks["h0"]
    rank.append(attribute("signal", 4))
    rank.append(update("signal", 0.5, 3))
    with pytest.raises(InvalidArgument, match="signal"):
        rank.append(attribute("signal"))
    with pytest.raises(TheseusError, match="nobody"):
        rank.append(update("nobody", 1))
    with pytest.raises(TheseusError):
        rank.append(update("signal", 1, 4))
    records = job.agree(["h0"], 2)
    assert [record["kind"] for record in records] == ["attribute", "update"]
    assert job.status("h0")["attributes"][0]["values"] == [0, 0, 0, 0.5]


def test_records_of_one_client_keep_their_order(cluster: Callable[[int], Cluster]) -> None:
    """Nobody needs to wait for one append before the next."""
    job = cluster(1)
    rank = job.ranks["h0"]
    tickets = [rank.post(attribute("x"))] + [rank.post(update("x", i)) for i in range(50)]
    for ticket in tickets:
        rank.wait_for(ticket)
    assert [record["elements"] for record in job.agree(["h0"], 51)[1:]] == [[(0, float(i))] for i in range(50)]


def test_one_agent_a_host(cluster: Callable[[int], Cluster]) -> None:
    """A second one ends at once, in good order, and harms nobody."""
    job = cluster(1)
    command = [sys.executable, "-m", "theseus_py.agent", "--job", job.job, "--host", "h0"]
    second = subprocess.run(command, env={**os.environ, "THESEUS_STATE_DIR": str(job.state)}, timeout=60)
    assert second.returncode == 0
    job.ranks["h0"].append(attribute("x"))
    assert job.status("h0")["pid"] == job.processes["h0"].pid


def test_the_folder_goes_with_the_last_rank(cluster: Callable[[int], Cluster]) -> None:
    """An agent ends by itself when its last rank is gone, and leaves no file."""
    job = cluster(1)
    job.ranks["h0"].append(attribute("x"))
    job.ranks["h0"].close()
    assert job.processes["h0"].wait(60) == 0
    assert not job.state.exists()


def test_the_folder_is_private(cluster: Callable[[int], Cluster]) -> None:
    """It holds the job's secret: nobody else can read it, and one that others could write is refused."""
    job = cluster(1)
    for path in [job.state, *job.state.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
    open_to_all = job.state.parent / "open"
    open_to_all.mkdir(mode=0o777)
    open_to_all.chmod(0o777)
    command = [sys.executable, "-m", "theseus_py.agent", "--job", "another", "--host", "h0"]
    environment = {**os.environ, "THESEUS_STATE_DIR": str(open_to_all)}
    refused = subprocess.run(command, env=environment, timeout=60, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "THESEUS_STATE_DIR" in refused.stderr


def test_a_killed_agent_comes_back_with_everything(cluster: Callable[[int], Cluster]) -> None:
    """Kill -9 and a new start with the same folder: same log, same records, and old readers go on reading."""
    job = cluster(1)
    job.ranks["h0"].append(attribute("x"))
    old = job.reader("h0")
    assert old is not None and len(read_all(old)) == 1
    before = job.status("h0")["log_id"]
    for round_ in range(3):
        for i in range(5):
            job.ranks["h0"].append(update("x", 10 * round_ + i))
        job.kill("h0")
        job.start("h0")
        job.ready("h0")
        assert len(job.agree(["h0"], 6 + 5 * round_)) == 6 + 5 * round_
    assert job.status("h0")["log_id"] == before
    assert len(read_all(old)) == 15


def test_the_remains_of_a_dead_job_are_not_taken_up(tmp_path: Path) -> None:
    """Where none of its ranks lives, an agent's folder says nothing to the next job of that name."""
    rank = subprocess.Popen(["sleep", "1000"])
    first = Cluster(tmp_path / "state", 1)
    try:
        first.ready()
        first.ranks["h0"].append(attribute("x"))
        before = first.status("h0")["log_id"]
        folder = next(first.state.glob("*/*"))
        first.kill("h0")
        # What an agent notes of a rank that is gone by now.
        rank.kill()
        rank.wait()
        (folder / "ranks.json").write_text(f'{{"{rank.pid}": 12345}}')
        first.start("h0")
        first.ready("h0")
        assert first.status("h0")["log_id"] not in (0, before)
        assert first.records("h0") == []
    finally:
        rank.kill()
        first.close()


def test_three_hosts_have_one_log(cluster: Callable[[int], Cluster]) -> None:
    """Whoever appends, all hosts get the same records at the same places."""
    job = cluster(3)
    job.ranks["h0"].append(attribute("x", 8))
    for i in range(12):
        job.ranks[f"h{i % 3}"].append(update("x", i, i % 8))
    assert len(job.agree(job.hosts, 13)) == 13
    assert all(member["connected"] for member in job.status(job.leader(job.hosts))["members"])


def test_the_leader_dies(cluster: Callable[[int], Cluster]) -> None:
    """The others go on, with all that was agreed; the dead one catches up when it is back."""
    job = cluster(3)
    job.ranks["h0"].append(attribute("x"))
    count = 1
    for round_ in range(2):
        leader = job.leader(job.hosts)
        job.kill(leader)
        others = [host for host in job.hosts if host != leader]
        for host in others:
            job.ranks[host].append(update("x", round_))
            count += 1
        job.agree(others, count)
        job.start(leader)
        job.ready(leader)
        job.agree(job.hosts, count)


def test_without_a_quorum_nothing_is_lost_and_nobody_hangs(cluster: Callable[[int], Cluster]) -> None:
    """Appends say so after a bounded time; what was agreed can be read; it goes on when the others are back."""
    job = cluster(3)
    job.ranks["h0"].append(attribute("x"))
    job.agree(job.hosts, 1)
    job.kill("h1", "h2")
    eventually(lambda: not job.status("h0")["has_quorum"], "the loss is noticed")
    with pytest.raises(Timeout, match="no quorum"):
        job.ranks["h0"].append(update("x", 1))
    assert len(job.records("h0")) == 1
    assert job.status("h0")["leader"] is None
    job.start("h1")
    job.start("h2")
    job.ready()
    job.ranks["h1"].append(update("x", 2))
    # The record that was given up on may have been appended after all, as its error said; once at most.
    eventually(lambda: {"elements": [(0, 2.0)], "kind": "update", "name": "x"} in job.records("h0"), "it goes on")
    count = len(job.records("h0"))
    assert count in (2, 3)
    job.agree(job.hosts, count)


def test_all_die_at_once_and_one_journal_is_torn(cluster: Callable[[int], Cluster]) -> None:
    """What was acknowledged survives, although one agent comes back without the end of its journal."""
    job = cluster(3)
    job.ranks["h0"].append(attribute("x"))
    for i in range(10):
        job.ranks["h1"].append(update("x", i))
    before = job.agree(job.hosts, 11)
    job.kill(*job.hosts)
    torn = next(path for path in job.state.glob("*/h2-*/raft/journal"))
    os.truncate(torn, torn.stat().st_size - 7)
    for host in ("h2", "h0", "h1"):
        job.start(host)
    job.ready()
    assert job.agree(job.hosts, 11) == before
    job.ranks["h2"].append(update("x", 99))
    job.agree(job.hosts, 12)


def test_more_than_five_hosts_follow(cluster: Callable[[int], Cluster]) -> None:
    """Five vote; the others get everything, and can append."""
    job = cluster(7)
    assert [member["votes"] for member in job.status("h6")["members"]] == [True] * 5 + [False] * 2
    job.ranks["h6"].append(attribute("x"))
    job.ranks["h5"].append(update("x", 5))
    job.ranks["h0"].append(update("x", 0))
    job.agree(job.hosts, 3)


def test_a_full_disk_freezes_and_thaws(cluster: Callable[[int], Cluster]) -> None:
    """Readers keep what they have, the reason is told, and with room again it goes on."""
    job = cluster(1)
    job.ranks["h0"].append(attribute("x", 4096))
    pid = job.processes["h0"].pid
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (16, limits[1]))
    everything = {"kind": "update", "name": "x", "elements": [(i, 1.0) for i in range(4096)]}
    with pytest.raises(Timeout):
        job.ranks["h0"].append(everything)
    eventually(lambda: job.status("h0")["frozen"], "the agent says that it is frozen")
    assert len(job.records("h0")) == 1
    resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    eventually(lambda: job.status("h0")["frozen"] is None and job.status("h0")["has_quorum"], "it thaws")
    eventually(lambda: _append(job, everything), "appending works again")
    eventually(lambda: len(job.records("h0")) >= 2, "and shows")


def _append(job: Cluster, fields: dict[str, Any]) -> bool:
    job.ranks["h0"].append(fields)
    return True


def test_a_stopped_agent_is_no_quorum_and_resumes(cluster: Callable[[int], Cluster]) -> None:
    """SIGSTOP for longer than an election: the others go on, and it follows again."""
    job = cluster(3)
    job.ranks["h0"].append(attribute("x"))
    leader = job.leader(job.hosts)
    others = [host for host in job.hosts if host != leader]
    os.kill(job.processes[leader].pid, signal.SIGSTOP)
    try:
        for i in range(3):
            job.ranks[others[0]].append(update("x", i))
    finally:
        os.kill(job.processes[leader].pid, signal.SIGCONT)
    job.agree(job.hosts, 4)


def test_the_first_word_on_members_counts(cluster: Callable[[int], Cluster]) -> None:
    """Another secret is not taken while a rank that said the first is there; a guessable one never is."""
    job = cluster(1)
    before = job.status("h0")["log_id"]
    with AgentConnection(socket_name(job.job, "h0"), job.job, "h0", role=Role.RANK) as other:
        other.set_members(b"another secret of the job", job.members)
        other.append(attribute("x"))
    with AgentConnection(socket_name(job.job, "h0"), job.job, "h0", role=Role.RANK) as other:
        other.set_members(b"short", job.members)
        with pytest.raises(TheseusError):
            other.status()
    assert job.status("h0")["log_id"] == before


def test_another_job_of_the_same_name_begins_anew(cluster: Callable[[int], Cluster]) -> None:
    """A restarted job finds the agent of the one before it, and gets a log of its own."""
    job = cluster(1)
    job.ranks["h0"].append(attribute("x"))
    before = job.status("h0")["log_id"]
    with AgentConnection(socket_name(job.job, "h0"), job.job, "h0", role=Role.RANK) as restarted:
        job.ranks["h0"].close()
        eventually(lambda: len(restarted.status()["ranks"]) == 1, "the old rank is gone")
        restarted.set_members(secrets.token_bytes(32), job.members)
        eventually(lambda: restarted.status()["log_id"] not in (0, before), "a new log")
        restarted.append(attribute("x"))


def test_unreachable_hosts_are_named() -> None:
    """Nobody there is an error that says so."""
    with pytest.raises(TheseusError, match="no agent"):
        AgentConnection(socket_name("no such job", "here"), "no such job", "here")
    from theseus_py.agent.client import connect

    with pytest.raises(InvalidUsage, match="no such job"):
        connect("no such job")
