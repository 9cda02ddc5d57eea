"""The packets of a path probe: a bare TCP acknowledgement that dies on the way, and the routers' complaints. Pure.

The probe has the flow's five-tuple, so that routers which spread flows over several ways send it the flow's way. Its
sequence number is random: the peer takes a segment far outside its window for an old one, and ignores it.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

from leveller.core.model import FiveTuple

__all__ = ["Complaint", "checksum", "parse_complaint", "tcp_probe"]

_IP = struct.Struct("!BBHHHBBH4s4s")
_TCP = struct.Struct("!HHIIBBHHH")
_ACK = 0x10
_TIME_EXCEEDED = 11


class Complaint(NamedTuple):
    """A router's word that a packet of `flow`, with TCP sequence number `sequence`, died there."""

    router: str
    flow: FiveTuple
    sequence: int


def checksum(data: bytes) -> int:
    """Returns the Internet checksum (RFC 1071)."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def tcp_probe(flow: FiveTuple, hops: int, sequence: int) -> bytes:
    """Returns an IPv4 packet that dies after `hops` routers. ValueError: the flow is not TCP over IPv4."""
    source, destination = (ipaddress.ip_address(each) for each in (flow.source, flow.destination))
    if flow.protocol != "tcp" or source.version != 4 or destination.version != 4:
        raise ValueError(f"only TCP over IPv4 is probed, not {flow}")
    segment = _TCP.pack(flow.source_port, flow.destination_port, sequence, 0, 5 << 4, _ACK, 0, 0, 0)
    pseudo = source.packed + destination.packed + struct.pack("!BBH", 0, 6, len(segment))
    segment = segment[:16] + struct.pack("!H", checksum(pseudo + segment)) + segment[18:]
    total = _IP.size + len(segment)
    header = _IP.pack(0x45, 0, total, sequence & 0xFFFF, 0, hops, 6, 0, source.packed, destination.packed)
    return header[:10] + struct.pack("!H", checksum(header)) + header[12:] + segment


def parse_complaint(packet: bytes) -> Complaint | None:
    """Returns what an ICMP packet, its IPv4 header included, says of a probe; None where it is about something else."""
    inner = _payload(packet, 1)
    if inner is None or len(inner) < 8 or inner[0] != _TIME_EXCEEDED or inner[1] != 0 or checksum(inner) != 0:
        return None
    router = str(ipaddress.IPv4Address(packet[12:16]))
    died = inner[8:]
    segment = _payload(died, 6)
    if segment is None or len(segment) < 8:
        return None
    source_port, destination_port, sequence = struct.unpack_from("!HHI", segment)
    ends = [str(ipaddress.IPv4Address(died[at : at + 4])) for at in (12, 16)]
    return Complaint(router, FiveTuple("tcp", ends[0], source_port, ends[1], destination_port), sequence)


def _payload(packet: bytes, protocol: int) -> bytes | None:
    """What follows an IPv4 header, if it is one, and of that protocol."""
    if len(packet) < _IP.size or packet[0] >> 4 != 4 or packet[9] != protocol:
        return None
    length = (packet[0] & 0xF) * 4
    return packet[length:] if _IP.size <= length <= len(packet) else None
