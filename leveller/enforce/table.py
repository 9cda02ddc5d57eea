"""The nftables table that marks flows, as messages. Pure.

In nft's words, for each mark N and each of IPv4 and IPv6:

    table inet leveller {
        flags owner
        map ip_flows { type inet_proto . ipv4_addr . inet_service . ipv4_addr . inet_service : verdict; }
        chain ip_N { meta nfproto ipv4 ip dscp set N }
        chain outgoing {
            type filter hook postrouting priority mangle; policy accept;
            meta nfproto ipv4 meta l4proto . ip saddr . th sport . ip daddr . th dport vmap @ip_flows
        }
    }

A packet costs one look-up, however many flows are marked. Of its header only the six bits of the DSCP are written.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from leveller.core.model import FiveTuple
from leveller.enforce.nfnetlink import Message, attribute, attributes, nested, number, text

__all__ = ["FAMILIES", "TABLE", "Family", "add", "delete", "make", "marks_in", "place_of"]

TABLE = "leveller"
PROTOCOLS = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP}
INET = 1  # NFPROTO_INET: IPv4 and IPv6
CREATE, EXCLUSIVE = 0x400, 0x200
NEWTABLE, GETTABLE, DELTABLE, NEWCHAIN, NEWRULE, NEWSET, NEWSETELEM, GETSETELEM, DELSETELEM = (
    0,
    1,
    2,
    3,
    6,
    9,
    12,
    13,
    14,
)
OWNER = 2
_MAP, _VERDICT, _JUMP = 8, 0xFFFFFF00, -3
_POSTROUTING, _MANGLE, _ACCEPT = 4, -150, 1
_META_NFPROTO, _META_L4PROTO = 15, 16
_NETWORK, _TRANSPORT = 1, 2  # headers
_REGISTER = 8  # the first of 32 bits
_VERDICT_REGISTER = 0
_INTERNET_CHECKSUM, _NO_CHECKSUM = 1, 0
_ELEMENTS_A_MESSAGE = 200
#: Flows whose bytes are kept: making and reading them is most of what a change costs.
_MOST_REMEMBERED = 1 << 14
# How nft names the parts of a key when it lists a map.
_INET_PROTO, _IPV4_ADDR, _IPV6_ADDR, _INET_SERVICE = 12, 7, 8, 13


class Family(NamedTuple):
    """IPv4 or IPv6.

    name: of its map and chains; number: NFPROTO_*; address: bytes of one; type: nft's number for its addresses
    source: where in the header the source address is, the destination's follows it
    keep: which bits of the first two bytes are not the DSCP's; checksum: whether the header has one
    """

    name: str
    number: int
    address: int
    type: int
    source: int
    keep: bytes
    checksum: bool

    @property
    def map(self) -> str:
        """The name of its map."""
        return f"{self.name}_flows"

    def chain(self, dscp: int) -> str:
        """The name of the chain that sets a mark."""
        return f"{self.name}_{dscp}"

    def bits(self, dscp: int) -> bytes:
        """A DSCP where it is in the first two bytes of a header."""
        return struct.pack("!H", dscp << 2 if self.checksum else dscp << 6)


FAMILIES = (
    Family("ip", 2, 4, _IPV4_ADDR, 12, b"\xff\x03", True),
    Family("ip6", 10, 16, _IPV6_ADDR, 8, b"\xf0\x3f", False),
)


@lru_cache(_MOST_REMEMBERED)
def place_of(flow: FiveTuple) -> tuple[Family, bytes]:
    """Returns the family of a flow and its key in the map of that: each part begins at a multiple of four bytes.

    ValueError: it is no flow of TCP or UDP over IP.
    """
    source, destination = ipaddress.ip_address(flow.source), ipaddress.ip_address(flow.destination)
    # The zone of an IPv6 address may be any text; packets do not have it.
    if flow.protocol not in PROTOCOLS or source.version != destination.version or "%" in flow.source + flow.destination:
        raise ValueError(f"{flow} is no flow of TCP or UDP")
    for port in (flow.source_port, flow.destination_port):
        if not 0 < port < 65536:
            raise ValueError(f"{flow}: {port} is no port")
    key = struct.pack("!B3x", PROTOCOLS[flow.protocol])
    key += source.packed + struct.pack("!H2x", flow.source_port)
    key += destination.packed + struct.pack("!H2x", flow.destination_port)
    return FAMILIES[source.version == 6], key


def make(dscps: Iterable[int], owner: bool) -> list[Message]:
    """Returns what makes the table; with `owner` it is its socket's alone, and goes with it."""
    flags = number(2, OWNER) if owner else b""
    messages = [Message(NEWTABLE, INET, CREATE | EXCLUSIVE, text(1, TABLE) + flags)]
    hook = nested(4, number(1, _POSTROUTING), number(2, _MANGLE))
    base = text(1, TABLE) + text(3, "outgoing") + hook + number(5, _ACCEPT) + text(7, "filter")
    messages.append(Message(NEWCHAIN, INET, CREATE, base))
    for position, family in enumerate(FAMILIES):
        messages.append(_map(family, position + 1))
        for dscp in dscps:
            messages.append(Message(NEWCHAIN, INET, CREATE, text(1, TABLE) + text(3, family.chain(dscp))))
            messages.append(_rule(family.chain(dscp), _set_dscp(family, dscp)))
        messages.append(_rule("outgoing", _look_up(family, position + 1)))
    return messages


def remove() -> Message:
    """Returns what removes the table, with all that is in it."""
    return Message(DELTABLE, INET, 0, text(1, TABLE))


def ask() -> Message:
    """Returns the question whether there is a table."""
    return Message(GETTABLE, INET, 0, text(1, TABLE))


def listing(family: Family) -> Message:
    """Returns the question what a map has."""
    return Message(GETSETELEM, INET, 0, text(1, TABLE) + text(2, family.map))


def add(marks: Mapping[FiveTuple, int]) -> Iterator[Message]:
    """Returns what marks flows that have no mark."""
    elements: dict[Family, list[bytes]] = {}
    for flow, dscp in marks.items():
        family, key = place_of(flow)
        elements.setdefault(family, []).append(_element(key, family.chain(dscp)))
    yield from _in_messages(NEWSETELEM, CREATE, elements)


def delete(flows: Iterable[FiveTuple]) -> Iterator[Message]:
    """Returns what takes the marks of flows away."""
    elements: dict[Family, list[bytes]] = {}
    for flow in flows:
        family, key = place_of(flow)
        elements.setdefault(family, []).append(_element(key, None))
    yield from _in_messages(DELSETELEM, 0, elements)


def marks_in(message: Message) -> Iterator[tuple[bytes, int]]:
    """Reads an answer to `listing`: keys and marks. ValueError: it is none."""
    for kind, listed in attributes(message.body):
        for _, element in attributes(listed) if kind == 3 else ():
            if (mark := _mark_in(element)) is not None:
                yield mark


@lru_cache(_MOST_REMEMBERED)
def _mark_in(element: bytes) -> tuple[bytes, int] | None:
    key, chain = b"", ""
    for part, value in attributes(element):
        if part == 1:
            key = dict(attributes(value)).get(1, b"")
        elif part == 2:
            verdict = dict(attributes(dict(attributes(value)).get(2, b"")))
            chain = verdict.get(2, b"").rstrip(b"\0").decode(errors="replace")
    dscp = chain.rpartition("_")[2]
    return (key, int(dscp)) if dscp.isdecimal() else None


def _in_messages(kind: int, flags: int, elements: Mapping[Family, list[bytes]]) -> Iterator[Message]:
    """An attribute has a length of 16 bits: a few messages each hold some."""
    for family, some in elements.items():
        for start in range(0, len(some), _ELEMENTS_A_MESSAGE):
            listed = nested(3, *some[start : start + _ELEMENTS_A_MESSAGE])
            yield Message(kind, INET, flags, text(1, TABLE) + text(2, family.map) + listed)


@lru_cache(_MOST_REMEMBERED)
def _element(key: bytes, chain: str | None) -> bytes:
    named = nested(1, attribute(1, key))
    if chain is not None:
        named += nested(2, nested(2, number(1, _JUMP), text(2, chain)))
    return nested(1, named)


def _map(family: Family, id: int) -> Message:
    type = 0
    for part in (_INET_PROTO, family.type, _INET_SERVICE, family.type, _INET_SERVICE):
        type = type << 6 | part
    length = 12 + 2 * family.address
    body = text(1, TABLE) + text(2, family.map) + number(3, _MAP) + number(4, type) + number(5, length)
    return Message(NEWSET, INET, CREATE, body + number(6, _VERDICT) + number(10, id))


def _rule(chain: str, expressions: list[bytes]) -> Message:
    return Message(NEWRULE, INET, CREATE, text(1, TABLE) + text(2, chain) + nested(4, *expressions))


def _expression(name: str, *parts: bytes) -> bytes:
    return nested(1, text(1, name), nested(2, *parts))


def _only(family: Family) -> list[bytes]:
    return [
        _expression("meta", number(1, _REGISTER), number(2, _META_NFPROTO)),
        _expression("cmp", number(1, _REGISTER), number(2, 0), nested(3, attribute(1, bytes([family.number])))),
    ]


def _load(register: int, header: int, offset: int, length: int) -> bytes:
    return _expression("payload", number(1, register), number(2, header), number(3, offset), number(4, length))


def _set_dscp(family: Family, dscp: int) -> list[bytes]:
    register, bits = number(1, _REGISTER), family.bits(dscp)
    kept = _expression(
        "bitwise",
        register,
        number(2, _REGISTER),
        number(3, 2),
        nested(4, attribute(1, family.keep)),
        nested(5, attribute(1, bits)),
    )
    checksum = (_INTERNET_CHECKSUM, 10) if family.checksum else (_NO_CHECKSUM, 0)
    write = _expression(
        "payload",
        number(5, _REGISTER),
        number(2, _NETWORK),
        number(3, 0),
        number(4, 2),
        number(6, checksum[0]),
        number(7, checksum[1]),
        number(8, 0),
    )
    return [*_only(family), _load(_REGISTER, _NETWORK, 0, 2), kept, write]


def _look_up(family: Family, id: int) -> list[bytes]:
    """The key is put together in registers that follow each other."""
    words = family.address // 4
    source, destination = _REGISTER + 1, _REGISTER + 2 + words
    return [
        *_only(family),
        _expression("meta", number(1, _REGISTER), number(2, _META_L4PROTO)),
        _load(source, _NETWORK, family.source, family.address),
        _load(source + words, _TRANSPORT, 0, 2),
        _load(destination, _NETWORK, family.source + family.address, family.address),
        _load(destination + words, _TRANSPORT, 2, 2),
        _expression("lookup", text(1, family.map), number(2, _REGISTER), number(3, _VERDICT_REGISTER), number(4, id)),
    ]
