"""The TCP connections of processes, as the kernel tells by NETLINK_SOCK_DIAG.

Of the network namespace that the caller is in; both ends of a connection list their own outgoing direction, so all its
packets are somebody's. Control connections cannot be told from those with data by their address: `Connection.sent`
counts, so who asks twice sees which of them move anything.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from leveller.core.model import FiveTuple

__all__ = ["Connection", "connections", "connections_of", "inodes_at_port", "parse_dump", "socket_inodes"]

_SOCK_DIAG_BY_FAMILY = 20
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST_DUMP = 0x301
_ESTABLISHED, _LISTEN = 1, 10
_INFO = 2  # INET_DIAG_INFO
_HEADER = struct.Struct("=IHHII")
_MESSAGE = struct.Struct("=BBBB2s2s16s16sIQIIIII")  # inet_diag_msg; ports in network order
_BYTES_ACKED = 120  # of struct tcp_info: tcpi_bytes_acked, u64
_LONGEST_WAIT = 2.0


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection as seen from here; `sent`: bytes that the peer has acknowledged; of socket `inode`.

    Listening sockets, for whoever asks for them, are connections without a peer: its address is 0 and its port 0.
    """

    flow: FiveTuple
    inode: int
    sent: int


def parse_dump(data: bytes, states: int = 1 << _ESTABLISHED) -> tuple[list[Connection], bool]:
    """Returns the sockets in `states` in one answer of the kernel, and whether it was the last.

    OSError: the kernel refuses. ValueError: that is no such answer.
    """
    found: list[Connection] = []
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            raise ValueError("a message of the kernel is shorter than it says")
        body = data[at + _HEADER.size : at + length]
        if kind in (_NLMSG_DONE, _NLMSG_ERROR):
            code = -struct.unpack_from("=i", body)[0] if len(body) >= 4 else 0
            if code:
                raise OSError(code, os.strerror(code))
            return found, True
        if kind == _SOCK_DIAG_BY_FAMILY and (one := _connection(body, states)) is not None:
            found.append(one)
        at += (length + 3) & ~3
    return found, False


def _connection(body: bytes, states: int) -> Connection | None:
    if len(body) < _MESSAGE.size:
        raise ValueError("a message of the kernel is too short for a connection")
    family, state, _, _, sport, dport, source, destination, *rest = _MESSAGE.unpack_from(body)
    if not states >> state & 1 or family not in (socket.AF_INET, socket.AF_INET6):
        return None
    ends = [_address(family, each) for each in (source, destination)]
    ports = [int.from_bytes(each, "big") for each in (sport, dport)]
    sent = 0
    for kind, value in _attributes(body[_MESSAGE.size :]):
        if kind == _INFO and len(value) >= _BYTES_ACKED + 8:
            sent = struct.unpack_from("=Q", value, _BYTES_ACKED)[0]
    return Connection(FiveTuple("tcp", ends[0], ports[0], ends[1], ports[1]), rest[-1], sent)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4 or at + length > len(data):
            raise ValueError("an attribute of a connection is shorter than it says")
        yield kind, data[at + 4 : at + length]
        at += (length + 3) & ~3


def _address(family: int, raw: bytes) -> str:
    """IPv4 over an IPv6 socket is IPv4 on the wire."""
    if family == socket.AF_INET:
        return str(ipaddress.IPv4Address(raw[:4]))
    address = ipaddress.IPv6Address(raw)
    return str(address.ipv4_mapped or address)


def connections(states: int = 1 << _ESTABLISHED) -> list[Connection]:
    """Returns all established TCP connections of this network namespace. OSError: the kernel does not tell."""
    found: list[Connection] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 4) as netlink:
        netlink.settimeout(_LONGEST_WAIT)
        for family in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, states)
            request += bytes(48)  # of any socket
            netlink.send(
                _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0) + request
            )
            last = False
            while not last:
                more, last = parse_dump(netlink.recv(1 << 18), states)
                found += more
    return found


def inodes_at_port(port: int) -> set[int]:
    """Returns the TCP sockets that listen on a port or are connected to or from it. OSError as `connections`."""
    return {
        each.inode
        for each in connections(1 << _ESTABLISHED | 1 << _LISTEN)
        if port in (each.flow.source_port, each.flow.destination_port)
    }


def socket_inodes(pid: int) -> set[int]:
    """Returns the sockets that a process holds; none where it is gone, or we may not look."""
    found = set()
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found


def connections_of(pids: Iterable[int], known: Iterable[Connection] | None = None) -> list[Connection]:
    """Returns the connections of processes to other hosts: not those inside this one, by loopback or own address.

    known: what `connections` returned, all of it: a connection inside this host is one whose other end is there too.
    """
    inodes: set[int] = set()
    for pid in pids:
        inodes |= socket_inodes(pid)
    listed = list(connections() if known is None else known)
    here = {each.flow for each in listed}
    return [each for each in listed if each.inode in inodes and not _inside(each.flow, here)]


def _inside(flow: FiveTuple, here: set[FiveTuple]) -> bool:
    return flow.source == flow.destination or flow.reverse in here or ipaddress.ip_address(flow.destination).is_loopback
