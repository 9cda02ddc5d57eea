"""Finds paths by probing, in a thread of its own."""

from __future__ import annotations

import queue
import random
import select
import socket
import threading
import time
from dataclasses import dataclass, field

from leveller.core.model import FiveTuple
from leveller.probe.packets import parse_complaint, tcp_probe

__all__ = ["ProbeError", "ProbedPaths", "path_from"]

_MOST_HOPS = 8
_ANSWER_SECONDS = 0.3
_AT_ONCE = 16
_MOST_WAITING = 1 << 16


class ProbeError(Exception):
    """This system lets us send no probes."""


def path_from(flow: FiveTuple, routers: dict[int, str]) -> tuple[str, ...]:
    """Returns the links of a flow from who complained after how many hops.

    A link is named after the interface that it leads into, as that is what a router's complaint comes from; the first
    one, out of the host, after the host. A router that says nothing, with others behind it, is "?" and its place.
    """
    last = max(routers, default=0)
    links = [f"{flow.source}>"]
    for hop in range(1, last + 1):
        links.append(routers.get(hop) or f"{routers.get(hop - 1, flow.source)}>?{hop}")
    return (*links, flow.destination)


@dataclass
class _Known:
    path: tuple[str, ...] = ()
    probed: float = -1e9
    asked: float = 0.0


@dataclass
class _Trial:
    flow: FiveTuple
    hops: dict[int, int] = field(default_factory=dict)  # by sequence number
    routers: dict[int, str] = field(default_factory=dict)


class ProbedPaths:
    """Knows the paths of flows that it was asked for; a new one is known a moment later.

    `again`: seconds after which a path is probed anew, as networks change; `keep`: after which one that nobody asks for
    is forgotten. A flow that is not TCP over IPv4, and all where probes cannot be sent (`refused` says why), have no
    known path. In the network namespace of the thread that makes it.
    """

    def __init__(self, again: float = 60.0, keep: float = 600.0) -> None:
        self._again, self._keep = again, keep
        self._known: dict[FiveTuple, _Known] = {}
        self._lock = threading.Lock()
        self._waiting: queue.Queue[FiveTuple | None] = queue.Queue(_MOST_WAITING)
        self._random = random.Random()
        self.refused: str | None = None
        try:
            self._sender = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
            self._receiver = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        except PermissionError:
            self.refused = "paths cannot be probed: root or CAP_NET_RAW is needed; else name a --topology file"
            return
        self._receiver.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="leveller-probe", daemon=True)
        self._thread.start()

    def path_of(self, flow: FiveTuple) -> tuple[str, ...]:
        """Returns the path, or nothing as long as it is not known."""
        if self.refused is not None or flow.protocol != "tcp" or ":" in flow.source:
            return ()
        now = time.monotonic()
        with self._lock:
            known = self._known.setdefault(flow, _Known())
            known.asked = now
            if now - known.probed > self._again:
                known.probed = now
                try:
                    self._waiting.put_nowait(flow)
                except queue.Full:
                    known.probed = -1e9  # later
            return known.path

    def close(self) -> None:
        """Stops probing."""
        if self.refused is None:
            self._waiting.put(None)
            self._thread.join()
            self._sender.close()
            self._receiver.close()
            self.refused = "closed"

    def _run(self) -> None:
        while True:
            flows = [self._waiting.get()]
            while len(flows) < _AT_ONCE and not self._waiting.empty():
                flows.append(self._waiting.get())
            if None in flows:
                return
            found = self._probe([flow for flow in flows if flow is not None])
            now = time.monotonic()
            with self._lock:
                for flow, path in found.items():
                    if flow in self._known:
                        self._known[flow].path = path
                for flow in [each for each, known in self._known.items() if now - known.asked > self._keep]:
                    del self._known[flow]

    def _probe(self, flows: list[FiveTuple]) -> dict[FiveTuple, tuple[str, ...]]:
        trials = {flow: _Trial(flow) for flow in flows}
        self._drain({})
        for trial in trials.values():
            for hops in range(1, _MOST_HOPS + 1):
                sequence = self._random.getrandbits(32)
                trial.hops[sequence] = hops
                try:
                    self._sender.sendto(tcp_probe(trial.flow, hops, sequence), (trial.flow.destination, 0))
                except OSError:
                    break  # no route: the path is not known
        deadline = time.monotonic() + _ANSWER_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._receiver], [], [], left)[0]:
                self._drain(trials)
        return {flow: path_from(flow, trial.routers) for flow, trial in trials.items()}

    def _drain(self, trials: dict[FiveTuple, _Trial]) -> None:
        """Takes answers; what answers no probe of ours, number for number, is somebody else's, or forged."""
        while True:
            try:
                packet, _ = self._receiver.recvfrom(2048)
            except BlockingIOError:
                return
            complaint = parse_complaint(packet)
            if complaint is None or (trial := trials.get(complaint.flow)) is None:
                continue
            if (hops := trial.hops.get(complaint.sequence)) is not None:
                trial.routers[hops] = complaint.router
