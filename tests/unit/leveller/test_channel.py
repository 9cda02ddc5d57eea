"""Who does not know the secret gets nothing, and nothing is believed that was changed on the way."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from leveller.channel import Channel, Refused, connect, read_secret, serve
from leveller.controller.server import ControllerServer
from leveller.controller.state import ControllerState
from leveller.core.levels import LowestRateFirst
from leveller.wire import VERSION, Ask, Hello, JobReport, Levels, Query, Report

SECRET = b"0123456789abcdef"


async def with_echo(client: object, secret: bytes = SECRET) -> None:
    """Runs `client(port)` beside a server that sends back what it gets."""

    async def echo(channel: Channel) -> None:
        while True:
            channel.send(await channel.receive())

    server = await serve("127.0.0.1", 0, secret, echo)
    async with server:
        await client(server.sockets[0].getsockname()[1])  # type: ignore[operator]


def test_both_sides_know_the_secret() -> None:
    """Messages come through."""

    async def client(port: int) -> None:
        channel = await connect("127.0.0.1", port, SECRET)
        for number in range(5):
            channel.send(Ask(number))
            assert await channel.receive() == Ask(number)
        channel.close()

    asyncio.run(with_echo(client))


def test_another_secret_is_refused() -> None:
    """By whoever connects, before it has said anything."""

    async def client(port: int) -> None:
        with pytest.raises(Refused, match="another secret"):
            await connect("127.0.0.1", port, b"another secret of 16")

    asyncio.run(with_echo(client))


@pytest.mark.parametrize("at", [0, 2, 5, -1])
def test_a_changed_byte_ends_the_connection(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever byte of a frame it is."""

    async def client(port: int) -> None:
        channel = await connect("127.0.0.1", port, SECRET)
        real = channel._writer.write

        def tamper(data: bytes) -> None:
            changed = bytearray(data)
            changed[at] ^= 1
            real(bytes(changed))

        monkeypatch.setattr(channel._writer, "write", tamper)
        channel.send(Ask(7))
        channel.send(Ask(8))
        channel._writer.write_eof()
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await channel.receive()

    asyncio.run(with_echo(client))


@pytest.mark.parametrize("junk", [b"", b"GET / HTTP/1.1\r\n\r\n", b"LEVELLER\x09\x00" + bytes(32), os.urandom(200)])
def test_strangers_learn_nothing(junk: bytes) -> None:
    """And the server goes on."""

    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(junk)
        writer.write_eof()
        assert len(await reader.read()) in (0, 74)  # nothing, or a greeting and a proof for a nonce of its own
        channel = await connect("127.0.0.1", port, SECRET)
        channel.send(Ask(1))
        assert await channel.receive() == Ask(1)

    asyncio.run(with_echo(client))


def test_the_secret_is_kept_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that others can read is refused, and so is one that can be guessed."""
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    file.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        read_secret(file)
    file.chmod(0o600)
    assert read_secret(file) == SECRET
    file.write_bytes(b"short")
    with pytest.raises(ValueError, match="fewer than 16"):
        read_secret(file)
    monkeypatch.delenv("LEVELLER_SECRET", raising=False)
    with pytest.raises(ValueError, match="no secret"):
        read_secret(None)


def test_a_controller_asks_ranks_and_answers() -> None:
    """An agent is asked and gets levels; a command is told what it asks for; who breaks the rules is dropped."""

    async def main() -> None:
        server = ControllerServer(ControllerState(LowestRateFirst(2)), SECRET, period=0.05)
        port = await server.listen("127.0.0.1", 0)
        rounds = asyncio.ensure_future(server.run())
        agent = await connect("127.0.0.1", port, SECRET)
        agent.send(Hello(VERSION, "h1"))
        asked = await agent.receive()
        assert isinstance(asked, Ask)
        agent.send(Report(4, asked.round, [JobReport("a", 1, 2.0, ideal=1.0)]))
        while not isinstance(levels := await agent.receive(), Levels):
            pass
        assert (levels.number, levels.levels) == (4, [])
        command = await connect("127.0.0.1", port, SECRET)
        command.send(Hello(VERSION))
        command.send(Query("status"))
        assert b'"rate": 0.5' in (await command.receive()).body  # type: ignore[union-attr]
        command.send(Query("explain", "nobody"))
        assert b"there is no job nobody; there are: a" in (await command.receive()).body  # type: ignore[union-attr]
        agent.send(Ask(1))
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            while True:
                await agent.receive()
        rounds.cancel()
        await server.close()

    asyncio.run(asyncio.wait_for(main(), 20))
