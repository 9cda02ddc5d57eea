"""Probes of NICs that no rank uses: what they find, whom they answer, and how often they may."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest

from theseus_py.agent.agent import Agent, Life
from theseus_py.agent.channel import Address, Channel, Kind, ProbeEnd, key_of
from theseus_py.agent.members import Members
from theseus_py.agent.probe import PROBE_BYTES, Measured, Prober, Request, Turns, goodput, left_of
from theseus_py.agent.server import bind
from theseus_py.agent.state import StateFolder
from theseus_py.agent.traffic import traffic_of

PATIENCE = 60.0
KEY = key_of("job", b"s" * 32)
# Rails of the hosts below: each is an address of its own on loopback.
HERE = ["127.0.0.1", "127.0.1.1", "127.0.2.1"]
THERE = ["127.0.0.2", "127.0.1.2", "127.0.2.2"]
SICK, FINE, OTHER = range(3)


async def eventually(condition: Callable[[], object]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)


def listen(ip: str, port: int = 0) -> socket.socket:
    listener = socket.create_server((ip, port))
    listener.setblocking(False)
    return listener


class Pair:
    """Host a probes host b; b listens at its rails FINE and OTHER, and what is at SICK is the test's."""

    def __init__(
        self, answering_key: bytes = KEY, traffic: Callable[[str], tuple[int, int] | None] = lambda _: None
    ) -> None:
        self.answering_key, self.traffic = answering_key, traffic
        self.answered = 0  # probes that b let in

    async def __aenter__(self) -> Pair:
        self.descriptors = len(os.listdir("/proc/self/fd"))
        first = listen(THERE[FINE])
        self.port = first.getsockname()[1]
        self.listeners = [first, listen(THERE[OTHER], self.port)]
        addresses = {"a": Address(HERE, 1), "b": Address(THERE, self.port)}
        self.a, *self.b = (
            Channel(host, lambda _: None, lambda _: None, lambda *_: None) for host in ("a", *("b" for _ in THERE[1:]))
        )
        self.prober = Prober("a", self.a, addresses.get, self.traffic)
        self.a.join(KEY, frozenset("ab"), {})
        for channel, listener in zip(self.b, self.listeners, strict=True):
            channel.join(self.answering_key, frozenset("ab"), {})
            await channel.serve(listener)
            channel.on_probe = self._counted(Prober("b", channel, addresses.get, self.traffic).answer)
        return self

    def _counted(self, answer: Callable[[ProbeEnd], Awaitable[None]]) -> Callable[[ProbeEnd], Awaitable[None]]:
        def counted(end: ProbeEnd) -> Awaitable[None]:
            self.answered += 1
            return answer(end)

        return counted

    async def __aexit__(self, *_: object) -> None:
        await self.prober.stop()
        for channel in (self.a, *self.b):
            await channel.close()
        # Nothing that a probe opened stays open, however it ended.
        await eventually(lambda: len(os.listdir("/proc/self/fd")) <= self.descriptors)

    async def probe(self, rail: int, reference: int | None) -> list[list[object]]:
        """Return the rows after one probe has ended."""
        self.prober.want("a", "b", rail, reference)
        assert self.prober._tasks
        await eventually(lambda: not self.prober._tasks)
        return self.prober.rows()


class Relay:
    """What lies between a and b on the rail SICK: passes on `rate` bytes a second, after `meddle` had a look."""

    def __init__(self, pair: Pair, rate: float, meddle: Callable[[bytes], bytes] = bytes) -> None:
        self.pair, self.rate, self.meddle = pair, rate, meddle

    async def __aenter__(self) -> None:
        listener = listen(THERE[SICK], self.pair.port)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
        self.tasks: set[asyncio.Task[None]] = set()
        self.server = await asyncio.start_server(self._pass, sock=listener, limit=16 << 10)

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for task in self.tasks:
            task.cancel()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection(THERE[FINE], self.pair.port)
        tasks = [asyncio.ensure_future(self._copy(reader, here, bytes))]
        tasks.append(asyncio.ensure_future(self._copy(there, writer, self.meddle)))
        self.tasks.update(tasks)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for end in (here, writer):
            end.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, meddle: Callable[[bytes], bytes]
    ) -> None:
        try:
            while data := await reader.read(8 << 10):
                writer.write(meddle(data))
                await writer.drain()
                await asyncio.sleep(len(data) / self.rate)
        except OSError:
            pass


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


# --- What is found.


@pytest.mark.parametrize("rate, most", [(4e6, 0.5), (0.2e6, 0.1)], ids=["to its end", "cut short"])
def test_a_slow_path_is_told_from_a_fast_one(rate: float, most: float) -> None:
    """Also where far from all comes through in time. A probe of the fast one says so, too."""

    async def scenario() -> None:
        async with Pair() as pair, Relay(pair, rate):
            ((dst, rail, found, reference, _),) = await pair.probe(SICK, FINE)
            assert (dst, rail) == ("b", SICK)
            assert 0 < found < most * reference  # type: ignore[operator]
            rows = await pair.probe(FINE, OTHER)
            fast = next(row for row in rows if row[1] == FINE)
            assert fast[2] > found and len(rows) == 2  # type: ignore[operator]

    run(scenario)


def test_a_dead_path_is_zero_and_two_are_nothing() -> None:
    """Nobody there, or one who says nothing: 0. Where the reference is no better, no result."""

    async def scenario() -> None:
        async with Pair() as pair:
            ((*_, found, reference, _at),) = await pair.probe(SICK, FINE)
            assert found == 0 and reference > 0  # type: ignore[operator]
        async with Pair() as pair:
            with listen(THERE[SICK], pair.port):
                ((*_, found, reference, _at),) = await pair.probe(SICK, OTHER)
                assert found == 0 and reference > 0  # type: ignore[operator]
        async with Pair() as pair:
            assert await pair.probe(FINE, SICK) == []
        async with Pair() as pair:
            ((*_, found, reference, _at),) = await pair.probe(SICK, None)
            assert (found, reference) == (0, None)

    run(scenario)


def test_the_rate_skips_what_a_bucket_lets_through() -> None:
    """A burst, then an even rate: the rate comes out, whether all came, or a part; nothing is 0."""
    rng = random.Random(1)
    for _ in range(200):
        burst, piece = rng.randrange(1, PROBE_BYTES // 2), rng.randrange(500, PROBE_BYTES // 64)
        arrivals, now = [(5, 0), (6, burst)], 6
        until = rng.choice([PROBE_BYTES, rng.randrange(2 * burst + 2 * piece, 4 * burst + 4 * piece)])
        while arrivals[-1][1] < min(until, PROBE_BYTES):
            total = min(PROBE_BYTES, arrivals[-1][1] + piece)
            now += (total - arrivals[-1][1]) * 100  # 10 bytes a microsecond
            arrivals.append((now, total))
        moved, ns = goodput(arrivals, now)
        assert moved * 1000 / ns == pytest.approx(10, rel=0.1)
    assert goodput([(5, 0)], 1000)[0] == 0
    assert goodput([(5, 0), (10, 700)], 1005) == (700, 1000)
    # Then silence: that counts, too.
    moved, ns = goodput([(0, 0), (1, 100_000), (2, 200_000)], 500_000_000)
    assert moved * 1e9 / ns < 500_000


@pytest.mark.parametrize(
    "probe, reference, left",
    [
        ((4, 0.1), (10, 0), (4, 10)),  # as good as alone on both
        ((4, 0), (1, 9), (4, 10)),  # others on the reference
        ((10, 1), (0.5, 9.5), (10, 10)),
        ((1, 9), (10, 0), None),  # others on a NIC of the probe, which is sound
        ((1, 2), (10, 1), (1, 10)),  # others on it, and yet it carries little
        ((0, 0.1), (10, 0), (0, 10)),
        ((4, 0), (0, 10), None),
        ((0, 9), None, (0, None)),
    ],
)
def test_flows_of_others_make_no_nic_sick_or_sound(
    probe: tuple[float, float], reference: tuple[float, float] | None, left: tuple[float, float | None] | None
) -> None:
    assert left_of(Measured(*probe), None if reference is None else Measured(*reference)) == left


def test_the_counters_of_a_nic_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its address; they grow with what goes through it. An address of nobody has none."""
    monkeypatch.setattr("theseus_py.agent.traffic._names", lambda: {"127.0.0.1": "lo", "10.0.0.1": "gone0"})
    before = traffic_of("127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sender:
        sender.sendall(bytes(5000))
        receiver, _ = listener.accept()
        with receiver:
            receiver.recv(5000, socket.MSG_WAITALL)
    after = traffic_of("127.0.0.1")
    assert before is not None and after is not None
    assert all(now - then >= 5000 for then, now in zip(before, after, strict=True))
    assert traffic_of("10.0.0.1") is None and traffic_of("10.0.0.2") is None


def test_a_crowded_reference_counts_for_all_it_carried() -> None:
    """At either end: as the source's counters say, and as the destination reports its own."""

    async def scenario() -> None:
        for busy, way in ((HERE, 0), (THERE, 1)):
            calls = 0

            def traffic(address: str, busy: list[str] = busy, way: int = way) -> tuple[int, int] | None:
                nonlocal calls
                calls += address == busy[OTHER]
                carried = (10**12 * calls, 0) if way == 0 else (0, 10**12 * calls)
                return carried if address == busy[OTHER] else None

            async with Pair(traffic=traffic) as pair:
                ((*_, found, reference, _at),) = await pair.probe(FINE, OTHER)
                assert calls == 2
                assert found > 0 and reference > 1e12  # type: ignore[operator]

    run(scenario)


# --- Whom they trust.


def test_another_key_gets_no_probe() -> None:
    """Neither side takes the other for one of the job, and nothing is found."""

    async def scenario() -> None:
        async with Pair(key_of("job", b"t" * 32)) as pair:
            assert await pair.probe(FINE, OTHER) == []
            assert await pair.probe(OTHER, None) == []
            assert pair.answered == 0

    run(scenario)


def test_a_stranger_hears_the_handshake_alone() -> None:
    """Who cannot prove the key is let go at once, whatever it sends behind its proof."""

    async def scenario() -> None:
        async with Pair() as pair:
            reader, writer = await asyncio.open_connection(THERE[FINE], pair.port)
            writer.write(b"THSAGENT" + (1).to_bytes(4, "little") + bytes(32))
            await reader.readexactly(44 + 32)
            writer.write(bytes(32) + b"\1\0a" + bytes(1 << 20))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)) as ended:
                await reader.readexactly(1)
            assert getattr(ended.value, "partial", b"") == b"" and pair.answered == 0
            writer.transport.abort()

    run(scenario)


def test_an_answer_that_was_changed_is_no_result() -> None:
    """What somebody in between makes of it is not believed, nor taken for a dead NIC."""

    async def scenario() -> None:
        sent = 0

        def meddle(data: bytes) -> bytes:
            nonlocal sent
            sent += len(data)
            return data[:-1] + bytes([data[-1] ^ 1]) if sent > 44 + 32 else data

        async with Pair() as pair, Relay(pair, 100e6, meddle):
            assert await pair.probe(SICK, FINE) == []
            assert pair.answered == 1 and sent > 44 + 32

    run(scenario)


# --- How often.


def test_asking_often_is_asking_once() -> None:
    """Any number of calls begin one probe, and those that cannot be begin none."""

    async def scenario() -> None:
        async with Pair() as pair:
            for arguments in [
                ("a", "a", 0, 1),
                ("a", "b", 1, 1),
                ("a", "b", 3, 1),
                ("a", "b", 1, -1),
                ("a", "c", 1, 2),
            ]:
                pair.prober.want(*arguments)
            assert not pair.prober._tasks
            for _ in range(100):
                pair.prober.want("a", "b", FINE)
                pair.prober.want("a", "b", OTHER, FINE)  # a NIC that is in use
            assert len(pair.prober._tasks) == 1
            await eventually(pair.prober.rows)
            assert pair.answered == 1

    run(scenario)


def test_turns_are_rare_apart_and_fair() -> None:
    """A flow begins once a second at most, a NIC is in one probe at a time, and whoever keeps asking gets its turn."""
    rng = random.Random(2)
    for _ in range(20):
        turns, now = Turns(), 0.0
        asked = list({Request(*rng.sample("abc", 2), *rng.sample(range(3), 2)) for _ in range(6)})  # type: ignore[call-arg]
        asked = list({each.flow: each for each in asked}.values())
        running: dict[Request, float] = {}
        begun: dict[Request, list[float]] = {each: [] for each in asked}
        while now < 30:
            now += 0.02
            for request in [each for each, end in running.items() if end <= now]:
                turns.done(request)
                del running[request]
            for request in asked:
                if turns.take(request, now):
                    assert not any(request.nics & each.nics for each in running)
                    running[request] = now + rng.uniform(0.01, 1.0)
                    begun[request].append(now)
        for times in begun.values():
            gaps = [after - before for before, after in pairwise(times)]
            # Seven seconds: each of the others once, and one's own.
            assert len(times) > 2 and min(gaps) >= 1.0 and max(gaps) < 7.5


def test_a_probe_that_nobody_reports_does_not_hold_its_nics() -> None:
    """An agent that died in between costs a turn."""
    turns, request = Turns(), Request("a", "b", 0, 1)
    assert turns.take(request, 0.0)
    assert not turns.take(Request("b", "a", 1), 1.5)
    assert turns.take(Request("b", "a", 1), 3.0)


# --- Between agents.


def test_requests_are_read_as_written_and_noise_is_refused() -> None:
    for request in (Request("a", "b", 3, None), Request("a", "höst", 0, 7)):
        assert Request.decode("a", request.encode()) == request
    noise = [b"", b"\0", bytes(4), b"\0\0\1\0", b"\0\0\1\0a", b"\0\0\0\0b", b"\xff\xff\0\0b", b"\0\0\1\0\xff"]
    for payload in noise:
        with pytest.raises(Exception, match=r"\w") as refused:
            Request.decode("a", payload)
        assert isinstance(refused.value, ValueError) or type(refused.value).__name__ == "error"


def test_agents_probe_for_the_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks, the source's agent finds out; noise harms nobody; hosts that have loopback alone are not probed."""

    async def scenario() -> None:
        listeners = [listen(ip) for ip in ("127.0.0.2", "127.0.0.3", "127.0.0.4")]
        addresses = [":".join(map(str, each.getsockname())) for each in listeners]
        hosts = ["a", "b", "c"]
        agents = [
            Agent(f"probe-{os.getpid()}", host, StateFolder(tmp_path, "probe", host), address, life=Life(stay=True))
            for host, address in zip(hosts, addresses, strict=True)
        ]
        names = [bind(f"\0theseus-test-{os.getpid()}-{host}") for host in hosts]
        lives = [
            asyncio.ensure_future(agent.run(*both))
            for agent, *both in zip(agents, names, listeners, strict=True)
        ]  # fmt: skip
        await asyncio.sleep(0)
        members = Members.of(b"s" * 32, list(zip(hosts, addresses, strict=True)))
        for agent in agents:
            agent._join(members)
        await eventually(lambda: any(agent.replica and agent.replica.is_leader for agent in agents))
        leader = next(agent for agent in agents if agent.replica and agent.replica.is_leader)
        source, sink = (agent for agent in agents if agent is not leader)
        await eventually(lambda: source.host in leader.channel.connected)

        leader.prober.want(source.host, sink.host, 0)
        assert not leader.prober._turns._running
        monkeypatch.setattr(Address, "is_loopback", False)
        for kind in (Kind.PROBE, Kind.PROBED):
            for payload in (b"", b"noise", Request("", source.host, 0).encode(), Request("", sink.host, 9).encode()):
                leader.channel.send(source.host, kind, payload)
        leader.prober.want(source.host, sink.host, 0)
        await eventually(source.prober.rows)
        ((dst, rail, rate, reference, _),) = source.prober.rows()
        assert (dst, rail, reference) == (sink.host, 0, None) and rate > 0
        await eventually(lambda: not leader.prober._turns._running)
        leader.prober.want(leader.host, sink.host, 0)
        await eventually(leader.prober.rows)
        assert all(agent.trouble is None and agent.replica is not None for agent in agents)
        for agent in agents:
            agent.stop()
        await asyncio.gather(*lives)
        assert not any(agent.prober._tasks for agent in agents)

    run(scenario)
