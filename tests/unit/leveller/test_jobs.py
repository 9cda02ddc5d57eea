"""Which processes and connections are a job's, and what a jobs file and a topology file may say."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveller.agent.config import read_config
from leveller.core.model import FiveTuple
from leveller.enforce.nft import element, ruleset
from leveller.jobs.processes import JobProcesses, Rule
from leveller.jobs.sockets import connections, connections_of, parse_dump, socket_inodes
from leveller.probe import TopologyFile


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

    @pytest.mark.parametrize("rule", [{}, {"command": "("}])
    def test_a_rule_has_to_say_something(self, rule: dict[str, str]) -> None:
        """That can be matched."""
        with pytest.raises(ValueError, match="job a: "):
            Rule("a", **rule)  # type: ignore[arg-type]


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

    @given(st.binary(max_size=300), st.integers(0, 3))
    def test_what_is_no_answer_is_refused(self, data: bytes, kind: int) -> None:
        """Or says nothing: whatever it holds, nothing is read beyond it."""
        message = struct.pack("=IHHII", 16 + len(data), (20, 2, 3, 7)[kind], 0, 0, 0) + data
        for each in (data, message, message[:-1]):
            try:
                parse_dump(each)
            except (ValueError, OSError):
                continue


class TestRules:
    """Text for nftables."""

    def test_the_table_is_ours_alone(self) -> None:
        """It has an owner, and a chain for each mark and family."""
        text = ruleset([8, 48])
        assert "flags owner" in text
        assert "chain ip_8 { ip dscp set 8; }" in text
        assert "chain ip6_48 { ip6 dscp set 48; }" in text
        assert text.count("vmap") == 4

    def test_flows_have_their_place(self) -> None:
        """By protocol and family."""
        assert element(FiveTuple("tcp", "10.0.0.1", 1, "10.0.0.2", 2)) == ("tcp_ipv4", "10.0.0.1 . 1 . 10.0.0.2 . 2")
        assert element(FiveTuple("udp", "fd00::1", 1, "fd00:0::2", 2)) == ("udp_ipv6", "fd00::1 . 1 . fd00::2 . 2")

    @pytest.mark.parametrize(
        "flow",
        [
            FiveTuple("tcp", "10.0.0.1; flush ruleset", 1, "10.0.0.2", 2),
            FiveTuple("tcp", "10.0.0.1", 1, "fd00::1", 2),
            FiveTuple("icmp", "10.0.0.1", 1, "10.0.0.2", 2),
            FiveTuple("tcp", "10.0.0.1", 0, "10.0.0.2", 2),
            FiveTuple("tcp", "10.0.0.1", 1, "10.0.0.2", 70000),
        ],
    )
    def test_nothing_else_becomes_a_command(self, flow: FiveTuple) -> None:
        """Addresses are addresses, ports are ports."""
        with pytest.raises(ValueError, match=r".+"):
            element(flow)


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
