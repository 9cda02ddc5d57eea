"""LEVELLER on virtual clusters: marks that packets carry, and controller and agents around real jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster.marking import lacking

from theseus_py.testbed import Testbed
from theseus_py.testbed.bed import HostProcess

ROOT = Path(__file__).resolve().parents[2]
SECRET = "a secret of the cluster"


@pytest.fixture(autouse=True, scope="module")
def _can_mark() -> None:
    if (reason := lacking("nft")) is not None:
        pytest.skip(reason)


# A job of one process that talks to another host and logs iterations; the other end says which TOS it sees.
_SENDER = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 9000))
step = 0
while True:
    connection.sendall(bytes(20000))
    time.sleep(float(sys.argv[2]))
    print(f"iter {step}: loss 1.0, time 1.00ms, mfu 1.00%", flush=True)
    step += 1
"""
_RECEIVER = """
import socket, struct, sys, threading
packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
listener = socket.create_server(("", 9000))
def take():
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=lambda: [None for _ in iter(lambda: connection.recv(65536), b"")], daemon=True).start()
threading.Thread(target=take, daemon=True).start()
print("ready", flush=True)
last = {}
while True:
    packet = packets.recv(128)
    if packet[9] == 6 and struct.unpack_from("!H", packet, 22)[0] == 9000:
        port, tos = struct.unpack_from("!H", packet, 20)[0], packet[1]
        if last.get(port) != tos:
            last[port] = tos
            print(port, tos >> 2, flush=True)
"""


class Output:
    """A process on a host, and the lines it prints."""

    def __init__(self, bed: Testbed, host: int, command: list[str], folder: Path, **environment: str) -> None:
        self.file = folder / f"{len(list(folder.iterdir()))}.log"
        output = os.open(self.file, os.O_WRONLY | os.O_CREAT, 0o600)
        everything = {**os.environ, "PYTHONPATH": str(ROOT), "LEVELLER_SECRET": SECRET, **environment}
        self.process: HostProcess = bed.start(host, command, environment=everything, stdout=output, stderr=output)
        os.close(output)

    def lines(self) -> list[str]:
        return self.file.read_text().splitlines()


def until(true: Callable[[], Any], what: str) -> Any:
    """Waits for something to become true, and returns it."""
    deadline = time.monotonic() + 30
    while not (found := true()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


def code(text: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", text, *arguments]


def leveller(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "leveller", *arguments]


class TestMarks:
    """Of live connections of programs that know nothing of them."""

    def test_packets_carry_them_until_the_marker_is_killed(self, bed: Testbed, tmp_path: Path) -> None:
        """Kill -9 leaves nothing; a second marker is refused as long as the first one lives."""
        receiver = Output(bed, 1, code(_RECEIVER), tmp_path)
        until(lambda: receiver.lines(), "the receiver does not start")
        Output(bed, 0, code(_SENDER, bed.shape.address(1, 0), "0.01"), tmp_path)
        port = until(lambda: [line for line in receiver.lines() if line.endswith(" 0")], "no packet")[0].split()[0]
        flow = [bed.shape.address(0, 0), port, bed.shape.address(1, 0), "9000"]
        marker = Output(bed, 0, [sys.executable, str(ROOT / "tests/cluster/marker.py"), *flow, "40"], tmp_path)
        until(lambda: f"{port} 40" in receiver.lines(), "no packet carries the mark")
        assert marker.lines() == ["40"]
        second = Output(bed, 0, [sys.executable, str(ROOT / "tests/cluster/marker.py"), *flow, "8"], tmp_path)
        assert "another agent marks flows" in until(lambda: second.lines(), "the second says nothing")[0]
        marker.process.send_signal(signal.SIGKILL)
        until(lambda: receiver.lines()[-1] == f"{port} 0", "the mark outlives its marker")
        third = Output(bed, 0, [sys.executable, str(ROOT / "tests/cluster/marker.py"), *flow, "8"], tmp_path)
        until(lambda: f"{port} 8" in receiver.lines(), "the third does not take over")
        assert third.lines() == ["8"]


@contextmanager
def running(bed: Testbed, tmp_path: Path) -> Iterator[tuple[str, list[Output]]]:
    """Two jobs, one slow and one fast, that share a trunk; agents on their hosts."""
    receivers = [Output(bed, host, code(_RECEIVER), tmp_path) for host in (1, 3)]
    for receiver in receivers:
        until(receiver.lines, "a receiver does not start")
    for host, name, pause in ((0, "slow", "0.2"), (2, "fast", "0.05")):
        to = bed.shape.address(host + 1, 0)
        Output(bed, host, code(_SENDER, to, pause), tmp_path, LEVELLER_JOB=name)
    address = bed.shape.management_address(0) + ":7400"
    jobs = tmp_path / "jobs.toml"
    jobs.write_text('[[job]]\nname = "slow"\nideal = 0.1\n[[job]]\nname = "fast"\nideal = 0.05\n')
    for host in (0, 2):
        arguments = ["agent", "--controller", address, "--host", f"h{host}", "--jobs", str(jobs), "--scan", "0.1"]
        Output(bed, host, leveller(*arguments, "--fallback", "4"), tmp_path)
    yield address, receivers


def last_mark(receiver: Output) -> str:
    return receiver.lines()[-1].split()[-1]


def status(bed: Testbed, tmp_path: Path, address: str, *more: str) -> dict[str, Any]:
    asked = Output(bed, 0, leveller(*(more or ("status",)), "--json", "--controller", address), tmp_path)
    assert asked.process.wait(20) == 0, asked.lines()
    found: dict[str, Any] = json.loads(asked.file.read_text())
    return found


@pytest.fixture
def leaf_spine() -> Iterator[Testbed]:
    with Testbed(4, 1, "1gbit", priorities=True, leaves=2, spines=1, trunk="100mbit") as made:
        yield made


class TestController:
    """The whole of it, as an operator starts it."""

    def test_levels_follow_progress_and_outlive_the_controller(self, leaf_spine: Testbed, tmp_path: Path) -> None:
        """Whoever is behind is marked higher, over probed paths; without a controller that stays, then falls back."""
        bed = leaf_spine
        with running(bed, tmp_path) as (address, (slow, fast)):
            arguments = ["controller", "--levels", "2", "--period", "0.2", "--ask-every", "0.1", "--no-profile"]
            controller = Output(bed, 0, leveller(*arguments), tmp_path)
            until(controller.lines, "the controller does not start")

            def behind() -> bool:
                found = status(bed, tmp_path, address)
                rates = {job["job"]: job["rate"] for job in found["jobs"]}
                assert all(host["refused"] == 0 for host in found["hosts"])
                return None not in rates.values() and rates["slow"] < 0.6 < rates["fast"]

            until(behind, "the rates are not those of the jobs")
            until(lambda: (last_mark(slow), last_mark(fast)) == ("40", "0"), "the slow job is not marked higher")

            def probed() -> bool:
                told = status(bed, tmp_path, address, "explain", "slow")
                return any(flow["meets"] == {"fast": 0} and len(flow["path"]) >= 3 for flow in told["flows"])

            until(probed, "the path is not found")
            controller.process.send_signal(signal.SIGKILL)
            time.sleep(1)
            assert last_mark(slow) == "40"
            until(lambda: last_mark(slow) == "0", "marks do not fall back")
            Output(bed, 0, leveller(*arguments), tmp_path)
            until(lambda: last_mark(slow) == "40", "a new controller does not learn all anew")

    def test_a_new_job_is_profiled(self, leaf_spine: Testbed, tmp_path: Path) -> None:
        """Its ideal time is measured where nobody gave one."""
        bed = leaf_spine
        receiver = Output(bed, 1, code(_RECEIVER), tmp_path)
        until(receiver.lines, "the receiver does not start")
        Output(bed, 0, code(_SENDER, bed.shape.address(1, 0), "0.1"), tmp_path, LEVELLER_JOB="new")
        address = bed.shape.management_address(0) + ":7400"
        Output(bed, 0, leveller("controller", "--period", "0.1", "--ask-every", "0.1"), tmp_path)
        Output(bed, 0, leveller("agent", "--controller", address, "--scan", "0.1"), tmp_path)
        until(receiver.lines, "nothing arrives")
        until(lambda: last_mark(receiver) == "40", "it is not alone at the top")
        ideal = until(
            lambda: [job["ideal"] for job in status(bed, tmp_path, address)["jobs"] if job["ideal"]], "no ideal time"
        )
        assert 0.09 < ideal[0] < 0.2


def test_an_agent_leaves_nothing(bed: Testbed, tmp_path: Path) -> None:
    """SIGTERM takes its table away."""
    agent = Output(bed, 0, leveller("agent", "--controller", "127.0.0.1:1"), tmp_path)
    asked = "print(Nfnetlink().get(ask()) is not None)"
    check = code(f"from leveller.enforce.nfnetlink import Nfnetlink; from leveller.enforce.table import ask; {asked}")

    def there_is_a_table() -> bool:
        asked = Output(bed, 0, check, tmp_path)
        assert asked.process.wait(20) == 0, asked.lines()
        return asked.lines() == ["True"]

    until(there_is_a_table, "there is no table")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(10) == 0, agent.lines()
    assert not there_is_a_table()


def test_commands_say_what_is_wrong(tmp_path: Path) -> None:
    """In one sentence, without a trace."""
    for arguments, why in (
        (["status", "--controller", "127.0.0.1:1"], "no answer from a controller at 127.0.0.1:1"),
        (["agent", "--controller", "127.0.0.1:1", "--jobs", str(tmp_path / "none")], "No such file"),
        (["controller", "--policy", "best"], "unknown policy 'best': choose lowest-rate-first, crux, fair"),
        (["controller", "--levels", "9"], "less than or equal to 6"),
    ):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "LEVELLER_SECRET": SECRET}
        ended = subprocess.run(leveller(*arguments), env=environment, capture_output=True, text=True, timeout=60)
        assert ended.returncode in (1, 2)
        assert why in ended.stderr, ended.stderr
        assert "Traceback" not in ended.stderr
