"""Who answers what dies on its way: `ttl.py ADDRESS TTL PORT` prints the router's address."""

from __future__ import annotations

import select
import socket
import struct
import sys

_IP_TTL, _IP_RECVERR, _MSG_ERRQUEUE = 2, 11, 0x2000
_TIME_EXCEEDED = 11


def answer(address: str, ttl: int, port: int) -> str:
    """The socket's own error queue says it, so no raw socket is needed."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    probe.setsockopt(socket.IPPROTO_IP, _IP_TTL, ttl)
    probe.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
    probe.bind(("", port))
    probe.connect((address, 4791))
    probe.send(b"?")
    if not select.select([probe], [], [], 5.0)[0]:
        raise TimeoutError("nobody answered")
    _, ancillary, _, _ = probe.recvmsg(512, 512, _MSG_ERRQUEUE)
    for _, kind, data in ancillary:
        # sock_extended_err, 16 bytes: its sixth one is the ICMP type; the offender's sockaddr_in follows.
        if kind == _IP_RECVERR and struct.unpack_from("IBBBB", data)[2] == _TIME_EXCEEDED:
            return socket.inet_ntoa(data[20:24])
    raise RuntimeError("nobody said that it died")


if __name__ == "__main__":
    print(answer(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
