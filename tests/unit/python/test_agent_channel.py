"""The channel between agents, and what goes over it: who knows the secret is in, and nobody else."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from theseus_py import _core
from theseus_py.agent.bodies import Bodies
from theseus_py.agent.channel import LONGEST_FRAME, Address, Channel, Kind, key_of, listen_socket
from theseus_py.agent.exchange import Exchange

PATIENCE = 60.0


class End:
    """One agent's end of the channel, which keeps what happens."""

    def __init__(self, host: str, on_frame: Callable[[str, int, bytes], None] | None = None) -> None:
        self.events: list[tuple[str, str]] = []
        self.frames: list[tuple[str, int, bytes]] = []
        self.channel = Channel(
            host,
            lambda other: self.events.append(("up", other)),
            lambda other: self.events.append(("down", other)),
            on_frame or (lambda *frame: self.frames.append(frame)),
        )
        self.listener = listen_socket(0)
        self.address = Address(["127.0.0.1"], self.listener.getsockname()[1])


async def eventually(condition: Callable[[], object]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)


async def pair(key: bytes, other_key: bytes | None = None) -> tuple[End, End]:
    """Return two ends: b dials a."""
    a, b = End("a"), End("b")
    members = frozenset(("a", "b"))
    for end in (a, b):
        await end.channel.serve(end.listener)
    a.channel.join(key, members, {})
    b.channel.join(other_key or key, members, {"a": a.address})
    return a, b


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


def test_frames_arrive_whole_and_in_order() -> None:
    """Of any length up to the limit, both ways."""

    async def scenario() -> None:
        a, b = await pair(key_of("job", b"s" * 32))
        await eventually(lambda: a.channel.connected == ["b"] and b.channel.connected == ["a"])
        payloads = [b"", b"x", secrets.token_bytes(1000), bytes(LONGEST_FRAME)]
        for payload in payloads:
            assert a.channel.send("b", Kind.RAFT, payload)
            assert b.channel.send("a", Kind.ROWS, payload)
        assert not a.channel.send("c", Kind.RAFT, b"")
        await eventually(lambda: len(a.frames) == len(b.frames) == len(payloads))
        assert b.frames == [("a", Kind.RAFT, payload) for payload in payloads]
        assert a.frames == [("b", Kind.ROWS, payload) for payload in payloads]
        await b.channel.leave()
        await eventually(lambda: a.events == [("up", "b"), ("down", "b")])
        for end in (a, b):
            await end.channel.close()

    run(scenario)


def test_another_secret_or_job_opens_nothing() -> None:
    """Neither end takes the other for a member."""

    async def scenario() -> None:
        for other in (key_of("job", b"t" * 32), key_of("jab", b"s" * 32)):
            a, b = await pair(key_of("job", b"s" * 32), other)
            await asyncio.sleep(0.3)
            assert a.events == b.events == []
            for end in (a, b):
                await end.channel.close()

    run(scenario)


class Meddler:
    """Passes bytes on between two agents, and changes, repeats or drops some of what the connector says."""

    def __init__(self, target: Address, meddle: Callable[[bytes], bytes]) -> None:
        self.target = target
        self.meddle = meddle
        self.port = 0

    async def serve(self) -> None:
        self.server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection("127.0.0.1", self.target.port)

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, change: bool) -> None:
            try:
                while data := await source.read(1 << 16):
                    sink.write(self.meddle(data) if change else data)
            except OSError:
                pass
            sink.close()

        await asyncio.gather(copy(reader, here, True), copy(there, writer, False))


@pytest.mark.parametrize("trick", ["flip", "repeat", "drop"])
def test_what_somebody_in_between_changes_never_arrives(trick: str) -> None:
    """A flipped bit, a repeated or a missing frame ends the connection before anything of it is believed."""

    async def scenario() -> None:
        key, members = key_of("job", b"s" * 32), frozenset(("a", "b"))
        active = False

        def meddle(data: bytes) -> bytes:
            if not active or b"secret word" not in data:
                return data
            at = data.index(b"secret word")
            return {"flip": data[:at] + b"S" + data[at + 1 :], "repeat": data + data, "drop": b""}[trick]

        a, b = End("a"), End("b")
        meddler = Meddler(a.address, meddle)
        await meddler.serve()
        for end in (a, b):
            await end.channel.serve(end.listener)
        a.channel.join(key, members, {})
        b.channel.join(key, members, {"a": Address(["127.0.0.1"], meddler.port)})
        await eventually(lambda: a.channel.connected and b.channel.connected)
        active = True
        b.channel.send("a", Kind.RAFT, b"secret word")
        await asyncio.sleep(0.05)
        b.channel.send("a", Kind.RAFT, b"and another")
        await eventually(lambda: ("down", "b") in a.events)
        assert a.frames == ([("b", Kind.RAFT, b"secret word")] if trick == "repeat" else [])
        for end in (a, b):
            await end.channel.close()
        meddler.server.close()

    run(scenario)


def test_rows_go_to_the_leader_and_do_not_queue() -> None:
    """What is older than the newest is never sent behind it; a host that is lost has no rows."""

    async def scenario() -> None:
        a, b = await pair(key_of("job", b"s" * 32))
        await eventually(lambda: a.channel.connected and b.channel.connected)
        at_leader, at_other = Exchange("a", a.channel), Exchange("b", b.channel)
        for number in range(100):
            at_other.publish({"number": number})
        at_other.send(None)
        at_other.send("a")
        at_other.send("a")  # nothing new
        at_leader.publish({"own": 1})
        at_leader.send("a")
        await eventually(lambda: a.frames)
        await asyncio.sleep(0.05)
        for host, _, payload in a.frames:
            at_leader.receive(host, payload)
        assert len(a.frames) == 1
        assert at_leader.rows == {"a": {"own": 1}, "b": {"number": 99}}
        at_leader.forget("b")
        assert at_leader.rows == {"a": {"own": 1}}
        for strange in (b"", b"[]", b"noise"):
            with pytest.raises(ValueError, match=r"\w"):
                at_leader.receive("b", strange)
        for end in (a, b):
            await end.channel.close()

    run(scenario)


def test_a_plan_comes_in_pieces_and_only_the_right_one_stays(tmp_path: Path) -> None:
    """Fetched from whoever has it; what has another hash is not kept."""

    async def scenario() -> None:
        a, b = await pair(key_of("job", b"s" * 32))
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        at_a, at_b = Bodies(tmp_path / "a", a.channel), Bodies(tmp_path / "b", b.channel)

        def dispatch(bodies: Bodies) -> Callable[[str, int, bytes], None]:
            def take(host: str, kind: int, payload: bytes) -> None:
                bodies.on_fetch(host, payload) if kind == Kind.FETCH else bodies.on_chunk(payload)

            return take

        a.channel._on_frame, b.channel._on_frame = dispatch(at_a), dispatch(at_b)
        body = secrets.token_bytes(1_000_000)
        right, wrong = _core.hash_plan(body), 12345
        at_a.store(right, body)
        (tmp_path / "a" / f"{wrong:016x}").write_bytes(body)
        at_b.want(wrong, len(body))
        at_b.want(right, len(body))
        await eventually(lambda: at_b.has(right))
        assert at_b.path(right).read_bytes() == body
        assert at_b.missing == [wrong] and not at_b.has(wrong)
        assert [each.name for each in (tmp_path / "b").iterdir()] == [f"{right:016x}"]
        at_b.close()
        for end in (a, b):
            await end.channel.close()

    run(scenario)
