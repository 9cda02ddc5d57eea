"""Sends probes and takes answers, in a thread of its own."""

from __future__ import annotations

import ipaddress
import os
import secrets
import select
import socket
import struct
import threading
import time
from contextlib import suppress

from leveller.core.model import FiveTuple
from leveller.probe.packets import build, read_answer_v4, read_answer_v6
from leveller.probe.search import Limits, Search

__all__ = ["ProbedPaths"]

# Of <linux/icmp.h> and <linux/icmpv6.h>: a set bit keeps messages of that type out.
_SOL_RAW = 255
_ICMP_FILTER = 1
_TIME_EXCEEDED_V4 = struct.pack("=I", ~(1 << 11) & 0xFFFFFFFF)
_TIME_EXCEEDED_V6 = struct.pack("=8I", ~(1 << 3) & 0xFFFFFFFF, *[0xFFFFFFFF] * 7)
_IP_PKTINFO = 8
_MOST_BYTES = 2048
_MOST_AT_ONCE = 256


class ProbedPaths:
    """Knows the paths of TCP flows from this host that it was asked for; a new one is known a moment later.

    Where probes cannot be sent `refused` says why, and no path is known. Works in the network namespace of the thread
    that makes it. IPv6 is left out where the system has none.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._search = Search(lambda: secrets.randbits(32), limits)
        self._lock = threading.Condition()
        self._senders: dict[int, socket.socket] = {}
        self._receivers: dict[int, socket.socket] = {}
        self._closing = False
        self.refused: str | None = None
        try:
            self._open(4, socket.AF_INET, socket.IPPROTO_ICMP, (_SOL_RAW, _ICMP_FILTER, _TIME_EXCEEDED_V4))
        except PermissionError:
            self.refused = "paths cannot be probed: root or CAP_NET_RAW is needed; else name a --topology file"
            return
        with suppress(OSError):
            only = (socket.IPPROTO_ICMPV6, _ICMP_FILTER, _TIME_EXCEEDED_V6)
            self._open(6, socket.AF_INET6, socket.IPPROTO_ICMPV6, only)
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="leveller-probe", daemon=True)
        self._thread.start()

    def path_of(self, flow: FiveTuple) -> tuple[str, ...]:
        """Returns the path (as `search.links` names it), or nothing as long as it is not known."""
        if self.refused is not None:
            return ()
        with self._lock:
            if self._search.want(flow, time.monotonic()):
                self._wake()
            return self._search.path_of(flow)

    def again(self, flow: FiveTuple) -> None:
        """Probes anew, now: to be called where a connection moved or stalls. The old path stays until the new is."""
        if self.refused is None:
            with self._lock:
                self._search.again(flow, time.monotonic())
                self._wake()

    def find(self, flow: FiveTuple, timeout: float = 10.0) -> tuple[str, ...]:
        """Probes now, waits, and returns the path; nothing where it cannot be known. TimeoutError."""
        self.path_of(flow)
        with self._lock:
            before = self._search.rounds_of(flow)
        if before is None:
            return ()
        self.again(flow)
        with self._lock:
            if not self._lock.wait_for(lambda: self._closing or self._search.rounds_of(flow) != before, timeout):
                raise TimeoutError(f"no path of {flow} within {timeout:g} s: other probes come first")
            return self._search.path_of(flow)

    def close(self) -> None:
        """Stops probing. May be called again."""
        if self.refused is not None:
            return
        self.refused = "closed"
        with self._lock:
            self._closing = True
            self._wake()
            self._lock.notify_all()
        self._thread.join()
        for each in (*self._senders.values(), *self._receivers.values()):
            each.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _open(self, version: int, family: int, protocol: int, only: tuple[int, int, bytes]) -> None:
        # What is sent here has a header of its own, and nothing is received; a TCP socket would get all of the host's.
        sender = socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.IPPROTO_RAW)
        try:
            receiver = socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK, protocol)
        except OSError:
            sender.close()
            raise
        receiver.setsockopt(*only)
        self._senders[version], self._receivers[version] = sender, receiver

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake_writer, b"\0")

    def _run(self) -> None:
        watched: list[socket.socket | int] = [*self._receivers.values(), self._wake_reader]
        while True:
            with self._lock:
                if self._closing:
                    return
                due = self._search.due(time.monotonic())
                wait = self._search.wait(time.monotonic())
                self._lock.notify_all()
            for probe in due:
                # A route or an address that is gone, a full queue: the router counts as silent.
                with suppress(OSError):
                    self._send(probe.flow, build(probe.flow, probe.hops, probe.nonce))
            ready, _, _ = select.select(watched, [], [], wait)
            if self._wake_reader in ready:
                os.read(self._wake_reader, 1 << 12)
            for version, receiver in self._receivers.items():
                if receiver in ready:
                    self._receive(version, receiver)

    def _send(self, flow: FiveTuple, packet: bytes) -> None:
        source = ipaddress.ip_address(flow.source)
        if (sender := self._senders.get(source.version)) is None:
            return
        # Hosts with several NICs route by source address.
        if source.version == 4:
            about = (socket.IPPROTO_IP, _IP_PKTINFO, struct.pack("=I4s4s", 0, source.packed, bytes(4)))
        else:
            about = (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, source.packed + struct.pack("=I", 0))
        sender.sendmsg([packet], [about], 0, (flow.destination, 0))

    def _receive(self, version: int, receiver: socket.socket) -> None:
        with suppress(OSError):  # nothing (more) there
            for _ in range(_MOST_AT_ONCE):
                data, sender = receiver.recvfrom(_MOST_BYTES)
                answer = read_answer_v4(data) if version == 4 else read_answer_v6(data, sender[0])
                if answer is not None:
                    with self._lock:
                        self._search.took(answer, time.monotonic())
