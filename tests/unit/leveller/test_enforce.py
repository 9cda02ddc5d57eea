"""What is said to the kernel to mark flows, and what it answers."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

import leveller.enforce as enforce
from leveller.core.model import FiveTuple
from leveller.enforce import Effective, IptablesError, NftError, best_enforcer
from leveller.enforce.effective import compared, sorted_out
from leveller.enforce.iptables import chain, marks_in
from leveller.enforce.nfnetlink import Message, attributes, nested, number, parse, text, transaction
from leveller.enforce.table import FAMILIES, Family, add, delete, make, place_of
from leveller.enforce.table import marks_in as marks_of

_PORTS = st.integers(1, 65535)
_ADDRESSES = st.one_of(st.tuples(st.ip_addresses(v=4), st.ip_addresses(v=4)), st.tuples(*[st.ip_addresses(v=6)] * 2))
FLOWS = st.builds(
    lambda protocol, ends, source, destination: FiveTuple(protocol, str(ends[0]), source, str(ends[1]), destination),
    st.sampled_from(("tcp", "udp")),
    _ADDRESSES,
    _PORTS,
    _PORTS,
)
MARKS = st.dictionaries(FLOWS, st.integers(0, 63), max_size=20)
V4 = FiveTuple("tcp", "10.0.0.1", 1, "10.0.0.2", 0x1234)
V6 = FiveTuple("udp", "fd00::1", 1, "fd00:0::2", 2)


class TestTable:
    """The messages that make and change our table; what nft makes of them is asked in tests/cluster."""

    def test_a_flow_has_one_place(self) -> None:
        """Its key, by bytes: protocol, address, port, address, port, each padded to four."""
        family, key = place_of(V4)
        assert (family.name, key.hex()) == ("ip", "060000000a000001000100000a00000212340000")
        family, key = place_of(V6)
        assert (family.name, key[:4].hex(), len(key)) == ("ip6", "11000000", 44)

    @given(MARKS)
    def test_what_is_added_is_read_back(self, marks: dict[FiveTuple, int]) -> None:
        """The kernel lists elements as they are added."""
        listed = dict(mark for message in add(marks) for mark in marks_of(message))
        assert listed == {place_of(flow)[1]: dscp for flow, dscp in marks.items()}

    @given(st.sets(FLOWS, max_size=20))
    def test_what_is_deleted_is_named_by_its_key_alone(self, flows: set[FiveTuple]) -> None:
        """So that the mark that it had need not be known."""
        assert not [mark for message in delete(flows) for mark in marks_of(message)]
        assert b"".join(each.body for each in delete(flows)).count(b"_flows\0") == len(
            {place_of(flow)[0] for flow in flows}
        )

    def test_many_are_split(self) -> None:
        """No attribute is longer than its length can say."""
        flows = {V4._replace(source_port=port): 8 for port in range(1, 3001)}
        messages = list(add(flows))
        assert len(messages) == 15
        assert sum(len(list(marks_of(each))) for each in messages) == 3000

    @given(st.binary(min_size=2, max_size=2), st.integers(0, 63), st.sampled_from(FAMILIES))
    def test_only_the_dscp_changes(self, head: bytes, dscp: int, family: Family) -> None:
        """Version, ECN and whatever else is in the first two bytes of a header stay."""
        now = int.from_bytes(head, "big") & int.from_bytes(family.keep, "big") ^ int.from_bytes(
            family.bits(dscp), "big"
        )
        before = int.from_bytes(head, "big")
        shift = 2 if family.name == "ip" else 6  # RFC 791, RFC 8200
        assert now >> shift & 63 == dscp
        assert (now ^ before) & ~(63 << shift) == 0

    def test_it_is_ours_alone(self) -> None:
        """Its first message makes the table, and fails where there is one; with an owner or without."""
        for owner, flags in ((True, 2), (False, None)):
            table, *rest = make([8, 48], owner)
            assert table.flags & 0x200
            told = dict(attributes(table.body))
            assert told[1] == b"leveller\0"
            assert told.get(2) == (None if flags is None else struct.pack("!I", flags))
            assert all(dict(attributes(each.body))[1] == b"leveller\0" for each in rest)
            chains = {dict(attributes(each.body))[3] for each in rest if each.kind == 3}
            assert chains == {b"outgoing\0", b"ip_8\0", b"ip_48\0", b"ip6_8\0", b"ip6_48\0"}

    @pytest.mark.parametrize(
        "flow",
        [
            V4._replace(source="10.0.0.1; flush ruleset"),
            V4._replace(destination="fd00::1"),
            V6._replace(source="fe80::1%eth0\n-F"),
            V4._replace(protocol="icmp"),
            V4._replace(source_port=0),
            V4._replace(destination_port=70000),
        ],
    )
    def test_nothing_else_is_a_flow(self, flow: FiveTuple) -> None:
        """Addresses are addresses, ports are ports."""
        with pytest.raises(ValueError, match=r".+"):
            place_of(flow)


class TestNetlink:
    """Messages as such."""

    def test_a_transaction(self) -> None:
        """Between a beginning and an end; the last message is acknowledged. By bytes."""
        messages = [Message(0, 1, 0x600, text(1, "t")), Message(3, 1, 0x400, nested(4, number(1, -1)))]
        assert transaction(messages, 7).hex(" ", 4) == (
            "14000000 10000100 00000000 00000000 0000000a "
            "1c000000 000a0106 00000000 00000000 01000000 06000100 74000000 "
            "20000000 030a0504 07000000 00000000 01000000 0c000480 08000100 ffffffff "
            "14000000 11000100 00000000 00000000 0000000a"
        )

    @given(st.binary(max_size=200), st.integers(0, 3))
    def test_what_is_no_answer_is_refused(self, data: bytes, kind: int) -> None:
        """Or says nothing: whatever it holds, nothing is read beyond it."""
        message = struct.pack("=IHHII", 16 + len(data), (0xA0C, 2, 3, 7)[kind], 0, 0, 0) + data
        for each in (data, message, message[:-1]):
            try:
                for answer in parse(each):
                    list(marks_of(answer.message))
            except ValueError:
                continue

    def test_every_cut_is_noticed(self) -> None:
        """Of a datagram with elements: a message that is not whole is refused."""
        (message,) = add({V4: 8})
        whole = transaction([message], 1)[20:-20]
        assert [each.message.kind for each in parse(whole)] == [12]
        for end in range(16, len(whole)):
            with pytest.raises(ValueError, match="shorter"):
                list(parse(whole[:end]))


class TestIptables:
    """Text for iptables-restore, and of iptables."""

    def test_a_chain(self) -> None:
        """Of ours, all of it."""
        assert chain({V4: 8, V4.reverse: 40}) == (
            "*mangle\n:LEVELLER - [0:0]\n"
            "-A LEVELLER -p tcp -s 10.0.0.1 --sport 1 -d 10.0.0.2 --dport 4660 -j DSCP --set-dscp 8\n"
            "-A LEVELLER -p tcp -s 10.0.0.2 --sport 4660 -d 10.0.0.1 --dport 1 -j DSCP --set-dscp 40\n"
            "COMMIT\n"
        )

    def test_what_it_lists(self) -> None:
        """Rules of others are not ours."""
        listed = (
            "-N LEVELLER\n-A POSTROUTING -j LEVELLER\n"
            "-A LEVELLER -s 10.0.0.1/32 -d 10.0.0.2/32 -p tcp -m tcp --sport 1 --dport 4660 -j DSCP --set-dscp 0x08\n"
            "-A LEVELLER -s fd00::1/128 -d fd00::2/128 -p udp -m udp --sport 1 --dport 2 -j DSCP --set-dscp 0x28\n"
            "-A OTHER -s 10.0.0.1/32 -d 10.0.0.2/32 -p tcp -m tcp --sport 1 --dport 1 -j DSCP --set-dscp 0x08\n"
        )
        assert marks_in(listed) == {V4: 8, V6._replace(destination="fd00::2"): 40}


class TestEffective:
    """Requested against effective."""

    def test_what_makes_no_sense_is_refused_alone(self) -> None:
        """With the reason."""
        wanted, refused = sorted_out({V4: 8, V6: 64, V4._replace(protocol="icmp"): 8}, range(64))
        assert wanted == {V4: 8}
        assert refused[V6] == Effective(64, None, "64 is none of the marks of this agent")
        assert len(refused) == 2

    def test_what_was_read_back_decides(self) -> None:
        """Not what was asked for."""
        other = V4.reverse
        found = compared({V4: 8, V6: 8, other: 8}, {V4: 8, V6: 16})
        assert [found[flow].effective for flow in (V4, V6, other)] == [8, 16, None]
        assert [bool(found[flow].reason) for flow in (V4, V6, other)] == [False, True, True]

    def test_a_system_that_lets_us_mark_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every mark is refused, and all reasons are said."""

        def no_nft() -> None:
            raise NftError(errno.EPERM, "no right")

        def no_iptables() -> None:
            raise IptablesError(errno.ENOENT, "no program")

        monkeypatch.setattr(enforce, "NftEnforcer", no_nft)
        monkeypatch.setattr(enforce, "IptablesEnforcer", no_iptables)
        assert best_enforcer().apply({V4: 8}) == {V4: Effective(8, None, "no right; by iptables: no program")}
