"""Probes are what routers forward like the flow and its ends ignore; only answers to them count; few are sent."""

from __future__ import annotations

import ipaddress
import itertools
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveller.core.model import FiveTuple
from leveller.probe.packets import Answer, build, checksum, read_answer_v4, read_answer_v6
from leveller.probe.search import Limits, Search, links

ROOT = Path(__file__).resolve().parents[3]
FLOW = FiveTuple("tcp", "10.0.0.2", 4000, "10.0.1.2", 5000)
PORTS = st.integers(0, 65535)
V4 = st.ip_addresses(v=4).map(str)
V6 = st.ip_addresses(v=6).map(str)
FLOWS_V4 = st.builds(FiveTuple, st.just("tcp"), V4, PORTS, V4, PORTS)
FLOWS_V6 = st.builds(FiveTuple, st.just("tcp"), V6, PORTS, V6, PORTS)
HOPS = st.integers(1, 255)
NONCES = st.integers(0, 2**32 - 1)


def complaint(packet: bytes, router: str, quoted: int = 28) -> bytes:
    """What a router sends that saw `packet` die: RFC 792, with the first `quoted` bytes."""
    message = struct.pack("!BBHI", 11, 0, 0, 0) + packet[:quoted]
    message = message[:2] + struct.pack("!H", checksum(message)) + message[4:]
    ends = ipaddress.ip_address(router).packed + packet[12:16]
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(message), 7, 0, 64, 1, 0) + ends + message


@settings(deadline=None)
@given(FLOWS_V4, HOPS, NONCES, st.integers(28, 40))
def test_the_quoted_probe_is_known_again(flow: FiveTuple, hops: int, nonce: int, quoted: int) -> None:
    packet = build(flow, hops, nonce)
    assert checksum(packet[:20]) == 0 and packet[8] == hops and packet[9] == 6
    assert read_answer_v4(complaint(packet, "192.0.2.1", quoted)) == Answer("192.0.2.1", flow, nonce)


@settings(deadline=None)
@given(FLOWS_V6, HOPS, NONCES)
def test_so_is_one_over_ipv6(flow: FiveTuple, hops: int, nonce: int) -> None:
    packet = build(flow, hops, nonce)
    assert packet[7] == hops
    answer = read_answer_v6(struct.pack("!BBHI", 3, 0, 0, 0) + packet, "fe80::1%eth0")
    assert answer == Answer("fe80::1", flow, nonce)


@settings(deadline=None)
@given(st.one_of(FLOWS_V4, FLOWS_V6), HOPS, NONCES)
def test_no_connection_takes_a_probe_for_its_own(flow: FiveTuple, hops: int, nonce: int) -> None:
    segment = build(flow, hops, nonce)[-20:]
    addresses = [ipaddress.ip_address(each).packed for each in (flow.source, flow.destination)]
    assert checksum(b"".join(addresses) + struct.pack("!II", 20, 6) + segment) != 0


@settings(deadline=None)
@given(st.binary(max_size=120))
def test_noise_is_no_answer(noise: bytes) -> None:
    assert read_answer_v4(noise) is None
    read_answer_v6(noise, "fe80::1")


@settings(deadline=None)
@given(st.integers(0, 55))
def test_a_cut_answer_is_none(length: int) -> None:
    assert read_answer_v4(complaint(build(FLOW, 2, 77), "192.0.2.1")[:length]) is None


@settings(deadline=None)
@given(st.integers(20, 55), st.integers(0, 7))
def test_a_broken_answer_is_none(byte: int, bit: int) -> None:
    packet = bytearray(complaint(build(FLOW, 2, 77), "192.0.2.1"))
    packet[byte] ^= 1 << bit
    assert read_answer_v4(bytes(packet)) is None


def test_another_complaint_is_none() -> None:
    """Unreachable is not "time exceeded", even where it quotes the probe."""
    packet = bytearray(complaint(build(FLOW, 2, 77), "192.0.2.1"))
    packet[20] = 3
    packet[22:24] = b"\0\0"
    packet[22:24] = struct.pack("!H", checksum(bytes(packet[20:])))
    assert read_answer_v4(bytes(packet)) is None


@pytest.mark.parametrize(
    "flow, said",
    [
        (FLOW._replace(protocol="udp"), "only TCP"),
        (FLOW._replace(source="::1"), "two families"),
        (FLOW._replace(source_port=70000), "port"),
    ],
)
def test_what_cannot_be_probed_is_refused(flow: FiveTuple, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build(flow, 2, 77)


class Network:
    """Routers of one flow by hops; says what was asked and drives a Search through time."""

    def __init__(self, routers: dict[int, str], limits: Limits) -> None:
        self.routers = routers
        self.search = Search(itertools.count(1).__next__, limits)
        self.now = 0.0
        self.sent: list[float] = []

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now <= end:
            for probe in self.search.due(self.now):
                self.sent.append(self.now)
                if (router := self.routers.get(probe.hops)) is not None:
                    assert self.search.took(Answer(router, probe.flow, probe.nonce), self.now)
            wait = self.search.wait(self.now)
            if wait is None:
                break
            self.now += max(wait, 1e-6)
        self.now = end


LIMITS = Limits(again=1000.0)
ROUTERS = st.dictionaries(st.integers(1, 10), st.sampled_from(["192.0.2.1", "192.0.2.2", "192.0.2.3"]))


@settings(deadline=None)
@given(ROUTERS, st.integers(1, 3))
def test_a_path_reaches_as_far_as_answers_without_a_longer_gap(routers: dict[int, str], gap: int) -> None:
    network = Network(routers, replace(LIMITS, gap=gap))
    network.search.want(FLOW, 0.0)
    network.run(60.0)
    seen: dict[int, str] = {}
    for hops in sorted(routers):
        if hops - max(seen, default=0) > gap:
            break
        seen[hops] = routers[hops]
    assert network.search.path_of(FLOW) == links(FLOW, seen)
    assert network.search.rounds_of(FLOW) == 1


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.integers(5, 200), st.integers(1, 20))
def test_probes_keep_to_their_rate(flows: int, rate: int, burst: int) -> None:
    network = Network({1: "192.0.2.1", 2: "192.0.2.2"}, replace(LIMITS, rate=rate, burst=burst))
    wanted = [FLOW._replace(source_port=4000 + i) for i in range(flows)]
    for flow in wanted:
        network.search.want(flow, 0.0)
    network.run(120.0)
    for i, start in enumerate(network.sent):
        later = network.sent[i + burst + rate :]
        assert not later or later[0] - start > 1 - 1e-3
    assert all(network.search.path_of(flow) for flow in wanted)


def test_only_what_was_asked_is_believed() -> None:
    search = Search(itertools.count(1).__next__, LIMITS)
    search.want(FLOW, 0.0)
    asked = search.due(0.0)
    assert asked
    right = Answer("192.0.2.1", FLOW, asked[0].nonce)
    assert not search.took(replace(right, nonce=999), 0.0)
    assert not search.took(replace(right, flow=FLOW.reverse), 0.0)
    assert search.took(right, 0.0)
    assert not search.took(replace(right, router="192.0.2.66"), 0.0), "a second answer to one probe"


def test_the_old_path_stays_until_the_new_one_is_known() -> None:
    network = Network({1: "192.0.2.1", 2: "192.0.2.2", 3: "192.0.2.3"}, LIMITS)
    network.search.want(FLOW, 0.0)
    network.run(10.0)
    old = network.search.path_of(FLOW)
    network.routers[2] = "192.0.2.4"
    network.search.again(FLOW, network.now)
    assert network.search.path_of(FLOW) == old
    network.run(10.0)
    assert network.search.path_of(FLOW) == ("10.0.0.2>", "192.0.2.4", "192.0.2.3", "10.0.1.2")


def test_paths_are_probed_again_as_long_as_somebody_asks() -> None:
    network = Network({1: "192.0.2.1", 2: "192.0.2.2"}, Limits(again=10.0, keep=100.0))
    network.search.want(FLOW, 0.0)
    network.run(50.0)
    assert (network.search.rounds_of(FLOW) or 0) >= 4
    network.routers[2] = "192.0.2.4"
    network.run(30.0)
    assert "192.0.2.4" in network.search.path_of(FLOW)
    network.run(100.0)
    assert network.search.rounds_of(FLOW) is None


def test_a_router_that_answers_less_often_keeps_its_place_while_the_others_are_the_same() -> None:
    network = Network({1: "192.0.2.1", 2: "192.0.2.2", 3: "192.0.2.3"}, LIMITS)
    network.search.want(FLOW, 0.0)
    network.run(10.0)
    full = network.search.path_of(FLOW)
    del network.routers[2]
    network.search.again(FLOW, network.now)
    network.run(10.0)
    assert network.search.path_of(FLOW) == full
    network.routers[3] = "192.0.2.9"
    network.search.again(FLOW, network.now)
    network.run(10.0)
    assert network.search.path_of(FLOW) == ("10.0.0.2>", "192.0.2.1>?", "192.0.2.9", "10.0.1.2")


def test_flows_over_one_rack_router_do_not_share_their_first_link() -> None:
    other = FLOW._replace(source="10.0.0.3")
    routers = {1: "10.0.0.1", 2: "10.1.0.2"}
    assert set(links(FLOW, routers)) & set(links(other, routers)) == {"10.1.0.2", "10.0.1.2"}


def test_addresses_in_other_clothes_are_the_same_flow() -> None:
    network = Network({1: "192.0.2.1"}, LIMITS)
    clothed = FLOW._replace(source="::ffff:10.0.0.2", destination="::ffff:10.0.1.2")
    network.search.want(clothed, 0.0)
    network.run(10.0)
    assert network.search.path_of(FLOW) == network.search.path_of(clothed) == ("10.0.0.2>", "10.0.1.2")


def test_the_flow_that_was_asked_for_longest_ago_makes_room() -> None:
    search = Search(itertools.count(1).__next__, Limits(flows=2))
    flows = [FLOW._replace(source_port=4000 + i) for i in range(3)]
    for flow in (flows[0], flows[1], flows[0], flows[2]):
        search.want(flow, 0.0)
    assert [search.rounds_of(flow) for flow in flows] == [0, None, 0]


def test_without_the_right_to_probe_it_says_so_and_knows_no_path() -> None:
    """In a process that gave up root, if it had it."""
    program = (
        "import os\n"
        "from leveller.core.model import FiveTuple\n"
        "from leveller.probe import ProbedPaths\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "paths = ProbedPaths()\n"
        "print(paths.refused, paths.path_of(FiveTuple('tcp', '10.0.0.2', 1, '10.0.1.2', 2)))\n"
        "paths.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert "CAP_NET_RAW" in done.stdout and done.stdout.endswith("()\n"), done.stderr
