"""Agents measure NICs that no rank uses: what is left out of plans shows nothing, and trying it in one hurts.

The leader's agent asks for a probe of a flow (source host, destination host, rail). The source's agent opens a
connection from its own address of that rail to the destination's, sends up to PROBE_BYTES, and hears how fast they
came in; at once afterwards it does the same over a reference, a rail thought healthy, so that the ratio of both says
what is left of the NIC, whatever a Python program can push. Over the connections (channel.py, purpose "probe"):

    source      -> u32 milliseconds that it waits for; then zeros
    destination -> u64 bytes that count, u64 ns that they took, u64 bytes in all, u64 bytes/s that its NIC took in from
                   others, 16 bytes of HMAC-SHA256 over these

Among the flows of ranks a probe gets little (measured: 1/26 of a NIC beside four of them). So what others get through
the busier of its NICs counts for a reference, and a probe of a NIC that others keep busy says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import math
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from theseus_py.agent.channel import Address, Channel, Kind, ProbeEnd
from theseus_py.agent.traffic import Traffic, traffic_of

__all__ = ["PROBE_BYTES", "PROBE_SECONDS", "Measured", "Prober", "Request", "Turns", "goodput", "left_of"]

_log = logging.getLogger(__name__)
PROBE_BYTES = 512 << 10
# Buckets let bursts through (128 KiB and a packet of 64 KiB in our testbeds), which are not to count.
_BURST_BYTES = 256 << 10
PROBE_SECONDS = 0.5  # one connection, from its first packet to the answer
_ANSWER_SECONDS = 0.05  # of these, what the answer has to come back
_INTERVAL_SECONDS = 1.0
_ASKED_SECONDS = 0.1  # a flow is still wanted that long after it was last asked for
_LOST_SECONDS = 2 * PROBE_SECONDS + 1.0  # after that, a probe that nobody reported ended long ago
_KEPT_NS = 5_000_000_000
_CHUNK = bytes(64 << 10)
# What waits in a socket has not crossed the NIC: bounds both what a probe leaves behind and how far bursts mislead it.
_SOCKET_BYTES = 128 << 10
_BUDGET = struct.Struct("<I")
_ANSWER = struct.Struct("<QQQQ")
_TAG = 16
_REQUEST = struct.Struct("<HH")
_NO_REFERENCE = 0xFFFF
_HEADERS = 1.06  # times the data, that a NIC carries: acknowledgements of the other way included
_CROWDED = 0.25  # of what a probe got, for others: it was not alone
_MUCH = 0.5  # of the reference, that a NIC carried in all: it was others who took the rest
_FAILURES = (OSError, TimeoutError, asyncio.TimeoutError, EOFError)


class Request(NamedTuple):
    """One probe that the leader's agent asks for. `reference`: another rail of the same two hosts, or None."""

    src: str
    dst: str
    rail: int
    reference: int | None = None

    def encode(self) -> bytes:
        """Returns the payload of Kind.PROBE; who gets it is the source."""
        reference = _NO_REFERENCE if self.reference is None else self.reference
        return _REQUEST.pack(self.rail, reference) + self.dst.encode()

    @classmethod
    def decode(cls, src: str, payload: bytes) -> Request:
        """Reads what `encode` gave. ValueError, struct.error: it is none."""
        rail, reference = _REQUEST.unpack_from(payload)
        dst = payload[_REQUEST.size :].decode()
        if rail in (reference, _NO_REFERENCE) or dst in ("", src):
            raise ValueError("a probe is from one host to another, and its reference another rail")
        return cls(src, dst, rail, None if reference == _NO_REFERENCE else reference)

    @property
    def flow(self) -> tuple[str, str, int]:
        return self.src, self.dst, self.rail

    @property
    def nics(self) -> set[tuple[str, int]]:
        """Host and rail of each NIC that it uses."""
        rails = {self.rail} if self.reference is None else {self.rail, self.reference}
        return {(host, rail) for host in (self.src, self.dst) for rail in rails}


class Turns:
    """Who may probe when: a flow once a second, a NIC in one probe at a time, who waited longest first. Pure."""

    def __init__(self) -> None:
        self._asked: dict[Request, float] = {}
        self._begun: dict[tuple[str, str, int], float] = {}
        self._running: dict[Request, float] = {}

    def take(self, request: Request, now: float) -> bool:
        """Returns whether it begins now (seconds). Whoever is told so calls `done` at its end."""
        self._asked = {each: at for each, at in self._asked.items() if now - at < _ASKED_SECONDS} | {request: now}
        self._running = {each: at for each, at in self._running.items() if now - at < _LOST_SECONDS}
        if not self._is_due(request, now) or any(request.nics & each.nics for each in self._running):
            return False
        rivals = [each for each in self._asked if each.nics & request.nics and self._is_due(each, now)]
        if any(self._last(each) < self._last(request) for each in rivals):
            return False
        self._running[request] = self._begun[request.flow] = now
        return True

    def _last(self, request: Request) -> float:
        return self._begun.get(request.flow, -math.inf)

    def _is_due(self, request: Request, now: float) -> bool:
        return now - self._last(request) >= _INTERVAL_SECONDS

    def done(self, request: Request) -> None:
        self._running.pop(request, None)


def goodput(arrivals: list[tuple[int, int]], now: int) -> tuple[int, int]:
    """Returns bytes, and the ns that they took, from when bytes came in (ns, sum so far; first (begin, 0)).

    What may have been a burst does not count: the first half of what came by `now`.
    """
    total = arrivals[-1][1]
    end = arrivals[-1][0] if total >= PROBE_BYTES else now
    skipped = min(_BURST_BYTES, total // 2)
    begin, before = next(arrival for arrival in arrivals if arrival[1] >= skipped)
    if before == total:  # one piece is all there is
        begin, before = arrivals[0]
    return total - before, max(1, end - begin)


class Measured(NamedTuple):
    """Bytes a second of one probe, and of others through the busier one of its two NICs meanwhile."""

    rate: float
    others: float

    @property
    def crowded(self) -> bool:
        return self.others > _CROWDED * self.rate


def left_of(probe: Measured, reference: Measured | None) -> tuple[float, float | None] | None:
    """Returns bytes/s of the probe and of the reference; None where they say nothing of the probe's NICs."""
    if reference is None:
        return probe.rate, None
    most = sum(reference) if reference.crowded else reference.rate
    if reference.rate == 0 or (probe.crowded and sum(probe) > _MUCH * most):
        return None
    return probe.rate, most


class _Meter:
    """What others get through the NIC of an address from now on: sent (0) or received (1)."""

    def __init__(self, count: Callable[[], Traffic | None], way: int) -> None:
        self._count, self._way = count, way
        self._before, self._begin = count(), time.monotonic_ns()

    def rate(self, own: int) -> float:
        """Returns bytes a second but for `own` bytes; 0 where the NIC is not known."""
        after, ns = self._count(), time.monotonic_ns() - self._begin
        if self._before is None or after is None:
            return 0.0
        return max(0.0, after[self._way] - self._before[self._way] - own * _HEADERS) * 1e9 / max(1, ns)


class Prober:
    """One agent's part: asks (at the leader's), probes, answers probes, and keeps what came out."""

    def __init__(
        self,
        host: str,
        channel: Channel,
        address_of: Callable[[str], Address | None],
        traffic: Callable[[str], Traffic | None] = traffic_of,
    ) -> None:
        """`address_of`: where a host's agent listens; None: unknown, or nothing that a probe could tell of.

        `traffic`: bytes that the NIC of an address sent and received so far.
        """
        self._host = host
        self._channel = channel
        self._address_of = address_of
        self._traffic = traffic
        self._turns = Turns()  # of all hosts' probes, at the leader's agent
        self._own_turns: dict[tuple[str, int], float] = {}  # when probes from here began, by destination and rail
        self._busy: set[int] = set()  # rails
        self._tasks: set[asyncio.Task[None]] = set()
        self._results: dict[tuple[str, int], tuple[float, float | None, int]] = {}
        channel.on_probe = self.answer

    def want(self, src: str, dst: str, rail: int, reference: int | None = None) -> None:
        """Has `src` probe its flow to `dst` over `rail`, if it is its turn: say it as often as you like.

        Nothing happens where the rails' addresses are not known.
        """
        request = Request(src, dst, rail, reference)
        if src == dst or rail == reference or not self._has_paths(request):
            return
        if not self._turns.take(request, time.monotonic()):
            return
        if src == self._host:
            self._begin(request, lambda: self._turns.done(request))
        elif not self._channel.send(src, Kind.PROBE, request.encode()):
            self._turns.done(request)

    def on_probe(self, host: str, payload: bytes) -> None:
        """Takes Kind.PROBE of the leader's agent. ValueError, struct.error: it cannot be."""
        request = Request.decode(self._host, payload)
        if not self._has_paths(request):
            raise ValueError("a probe to nowhere")
        self._begin(request, lambda: self._channel.send(host, Kind.PROBED, payload))

    def on_probed(self, host: str, payload: bytes) -> None:
        """Takes Kind.PROBED: a host is done with what it was asked for. ValueError, struct.error: it cannot be."""
        self._turns.done(Request.decode(host, payload))

    def rows(self) -> list[list[Any]]:
        """Returns [destination, rail, bytes/s, bytes/s of the reference, when (ns, this host's monotonic clock)].

        The latest of each flow from here that is not older than 5 s. 0 bytes/s: nothing came through in half a second.
        The reference's is None where none was asked for, else above 0: where it fails, too, there is no result, nor
        where others crowded the probe out.
        """
        oldest = time.monotonic_ns() - _KEPT_NS
        self._results = {flow: result for flow, result in self._results.items() if result[2] >= oldest}
        return [[*flow, *result] for flow, result in self._results.items()]

    async def stop(self) -> None:
        """Ends what is under way, and forgets what was found."""
        while self._tasks:  # more than once where need be, as in Channel.leave
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=PROBE_SECONDS)
        self._turns = Turns()
        self._own_turns.clear()
        self._results.clear()

    # --- At the source.

    def _has_paths(self, request: Request) -> bool:
        rails = [request.rail] if request.reference is None else [request.rail, request.reference]
        return all(self._path(request.src, request.dst, rail) is not None for rail in rails)

    def _path(self, src: str, dst: str, rail: int) -> tuple[str, str, int] | None:
        """Returns own address, theirs and their port on a rail."""
        here, there = self._address_of(src), self._address_of(dst)
        if here is None or there is None or not 0 <= rail < min(len(here.addresses), len(there.addresses)):
            return None
        return here.addresses[rail], there.addresses[rail], there.port

    def _begin(self, request: Request, at_end: Callable[[], object]) -> None:
        rails = {rail for _, rail in request.nics}
        if self._busy & rails:
            at_end()
            return
        self._busy |= rails

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._busy -= rails
            at_end()

        probe: Coroutine[Any, Any, None] = self._probe(request)
        task = asyncio.ensure_future(probe)
        self._tasks.add(task)
        task.add_done_callback(end)

    async def _probe(self, request: Request) -> None:
        flow = request.dst, request.rail
        await asyncio.sleep(self._own_turns.get(flow, -math.inf) + _INTERVAL_SECONDS - time.monotonic())
        self._own_turns[flow] = time.monotonic()
        try:
            probe = await self._measure(request, request.rail)
            reference = None if request.reference is None else await self._measure(request, request.reference)
        except PermissionError as error:
            _log.warning("no probe of rail %d to %s: %s", request.rail, request.dst, error)
        except Exception:
            _log.exception("a probe of rail %d to %s failed", request.rail, request.dst)
        else:
            if (left := left_of(probe, reference)) is not None:
                self._results[flow] = (*left, time.monotonic_ns())

    async def _measure(self, request: Request, rail: int) -> Measured:
        """Rate 0: nothing comes through. PermissionError: who listens there is none of ours."""
        path = self._path(request.src, request.dst, rail)
        if path is None:
            return Measured(0.0, 0.0)  # the members have changed
        meter = _Meter(lambda: self._traffic(path[0]), 0)
        try:
            there, own = await asyncio.wait_for(self._push(*path), PROBE_SECONDS)
        except PermissionError:
            raise
        except _FAILURES:
            there, own = Measured(0.0, 0.0), 0
        return Measured(there.rate, max(meter.rate(own), there.others))

    async def _push(self, source: str, ip: str, port: int) -> tuple[Measured, int]:
        """Returns what the destination says of one probe, and how many bytes got there."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PROBE_SECONDS - _ANSWER_SECONDS
        end = await self._channel.open_probe(source, ip, port)
        raw = end.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        # What has not gone by the end never goes: a slow NIC is not to be burdened any longer.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.writer.write(_BUDGET.pack(max(0, int((deadline - loop.time()) * 1e3))))
        sender = asyncio.ensure_future(_send(end.writer))
        try:
            answer = await end.reader.readexactly(_ANSWER.size + _TAG)
        finally:
            sender.cancel()
            end.writer.transport.abort()
        if not hmac.compare_digest(answer[_ANSWER.size :], _tag(end, answer[: _ANSWER.size])):
            raise PermissionError("the answer was tampered with")
        moved, ns, own, others = _ANSWER.unpack_from(answer)
        return Measured(moved * 1e9 / max(1, ns), float(others)), own

    # --- At the destination.

    async def answer(self, end: ProbeEnd) -> None:
        """Serves one probe of another agent to its end. OSError, TimeoutError, EOFError: it broke off."""
        raw = end.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
        head = await asyncio.wait_for(end.reader.readexactly(_BUDGET.size), PROBE_SECONDS)
        seconds = min(_BUDGET.unpack(head)[0] / 1e3, PROBE_SECONDS)
        arrivals = [(time.monotonic_ns(), 0)]
        meter = _Meter(lambda: self._traffic(_plain(raw.getsockname()[0])), 1)
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(_collect(end.reader, arrivals), seconds)
        own = arrivals[-1][1]
        payload = _ANSWER.pack(*goodput(arrivals, time.monotonic_ns()), own, int(meter.rate(own)))
        end.writer.write(payload + _tag(end, payload))
        # To close with bytes unread would reset the connection, and might take the answer along.
        await asyncio.wait_for(_collect(end.reader, arrivals, PROBE_BYTES + 1), PROBE_SECONDS)


async def _send(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        for _ in range(PROBE_BYTES // len(_CHUNK)):
            writer.write(_CHUNK)
            await writer.drain()


async def _collect(reader: asyncio.StreamReader, arrivals: list[tuple[int, int]], most: int = PROBE_BYTES) -> None:
    """Notes what comes in until it is `most` in all, or the end."""
    while (total := arrivals[-1][1]) < most and (data := await reader.read(min(len(_CHUNK), most - total))):
        arrivals.append((time.monotonic_ns(), total + len(data)))


def _plain(address: str) -> str:
    """Returns an IPv4 address as such that came to a socket of IPv6."""
    return address.removeprefix("::ffff:")


def _tag(end: ProbeEnd, payload: bytes) -> bytes:
    return hmac.digest(end.key, payload, "sha256")[:_TAG]
