"""Which processes and connections are a job's, and what a jobs file and a topology file may say."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveller.agent.config import read_config
from leveller.core.model import FiveTuple
from leveller.jobs.processes import JobProcesses, Rule
from leveller.jobs.sockets import Connection, connections, connections_of, parse_dump, socket_inodes
from leveller.probe import TopologyFile


class Program(subprocess.Popen[str]):
    """A child of this process, and the first line that it said."""

    first: str | None = None


@contextmanager
def program(code: str, **environment: str) -> Iterator[Program]:
    """Runs a program, from its first line on."""
    everything = {**os.environ, **environment}
    command = [sys.executable, "-c", code]
    with Program(command, env=everything, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.first = process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def answered(process: Program, line: str) -> str:
    """Says a line to a program, and returns what it says then."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline()


def pids(finder: JobProcesses, job: str) -> set[int]:
    return {each.pid for each in finder.scan().get(job, [])}


def proc_of(folder: Path, started: dict[int, int]) -> Path:
    """A /proc of these processes, with when they started."""
    for pid, ticks in started.items():
        (folder / str(pid) / "ns").mkdir(parents=True, exist_ok=True)
        (folder / str(pid) / "stat").write_text(f"{pid} (a ) b) S 0 {'0 ' * 17}{ticks} {'0 ' * 30}\n")
        if not (folder / str(pid) / "ns/net").is_symlink():
            (folder / str(pid) / "ns/net").symlink_to("net:[1]")
    (folder / "self/ns").mkdir(parents=True, exist_ok=True)
    if not (folder / "self/ns/net").is_symlink():
        (folder / "self/ns/net").symlink_to("net:[1]")
    return folder


class TestProcesses:
    """Real children of this process."""

    def test_a_process_says_whose_it_is(self) -> None:
        """By LEVELLER_JOB; its children are the same job's, whatever they say not."""
        code = "import subprocess, sys; print(1, flush=True); subprocess.run([sys.executable, '-c', 'input()'])"
        with subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "LEVELLER_JOB": "llama"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as parent:
            assert parent.stdout is not None
            parent.stdout.readline()
            finder = JobProcesses()
            while len(found := finder.scan().get("llama", [])) < 2:
                pass
            assert parent.pid in {each.pid for each in found}
            parent.communicate(b"\n")
        assert "llama" not in finder.scan()

    def test_a_rule_finds_processes_that_say_nothing(self) -> None:
        """By a pattern of the command line, or by number."""
        command = [sys.executable, "-c", "input() # marker-5318008"]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            rules = [Rule("bert", command="marker-53180+8")]
            while not (found := JobProcesses(rules).scan().get("bert", [])):
                pass
            assert [each.pid for each in found] == [process.pid]
            assert "gpt" in JobProcesses([Rule("gpt", pid=process.pid)]).scan()
            assert "gpt" not in JobProcesses([Rule("gpt", pid=process.pid, command="other")]).scan()
            process.communicate(b"\n")

    def test_what_it_executes_decides(self) -> None:
        """A process is found while it still is a copy of its parent; then it executes a program of another job."""
        code = "import os, sys; print(1, flush=True); input(); os.execve(sys.executable, [sys.executable, '-c', "
        code += "'print(2, flush=True); input()'], {**os.environ, 'LEVELLER_JOB': 'gpt'})"
        with program(code, LEVELLER_JOB="llama") as process:
            finder = JobProcesses()
            assert process.pid in pids(finder, "llama")
            answered(process, "go")
            assert process.pid in pids(finder, "gpt")
            assert process.pid not in pids(finder, "llama")

    def test_orphans_stay_with_their_job(self) -> None:
        """Whose parent, a launcher that a rule found, has ended."""
        code = "import os, sys, time\nif os.fork():\n  print(1, flush=True); input()\nelse:\n  time.sleep(60)"
        with program(code) as parent:
            finder = JobProcesses([Rule("bert", pid=parent.pid)])
            (child,) = pids(finder, "bert") - {parent.pid}
            parent.kill()
            parent.wait()
            try:
                assert pids(finder, "bert") == {child}
            finally:
                os.kill(child, signal.SIGKILL)

    def test_a_number_is_no_later_process(self, tmp_path: Path) -> None:
        """A rule that names one means the process that had it first."""
        finder = JobProcesses([Rule("a", pid=7)], proc_of(tmp_path, {7: 100}))
        assert pids(finder, "a") == {7}
        proc_of(tmp_path, {7: 200})
        assert pids(finder, "a") == set()

    def test_a_cgroup_is_all_of_its_name(self, tmp_path: Path) -> None:
        """And what is below it."""
        folder = proc_of(tmp_path, {1: 1, 2: 2, 3: 3})
        for pid, path in ((1, "/jobs/a"), (2, "/jobs/a/worker"), (3, "/jobs/ab")):
            (folder / str(pid) / "cgroup").write_text(f"0::{path}\n")
        assert pids(JobProcesses([Rule("a", cgroup="jobs/a")], folder), "a") == {1, 2}

    def test_a_port_finds_who_uses_it(self) -> None:
        """Who listens there, and who is connected to it, as soon as it is."""
        code = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); "
        with program(code + "input()") as server, program("print(1, flush=True); input()") as other:
            assert server.first is not None
            finder = JobProcesses([Rule("a", port=int(server.first))])
            assert pids(finder, "a") == {server.pid}
            with socket.create_connection(("127.0.0.1", int(server.first))):
                assert pids(finder, "a") >= {server.pid, os.getpid()}
                assert other.pid not in pids(finder, "b")

    def test_another_network_namespace_is_named(self, tmp_path: Path) -> None:
        """Its processes are another agent's; who wonders where a job is can be told."""
        folder = proc_of(tmp_path, {1: 1, 2: 2})
        (folder / "2/ns/net").unlink()
        (folder / "2/ns/net").symlink_to("net:[2]")
        for pid in ("1", "2"):
            (folder / pid / "environ").write_bytes(b"A=1\0LEVELLER_JOB=a\0")
        finder = JobProcesses((), folder)
        for _ in range(2):
            assert pids(finder, "a") == {1}
            assert [each.pid for each in finder.elsewhere["a"]] == [2]

    @pytest.mark.parametrize("rule", [{}, {"command": "("}, {"port": 0}])
    def test_a_rule_has_to_say_something(self, rule: dict[str, str]) -> None:
        """That can be matched."""
        with pytest.raises(ValueError, match="job a: "):
            Rule("a", **rule)  # type: ignore[arg-type]


def diag(family: int, source: str, destination: str, inode: int, state: int = 1) -> bytes:
    """An inet_diag_msg, and a tcp_info of 1000 bytes acknowledged."""
    ends = b"".join(socket.inet_pton(family, each).ljust(16, b"\0") for each in (source, destination))
    head = struct.pack("=BBBB", family, state, 0, 0) + struct.pack("!HH", 5000, 5001) + ends
    info = bytes(120) + struct.pack("=Q", 1000)
    return head + struct.pack("=IQIIIII", 0, 0, 0, 0, 0, 0, inode) + struct.pack("=HH", 4 + len(info), 2) + info


class TestConnections:
    """As the kernel lists them."""

    def test_ours_are_there(self) -> None:
        """Both ends of a connection, with what was acknowledged; inside the host they are no flows of a job."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            server, _ = listener.accept()
            with client, server:
                client.sendall(b"x" * 1000)
                assert server.recv(1000, socket.MSG_WAITALL)
                mine = socket_inodes(os.getpid())
                found = {each.flow: each for each in connections() if each.inode in mine}
                flow = FiveTuple("tcp", *client.getsockname(), *client.getpeername())
                assert {flow, flow.reverse} <= found.keys()
                assert found[flow].sent >= 1000
                assert not any(each.flow == flow for each in connections_of([os.getpid()]))

    def test_inside_a_host_is_no_flow(self) -> None:
        """Between two addresses of this host too: then both ends are listed."""
        inside = FiveTuple("tcp", "10.0.0.1", 1, "10.0.1.1", 2)
        outside = FiveTuple("tcp", "10.0.0.1", 1, "10.0.1.2", 2)
        with socket.socket() as mine:
            inode = os.fstat(mine.fileno()).st_ino
            known = [Connection(inside, inode, 0), Connection(inside.reverse, 0, 0), Connection(outside, inode, 0)]
            assert [each.flow for each in connections_of([os.getpid()], known)] == [outside]

    def test_a_dump_of_the_kernel(self) -> None:
        """IPv4, IPv6, IPv4 over an IPv6 socket; a length that lies and what is cut short are refused."""
        bodies = [
            diag(socket.AF_INET, "10.0.0.1", "10.0.0.2", 7),
            diag(socket.AF_INET6, "fd00::1", "fd00::2", 8),
            diag(socket.AF_INET6, "::ffff:10.0.0.1", "::ffff:10.0.0.2", 9),
            diag(socket.AF_INET, "10.0.0.1", "10.0.0.3", 10, state=6),
        ]
        data = b"".join(struct.pack("=IHHII", 16 + len(body), 20, 2, 1, 0) + body for body in bodies)
        found, last = parse_dump(data)
        assert [(each.flow.source, each.flow.destination, each.inode, each.sent) for each in found] == [
            ("10.0.0.1", "10.0.0.2", 7, 1000),
            ("fd00::1", "fd00::2", 8, 1000),
            ("10.0.0.1", "10.0.0.2", 9, 1000),
        ]
        assert not last
        for end in range(17, len(data)):
            if end % (16 + len(bodies[0])) >= 16:
                with pytest.raises(ValueError, match="shorter"):
                    parse_dump(data[:end])

    @given(st.binary(max_size=300), st.integers(0, 3))
    def test_what_is_no_answer_is_refused(self, data: bytes, kind: int) -> None:
        """Or says nothing: whatever it holds, nothing is read beyond it."""
        message = struct.pack("=IHHII", 16 + len(data), (20, 2, 3, 7)[kind], 0, 0, 0) + data
        for each in (data, message, message[:-1]):
            try:
                parse_dump(each)
            except (ValueError, OSError):
                continue


class TestFiles:
    """What operators write."""

    def read(self, tmp_path: Path, text: str) -> object:
        file = tmp_path / "file.toml"
        file.write_text(text)
        return file

    def test_a_jobs_file(self, tmp_path: Path) -> None:
        """Facts and rules by job."""
        file = self.read(
            tmp_path, '[[job]]\nname = "a"\ncommand = "train"\nweight = 2.0\n[[job]]\nname = "b"\nideal = 3\n'
        )
        config = read_config(file)  # type: ignore[arg-type]
        assert [rule.job for rule in config.rules()] == ["a"]
        assert (config.facts()["a"].weight, config.facts()["b"].ideal) == (2.0, 3.0)

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("[[job]]", "name"),
            ('[[job]]\nname = "a"\nwieght = 2', "wieght"),
            ('[[job]]\nname = "a"\nweight = 0', "weight"),
            ('[[job]]\nname = "a"\nformat = "megatrom"', "unknown log format 'megatrom'"),
            ('[[job]]\nname = "a"\n[[job]]\nname = "a"', "two jobs have one name"),
            ('[[job]]\nname = "a"\ncommand = "("', "no regular expression"),
            ("[[job", "file.toml"),
        ],
    )
    def test_a_wrong_one_is_named(self, tmp_path: Path, text: str, why: str) -> None:
        """With its file."""
        file = self.read(tmp_path, text)
        with pytest.raises(ValueError, match=why) as caught:
            read_config(file)  # type: ignore[arg-type]
        assert str(file) in str(caught.value)

    def test_the_most_particular_path_decides(self, tmp_path: Path) -> None:
        """Of those that hold both addresses."""
        file = self.read(
            tmp_path,
            '[[path]]\nfrom = "10.0.0.0/8"\nto = "10.0.0.0/8"\nlinks = ["core"]\n'
            '[[path]]\nfrom = "10.0.1.0/24"\nto = "10.0.1.0/24"\nlinks = ["leaf"]\n',
        )
        paths = TopologyFile(file)  # type: ignore[arg-type]
        assert paths.path_of(FiveTuple("tcp", "10.0.1.1", 1, "10.0.1.2", 2)) == ("leaf",)
        assert paths.path_of(FiveTuple("tcp", "10.0.1.1", 1, "10.0.2.2", 2)) == ("core",)
        assert paths.path_of(FiveTuple("tcp", "11.0.1.1", 1, "10.0.2.2", 2)) == ()

    @pytest.mark.parametrize("text", ['[[path]]\nfrom = "x"\nto = "10.0.0.0/8"\nlinks = []', "path = 3", "[[path]]"])
    def test_a_wrong_topology_is_named(self, tmp_path: Path, text: str) -> None:
        """With its file."""
        file = self.read(tmp_path, text)
        with pytest.raises(ValueError, match=r"file\.toml"):
            TopologyFile(file)  # type: ignore[arg-type]
