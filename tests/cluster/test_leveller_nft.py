"""Marks on packets of programs that know nothing of them: by nftables, with and without table owners, and iptables."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster.conftest import RATE
from cluster.marking import lacking

from leveller.enforce.table import TABLE
from theseus_py.testbed import Testbed
from theseus_py.testbed.bed import HostProcess

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("nft", "guarded", "iptables")

_ADDRESS = """
import socket, sys
from pyroute2 import IPRoute
with open("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "w") as file:
    file.write("0")
with IPRoute() as route:
    link = route.link_lookup(ifname="eth0")[0]
    route.addr("add", index=link, address=sys.argv[1], prefixlen=64, family=socket.AF_INET6, IFA_FLAGS=2)
"""
# Says its five-tuples, then sends on them: TCP and UDP, IPv4 and IPv6. UDP with the ECN bits of ECT(0).
_SENDER = """
import json, socket, time
from sys import argv
flows = []
for family, address in ((socket.AF_INET, argv[1]), (socket.AF_INET6, argv[2])):
    for kind, protocol in ((socket.SOCK_STREAM, "tcp"), (socket.SOCK_DGRAM, "udp")):
        one = socket.socket(family, kind)
        if protocol == "udp":
            if family == socket.AF_INET:
                one.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 2)
            else:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 2)
        one.connect((address, 9000))
        flows.append((protocol, one))
print(json.dumps([[p, *s.getsockname()[:2], *s.getpeername()[:2]] for p, s in flows]), flush=True)
while True:
    for _, one in flows:
        one.send(bytes(100))
    time.sleep(0.005)
"""
# Says which traffic class (DSCP and ECN) packets have, whenever that changes: "tcp4 0", in decimal.
_RECEIVER = """
import socket, threading
packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
open = [socket.create_server((host, 9000), family=family) for family, host in
        ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"))]
udp = [socket.socket(family, socket.SOCK_DGRAM) for family in (socket.AF_INET, socket.AF_INET6)]
for one, host in zip(udp, ("0.0.0.0", "::")):
    if host == "::":
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    one.bind((host, 9000))
def take(listener):
    connection = listener.accept()[0]
    while connection.recv(65536):
        pass
for each in open:
    threading.Thread(target=take, args=(each,), daemon=True).start()
print("ready", flush=True)
last = {}
while True:
    packet = packets.recv(128)
    if packet[0] >> 4 == 4:
        family, protocol, tos, ports = 4, packet[9], packet[1], packet[20:24]
    elif packet[0] >> 4 == 6:
        family, protocol, tos, ports = 6, packet[6], (packet[0] << 4 | packet[1] >> 4) & 255, packet[40:44]
    else:
        continue
    if protocol in (6, 17) and int.from_bytes(ports[2:], "big") == 9000:
        name = {6: "tcp", 17: "udp"}[protocol] + str(family)
        if last.get(name) != tos:
            last[name] = tos
            print(name, tos, flush=True)
"""
# A table and a chain that are somebody else's, as bytes of what lists them.
_OTHERS = """
import sys
from leveller.enforce.nfnetlink import Message, Nfnetlink, attributes, nested, number, text
netlink = Nfnetlink()
if sys.argv[1] == "make":
    hook = nested(4, number(1, 4), number(2, -150))
    netlink.change([Message(0, 1, 0x400, text(1, "others")),
                    Message(3, 1, 0x400, text(1, "others") + text(3, "out") + hook + text(7, "filter"))])
print(sorted(str(dict(attributes(each.body)))
             for kind in (1, 4) for each in netlink.dump(Message(kind, 1, 0, b"")) if b"others" in each.body))
"""


class Host:
    """Programs on one host of a testbed, and what they print."""

    def __init__(self, bed: Testbed, number: int, folder: Path) -> None:
        self._bed, self._number, self._folder = bed, number, folder

    def start(self, command: Sequence[str]) -> tuple[HostProcess, Callable[[], list[str]]]:
        """Starts a program; returns it, and what asks for its lines so far."""
        file = self._folder / f"{self._number}-{len(list(self._folder.iterdir()))}.log"
        output = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = self._bed.start(self._number, command, environment=environment, stdout=output, stderr=output)
        os.close(output)
        return process, lambda: file.read_text().splitlines()

    def run(self, command: Sequence[str]) -> str:
        """Runs a program to its end, which has to be a good one; returns what it said."""
        process, lines = self.start(command)
        assert process.wait(20) == 0, lines()
        return "\n".join(lines())


def until(true: Callable[[], Any], what: str) -> Any:
    """Waits for something to become true, and returns it."""
    deadline = time.monotonic() + 20
    while not (found := true()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return found


class Traffic:
    """Four live flows from host 0 to host 1, and the traffic class of their packets as they arrive there."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self.folder = folder
        self.near, far = Host(bed, 0, folder), Host(bed, 1, folder)
        for number, host in enumerate((self.near, far)):
            host.run([sys.executable, "-c", _ADDRESS, f"fd77::{number + 1}"])
        _, self._seen = far.start([sys.executable, "-c", _RECEIVER])
        until(self._seen, "the receiver does not start")
        _, said = self.near.start([sys.executable, "-c", _SENDER, bed.shape.address(1, 0), "fd77::2"])
        self.flows = json.loads(until(said, "the sender does not start")[0])
        self.file = folder / "marks.json"
        self.markers: list[HostProcess] = []

    def ask(self, dscp: int | None) -> None:
        """What markers are to do from now on: all flows get a mark, or none."""
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps([[flow, dscp] for flow in self.flows if dscp is not None]))
        new.rename(self.file)

    def mark(self, kind: str) -> tuple[HostProcess, Callable[[], list[str]]]:
        """Starts a marker."""
        started = self.near.start([sys.executable, str(ROOT / "tests/cluster/marking.py"), kind, str(self.file)])
        self.markers.append(started[0])
        return started

    def arrives(self, dscp: int) -> None:
        """Waits until all flows have a mark at the far end. ECN stays as it is sent: UDP has it, TCP has not."""
        wanted = {"tcp4": dscp << 2, "tcp6": dscp << 2, "udp4": dscp << 2 | 2, "udp6": dscp << 2 | 2}

        def latest() -> dict[str, int]:
            return {name: int(tos) for name, tos in (line.split() for line in self._seen()[1:])}

        until(lambda: latest() == wanted, f"{dscp} does not arrive")


@pytest.fixture(scope="module")
def _everlasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traffic]:
    with Testbed(hosts=2, nics=1, rate=RATE) as bed:
        yield Traffic(bed, tmp_path_factory.mktemp("traffic"))


@pytest.fixture
def traffic(_everlasting: Traffic) -> Iterator[Traffic]:
    """Traffic without marks, which every test leaves so."""
    yield _everlasting
    while _everlasting.markers:
        _everlasting.markers.pop().send_signal(signal.SIGKILL)
    _everlasting.arrives(0)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each way to mark that works here."""
    name: str = request.param
    if (reason := lacking("iptables" if name == "iptables" else "nft")) is not None:
        pytest.skip(reason)
    return name


def test_live_flows_change_their_mark(traffic: Traffic, kind: str) -> None:
    """From the next packet on, TCP and UDP, IPv4 and IPv6, ECN as it was; and what was read back says so."""
    traffic.ask(40)
    _, said = traffic.mark(kind)
    traffic.arrives(40)
    traffic.ask(8)
    traffic.arrives(8)
    traffic.ask(None)
    traffic.arrives(0)
    told = until(lambda: len(said()) >= 3 and said(), "the marker does not say what holds")
    assert told == ["[[40, 40], [40, 40], [40, 40], [40, 40]]", "[[8, 8], [8, 8], [8, 8], [8, 8]]", "[]"]


def test_nothing_outlives_a_marker(traffic: Traffic, kind: str) -> None:
    """Kill -9 takes its marks away at once; as long as it lives, no second one begins; afterwards one does."""
    traffic.ask(40)
    first, _ = traffic.mark(kind)
    traffic.arrives(40)
    second, why = traffic.mark(kind)
    assert second.wait(20) == 1
    assert "another agent marks flows in this network namespace" in why()[0]
    first.send_signal(signal.SIGKILL)
    traffic.arrives(0)
    traffic.ask(8)
    traffic.mark(kind)
    traffic.arrives(8)


@pytest.mark.parametrize("kind", ["guarded", "iptables"], indirect=True)
def test_the_next_removes_what_marker_and_guard_left(traffic: Traffic, kind: str) -> None:
    """Both were killed, as a service manager does."""
    traffic.ask(40)
    first, _ = traffic.mark(kind)
    traffic.arrives(40)
    kill = "import os\nfor p in filter(str.isdigit, os.listdir('/proc')):\n"
    kill += (
        "  if b'leveller.enforce.guard' in open(f'/proc/{p}/cmdline', 'rb').read().split(b'\\0'): os.kill(int(p), 9)"
    )
    # Only processes of this testbed are in its /proc.
    traffic.near.run([sys.executable, "-c", kill])
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    traffic.ask(None)
    _, said = traffic.mark(kind)
    until(said, "the next does not begin")
    traffic.arrives(0)


def test_what_is_others_stays(traffic: Traffic, kind: str) -> None:
    """Their tables and chains, before, during and after."""
    others = [sys.executable, "-c", _OTHERS]
    before = traffic.near.run([*others, "make"])
    assert "others" in before
    traffic.ask(40)
    marker, said = traffic.mark(kind)
    until(said, "the marker does not begin")
    assert traffic.near.run([*others, "look"]) == before
    marker.send_signal(signal.SIGKILL)
    traffic.arrives(0)
    assert traffic.near.run([*others, "look"]) == before


@pytest.mark.skipif(shutil.which("nft") is None, reason="the program nft is not installed")
@pytest.mark.parametrize("kind", ["nft", "guarded"], indirect=True)
def test_nft_lists_the_table_as_it_is_meant(traffic: Traffic, kind: str) -> None:
    """In the words of table.py."""
    traffic.ask(40)
    _, said = traffic.mark(kind)
    until(said, "the marker does not begin")
    listed = traffic.near.run([shutil.which("nft") or "", "-s", "list", "table", "inet", TABLE])
    assert ("flags owner" in listed) == (kind == "nft")
    for line in (
        "type inet_proto . ipv4_addr . inet_service . ipv4_addr . inet_service : verdict",
        "type inet_proto . ipv6_addr . inet_service . ipv6_addr . inet_service : verdict",
        "type filter hook postrouting priority mangle; policy accept;",
        "ip dscp set cs5",
        "ip6 dscp set cs5",
    ):
        assert line in listed
    assert listed.count("jump ip_40") == listed.count("jump ip6_40") == 2
    for family in ("ip", "ip6"):
        assert f"meta l4proto . {family} saddr . th sport . {family} daddr . th dport vmap @{family}_flows" in listed


@pytest.mark.parametrize("kind", ["guarded"], indirect=True)
def test_what_others_removed_is_made_anew(traffic: Traffic, kind: str) -> None:
    """By the next change; that of an owner nobody can remove."""
    traffic.ask(40)
    traffic.mark(kind)
    traffic.arrives(40)
    traffic.near.run([sys.executable, "-c", "from leveller.enforce.nft import remove_leftover; remove_leftover()"])
    traffic.arrives(0)
    traffic.ask(8)
    traffic.arrives(8)


_MEASURE = """
import sys
from cluster.marking import enforcer
from leveller.enforce.measure import seconds_of_changes
made = enforcer(sys.argv[1])
print(" ".join(str(each) for each in seconds_of_changes(made, changed=100, marked=1000, times=9)))
made.close()
"""


def test_what_a_change_takes(bed: Testbed, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Printed, not judged: 100 of 1000 flows, read back."""
    command = f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})" + _MEASURE
    said = Host(bed, 0, tmp_path).run([sys.executable, "-c", command, kind]).split()
    assert len(said) == 9
    with capsys.disabled():
        print(f" [{kind}: 100 of 1000 marks in {1e3 * statistics.median(map(float, said)):.1f} ms] ", end="")
