"""Sends probes and takes answers, on raw sockets."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from leveller.core.model import FiveTuple
from leveller.probe.packets import Answer, build, read_answer_v4, read_answer_v6
from leveller.probe.search import Limits, Search

__all__ = ["PathProbe", "ProbeRefused"]

# Of <linux/icmp.h>, <linux/icmpv6.h>: a set bit keeps messages of that type out.
_SOL_RAW = 255
_ICMP_FILTER = 1
_ICMP6_FILTER = 1
_IP_PKTINFO = 8
_MOST_BYTES = 2048
_MOST_AT_ONCE = 256


class ProbeRefused(OSError):
    """The system does not let this process probe."""


class PathProbe:
    """Paths of live TCP flows that start at this host, found by probing; a `Paths`.

    Everything runs in the event loop that is current when `open` is called. `names`: as `search.links` has it.
    """

    def __init__(self, limits: Limits | None = None, names: Mapping[str, str] | None = None) -> None:
        self._search = Search(lambda: secrets.randbits(32), limits, names)
        self._sockets: list[socket.socket] = []
        self._senders: dict[int, socket.socket] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()

    def open(self) -> None:
        """Opens the sockets. ProbeRefused: CAP_NET_RAW is missing. IPv6 is left out where the host has none."""
        self._loop = asyncio.get_running_loop()
        try:
            self._listen(
                socket.AF_INET,
                socket.IPPROTO_ICMP,
                (_SOL_RAW, _ICMP_FILTER, struct.pack("=I", ~(1 << 11) & 0xFFFFFFFF)),
            )
            self._senders[4] = self._raw(socket.AF_INET, socket.IPPROTO_RAW)
            with suppress(OSError):
                all_but_time_exceeded = struct.pack("=8I", ~(1 << 3) & 0xFFFFFFFF, *[0xFFFFFFFF] * 7)
                self._listen(
                    socket.AF_INET6,
                    socket.IPPROTO_ICMPV6,
                    (socket.IPPROTO_ICMPV6, _ICMP6_FILTER, all_but_time_exceeded),
                )
                self._senders[6] = self._raw(socket.AF_INET6, socket.IPPROTO_RAW)
        except PermissionError as error:
            self.close()
            raise ProbeRefused(
                error.errno, "paths cannot be probed without CAP_NET_RAW: grant it, or give a topology file"
            ) from error
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Ends all; nothing is left behind."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for each in self._sockets:
            if self._loop is not None:
                self._loop.remove_reader(each)
            each.close()
        self._sockets.clear()
        self._senders.clear()

    def path_of(self, flow: FiveTuple) -> tuple[str, ...]:
        """Returns the links of `flow`, nothing as long as they are not known. Asking has the path kept up to date."""
        self._search.want(flow, time.monotonic())
        self._turn()
        return self._search.path_of(flow)

    async def find(self, flow: FiveTuple) -> tuple[str, ...]:
        """Returns the links of `flow` as a round finds them that begins now; nothing if no router answers.

        A flow of another protocol than TCP, or of a family that the host does not have, has no path.
        """
        self._search.want(flow, time.monotonic())
        before = self._search.rounds_of(flow)
        self.again(flow)
        # A flow that ends meanwhile is forgotten.
        while before is not None and (rounds := self._search.rounds_of(flow)) is not None and rounds <= before:
            self._changed.clear()
            await self._changed.wait()
        return self._search.path_of(flow)

    def again(self, flow: FiveTuple) -> None:
        """Probes anew, now: to be called where a connection moved or stalls."""
        self._search.again(flow, time.monotonic())
        self._turn()

    def forget(self, flow: FiveTuple) -> None:
        """The flow ended."""
        self._search.forget(flow)
        self._changed.set()

    def _raw(self, family: int, protocol: int) -> socket.socket:
        made = socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
        self._sockets.append(made)
        return made

    def _listen(self, family: int, protocol: int, only: tuple[int, int, bytes]) -> None:
        assert self._loop is not None
        made = self._raw(family, protocol)
        made.setsockopt(*only)
        read: Callable[[bytes, str], Answer | None]
        read = read_answer_v6 if family == socket.AF_INET6 else lambda data, _: read_answer_v4(data)
        self._loop.add_reader(made, self._receive, made, read)

    def _receive(self, source: socket.socket, read: Callable[[bytes, str], Answer | None]) -> None:
        with suppress(BlockingIOError):
            for _ in range(_MOST_AT_ONCE):
                data, sender = source.recvfrom(_MOST_BYTES)
                if (answer := read(data, sender[0])) is not None:
                    self._search.took(answer, time.monotonic())
        self._turn()

    def _turn(self) -> None:
        """Sends what is due and comes back when more will be."""
        if self._loop is None or not self._senders:
            return
        for probe in self._search.due(time.monotonic()):
            # A route that is gone, a full queue, an address that is: the router counts as silent.
            with suppress(OSError):
                self._send(probe.flow, build(probe.flow, probe.hops, probe.nonce))
        self._changed.set()
        if self._timer is not None:
            self._timer.cancel()
        wait = self._search.wait(time.monotonic())
        self._timer = None if wait is None else self._loop.call_later(wait, self._turn)

    def _send(self, flow: FiveTuple, packet: bytes) -> None:
        source = ipaddress.ip_address(flow.source)
        if (sender := self._senders.get(source.version)) is None:
            return
        # Hosts with several NICs route by source address.
        if source.version == 4:
            about = (socket.IPPROTO_IP, _IP_PKTINFO, struct.pack("=I4s4s", 0, source.packed, b"\0" * 4))
        else:
            about = (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, source.packed + struct.pack("=I", 0))
        sender.sendmsg([packet], [about], 0, (flow.destination, 0))
