"""Probes that follow a live TCP connection a few hops, and what routers answer. Pure: bytes in and out.

A probe has the addresses and ports of the connection, so that every router on the way picks the next hop as for the
connection itself. Two things keep it from the connection's ends: a hop limit that ends on the way, and a TCP checksum
that is wrong on purpose. Routers do not look at that one; a destination that is nearer than thought drops the segment
before the connection sees it. The sequence number is a nonce. It is in the part that a router must quote (RFC 792,
RFC 4443), so an answer that does not have it was made by somebody who did not see the probe.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

from leveller.core.model import FiveTuple

__all__ = ["Answer", "build", "checksum", "read_answer_v4", "read_answer_v6"]

_TCP = 6
_ICMP = 1
_TIME_EXCEEDED_V4 = 11
_TIME_EXCEEDED_V6 = 3
_V4_HEADER = 20
_V6_HEADER = 40
_QUOTED_TCP = 8
_TCP_HEADER = 20
_ACK = 0x10


@dataclass(frozen=True, slots=True)
class Answer:
    """`router` quoted a probe of `flow` that carried `nonce`."""

    router: str
    flow: FiveTuple
    nonce: int


def checksum(data: bytes) -> int:
    """Returns the Internet checksum of RFC 1071; 0 over data that holds its own, right one."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def build(flow: FiveTuple, hops: int, nonce: int) -> bytes:
    """Returns a whole IP packet that expires at the router `hops` away. `nonce`: 32 bits.

    ValueError: the flow is not TCP, its addresses are of two families, or a number does not fit.
    """
    if flow.protocol != "tcp":
        raise ValueError(f"only TCP flows are probed, not {flow.protocol}")
    if not 1 <= hops <= 255 or not 0 <= nonce < 1 << 32:
        raise ValueError(f"a probe of {hops} hops and nonce {nonce} does not fit its fields")
    source, destination = ipaddress.ip_address(flow.source), ipaddress.ip_address(flow.destination)
    if source.version != destination.version:
        raise ValueError(f"{source} and {destination} are of two families")
    if not all(0 <= port < 1 << 16 for port in (flow.source_port, flow.destination_port)):
        raise ValueError(f"a port of {flow} does not fit its field")
    addresses = source.packed + destination.packed
    pseudo = addresses + struct.pack("!II", _TCP_HEADER, _TCP)
    segment = _segment(flow, nonce, 0)
    # One bit off is always wrong; 0 and 0xffff, which count as equal, differ by more.
    segment = _segment(flow, nonce, checksum(pseudo + segment) ^ 1)
    if source.version == 6:
        return struct.pack("!IHBB", 6 << 28, _TCP_HEADER, _TCP, hops) + addresses + segment
    identity = nonce & 0xFFFF or 1  # the kernel replaces 0
    dont_fragment = 0x4000
    fields = (0x45, 0, _V4_HEADER + _TCP_HEADER, identity, dont_fragment, hops, _TCP)
    header = struct.pack("!BBHHHBBH", *fields, 0) + addresses
    return struct.pack("!BBHHHBBH", *fields, checksum(header)) + addresses + segment


def _segment(flow: FiveTuple, nonce: int, check: int) -> bytes:
    ports = (flow.source_port, flow.destination_port)
    return struct.pack("!HHIIBBHHH", *ports, nonce, 0, (_TCP_HEADER // 4) << 4, _ACK, 0, check, 0)


def read_answer_v4(packet: bytes) -> Answer | None:
    """Reads a whole IPv4 packet; None unless it is a sound "time exceeded" that quotes TCP."""
    if len(packet) < _V4_HEADER or packet[0] >> 4 != 4 or packet[9] != _ICMP:
        return None
    header = (packet[0] & 0xF) * 4
    message = packet[header:]
    if header < _V4_HEADER or len(message) < 8 + _V4_HEADER + _QUOTED_TCP:
        return None
    if message[0] != _TIME_EXCEEDED_V4 or message[1] != 0 or checksum(message) != 0:
        return None
    quoted = message[8:]
    inner = (quoted[0] & 0xF) * 4
    fragment = struct.unpack("!H", quoted[6:8])[0] & 0x1FFF
    if quoted[0] >> 4 != 4 or inner < _V4_HEADER or len(quoted) < inner + _QUOTED_TCP or quoted[9] != _TCP or fragment:
        return None
    answer = _answer(packet[12:16], quoted[12:16], quoted[16:20], quoted[inner:])
    identity = struct.unpack("!H", quoted[4:6])[0]
    return answer if identity == (answer.nonce & 0xFFFF or 1) else None


def read_answer_v6(message: bytes, router: str) -> Answer | None:
    """Reads an ICMPv6 message from `router`, whose checksum the kernel has proved; None as for IPv4."""
    if len(message) < 8 + _V6_HEADER + _QUOTED_TCP or message[0] != _TIME_EXCEEDED_V6 or message[1] != 0:
        return None
    quoted = message[8:]
    if quoted[0] >> 4 != 6 or quoted[6] != _TCP:
        return None
    try:
        sender = ipaddress.IPv6Address(router.partition("%")[0])
    except ValueError:
        return None
    return _answer(sender.packed, quoted[8:24], quoted[24:40], quoted[_V6_HEADER:])


def _answer(router: bytes, source: bytes, destination: bytes, segment: bytes) -> Answer:
    source_port, destination_port, nonce = struct.unpack("!HHI", segment[:_QUOTED_TCP])
    one, other, sender = (str(ipaddress.ip_address(each)) for each in (source, destination, router))
    return Answer(sender, FiveTuple("tcp", one, source_port, other, destination_port), nonce)
