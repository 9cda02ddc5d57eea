"""What people do to a running job from outside: publish schedules, set attributes, look."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from process.agents import Cluster, attribute, eventually

from resccl import Plan, Topology, built_in, compile
from theseus_py import _core
from theseus_py.agent.channel import Address
from theseus_py.agent.client import connect
from theseus_py.cli import _run
from theseus_py.cli.attr import parse_element, value_of
from theseus_py.cli.console import Failure
from theseus_py.errors import InvalidArgument, InvalidUsage, TheseusError

Make = Callable[[int], Cluster]


def plan_of(name: str = "ring", collective: str = "AllReduce", ranks: int = 4) -> Plan:
    topology = Topology((0,) * ranks, 1)
    return compile(built_in(name, collective, topology), topology)


def schedule(plan: Plan, name: str, **others: Any) -> dict[str, Any]:
    body = plan.to_bytes()
    fields = {"kind": "schedule", "name": name, "collective": plan.collective}
    return {**fields, "plan_hash": _core.hash_plan(body), "plan_bytes": len(body), **others}


def theseus(*arguments: str) -> int:
    return _run(list(arguments))


def test_a_plan_reaches_every_host(cluster: Make) -> None:
    """It goes by hash: the record is small, and every host fetches the body, those that do not vote, too."""
    job = cluster(6)
    plan = plan_of()
    job.ranks["h5"].append(schedule(plan, "mine", usable="bytes >= 1K"), plan.to_bytes())
    records = job.agree(job.hosts, 1)
    assert records[0]["plan_bytes"] == len(plan.to_bytes())
    for host in job.hosts:
        file = job.ranks[host].bodies / f"{records[0]['plan_hash']:016x}"
        eventually(file.exists, f"the plan is on {host}")
        assert file.read_bytes() == plan.to_bytes()
        eventually(lambda host=host: job.status(host)["missing_plans"] == [], "nothing is missing")


def test_what_does_not_verify_is_refused(cluster: Make) -> None:
    """A wrong plan, a wrong hash, no plan, noise: refused with the reason, and the log is as before."""
    job = cluster(1)
    rank = job.ranks["h0"]
    plan = plan_of()
    body = plan.to_bytes()
    fields = plan.to_dict()
    del fields["rank_plans"][0]["thread_blocks"][0][-1]
    broken = Plan.from_dict(fields)
    with pytest.raises(InvalidArgument, match="verify"):
        rank.append(schedule(broken, "broken"), broken.to_bytes())
    with pytest.raises(InvalidArgument, match="hash"):
        rank.append(schedule(plan, "other"), bytes(len(body)))
    with pytest.raises(InvalidArgument, match="bytes"):
        rank.append(schedule(plan, "short"), body[:-1])
    with pytest.raises(InvalidArgument, match="did not come along"):
        rank.append(schedule(plan, "none"))
    with pytest.raises(InvalidArgument, match="AllReduce"):
        rank.append({**schedule(plan, "wrong"), "collective": "AllGather"}, body)
    noise = b"noise" * 100
    with pytest.raises(InvalidArgument, match="no plan"):
        rank.append({**schedule(plan, "noise"), "plan_hash": _core.hash_plan(noise), "plan_bytes": len(noise)}, noise)
    assert job.records("h0") == []
    rank.append(schedule(plan, "good"), body)


def test_policies_names_and_cycles_are_looked_at(cluster: Make) -> None:
    """What would fail on every rank is refused before any of them sees it."""
    job = cluster(1)
    rank = job.ranks["h0"]
    ring = {"kind": "schedule", "name": "a", "collective": "AllReduce", "algorithm": "ring"}
    with pytest.raises(InvalidArgument, match="usable"):
        rank.append({**ring, "usable": "bytes >= "})
    with pytest.raises(InvalidArgument, match="score"):
        rank.append({**ring, "score": "1 +"})
    with pytest.raises(InvalidArgument, match="warp"):
        rank.append({**ring, "algorithm": "warp"})
    with pytest.raises(TheseusError, match="b"):
        rank.append({**ring, "replaces": "b"})
    rank.append(ring)
    with pytest.raises(TheseusError, match="a"):
        rank.append(ring)
    rank.append({**ring, "name": "b", "replaces": "a"})
    assert [record["name"] for record in job.records("h0")] == ["a", "b"]


def test_commands_about_a_job(cluster: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole way of an operator: look, define, set, publish, list, remove; each refusal is one sentence."""
    job = cluster(1)
    of_job = ("--job", job.job)
    plan = plan_of()
    plan.save(tmp_path / "mine.plan")
    assert theseus("attr", "set", "load", "0.5", *of_job) == 0
    assert theseus("attr", "new", "smooth_load", "--hook", "smooth", "--source", "load", "--first", "0.5", *of_job) == 0
    published = ("sched", "add", str(tmp_path / "mine.plan"), "--policy", "load < 1", "--score", "2", "--name", "mine")
    assert theseus(*published, *of_job) == 0
    assert theseus("sched", "add", "ring", "--collective", "AllReduce", "--replaces", "mine", *of_job) == 0
    capsys.readouterr()
    assert theseus("sched", "list", *of_job) == 0
    listed = capsys.readouterr().out
    assert "mine" in listed and "ring" in listed and "load < 1" in listed
    assert theseus("attr", "list", *of_job) == 0
    assert re.search(r"load .*exogenous .*0\.5", capsys.readouterr().out)
    assert theseus("status", *of_job) == 0
    shown = capsys.readouterr().out
    assert job.job in shown and "quorum, leader h0" in " ".join(shown.split())
    assert theseus("status", "--json", *of_job) == 0
    assert json.loads(capsys.readouterr().out)["position"] == 5
    assert theseus("sched", "remove", "mine", *of_job) == 0
    assert theseus("sched", "remove", "mine", *of_job) == 1
    assert "mine" in capsys.readouterr().err
    assert theseus(*published, *of_job) == 0
    assert theseus(*published, *of_job) == 1
    assert "mine" in capsys.readouterr().err
    assert [record["kind"] for record in job.records("h0")] == [
        "attribute", "update", "attribute", "schedule", "schedule", "removal", "schedule"
    ]  # fmt: skip


def test_the_job_is_found(cluster: Make) -> None:
    """By its name; without one where there is one alone, and several are named."""
    first = cluster(1)
    with connect(first.job) as agent:
        assert agent.host == "h0"
    second = cluster(1)
    with pytest.raises(InvalidUsage) as refused:
        connect()
    assert first.job in refused.value.message and second.job in refused.value.message


def test_strangers_get_nothing(cluster: Make) -> None:
    """Noise at an agent's port, silence, half a greeting: it goes on, and says nothing but its own greeting."""
    job = cluster(2)
    address = Address.parse(job.ranks["h0"].address)
    where = (address.addresses[0], address.port)
    open_ones = [socket.create_connection(where) for _ in range(100)]
    for index, stranger in enumerate(open_ones):
        stranger.sendall(
            [b"", b"GET / HTTP/1.1\r\n\r\n" * 10, bytes(44), b"THSAGENT\1\0\0\0" + bytes(32) * 4][index % 4]
        )
    job.ranks["h0"].append(attribute("x"))
    job.agree(job.hosts, 1)
    for stranger in open_ones:
        stranger.settimeout(60)
        answer = b""
        try:
            while more := stranger.recv(1 << 16):
                answer += more
        except ConnectionResetError:
            pass
        assert len(answer) in (0, 76), answer
        stranger.close()


def test_prometheus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's numbers at the port of THESEUS_METRICS_PORT."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    monkeypatch.setenv("THESEUS_METRICS_PORT", str(port))
    job = Cluster(tmp_path / "state", 1)
    try:
        job.ready()
        job.ranks["h0"].append(attribute("signal", 2))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
            text = page.read().decode()
        assert re.search(r"theseus_log_records_total\{[^}]*" + job.job + r"[^}]*\} 1\.0", text)
        assert re.search(r"theseus_agent_quorum\{[^}]*\} 1\.0", text)
        assert len(re.findall(r'theseus_attribute\{attribute="signal"', text)) == 2
    finally:
        job.close()


def test_elements_and_values_as_people_write_them() -> None:
    """INDEX=VALUE names an element; long arrays are shown with their middle left out."""
    assert parse_element(2, "0.5") == (2, 0.5)
    assert parse_element(2, "7=1e3") == (7, 1000.0)
    with pytest.raises(Failure, match="no value"):
        parse_element(0, "fast")
    assert value_of([0.25]) == "0.25"
    assert "88 more" in value_of([1.0] * 100)
