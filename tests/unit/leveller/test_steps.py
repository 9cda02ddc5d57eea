"""A training that says its steps is heard, and never waits for whoever hears it."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable

import pytest

from leveller.jobs import theseus
from leveller.jobs.theseus import BadFrame, TheseusJobs, parse_hello
from theseus_py import progress


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    """A socket of this test's own, and no step said so far."""
    made = f"\0theseus-leveller-test-{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setattr(theseus, "NAME", made)
    monkeypatch.setattr(progress, "_NAME", made)
    monkeypatch.setattr(progress, "_progress", progress._Progress())
    monkeypatch.setenv("LEVELLER_JOB", "llama")
    return made


def listening(body: Callable[[TheseusJobs, list[tuple[str, int, float]]], Awaitable[None]]) -> None:
    async def main() -> None:
        said: list[tuple[str, int, float]] = []
        jobs = TheseusJobs(lambda *each: said.append(each))
        await jobs.listen()
        try:
            await body(jobs, said)
        finally:
            jobs.close()

    asyncio.run(asyncio.wait_for(main(), 20))


async def until(true: Callable[[], object]) -> None:
    while not true():
        await asyncio.sleep(0.005)


@pytest.mark.usefixtures("name")
def test_steps_are_heard() -> None:
    """With job, count, time and process; several at once are one."""

    async def body(jobs: TheseusJobs, said: list[tuple[str, int, float]]) -> None:
        progress.step()
        progress.step(3)
        await until(lambda: len(said) == 2)
        assert [each[:2] for each in said] == [("llama", 1), ("llama", 4)]
        assert said[0][2] == pytest.approx(time.monotonic(), abs=10)
        assert jobs.processes == {os.getpid(): "llama"}

    listening(body)


@pytest.mark.usefixtures("name")
def test_steps_before_an_agent_came_are_counted() -> None:
    """Nobody hears the first two; the third says three."""
    progress.step(2)

    async def body(_: TheseusJobs, said: list[tuple[str, int, float]]) -> None:
        progress._progress._try_at = 0.0
        progress.step()
        await until(lambda: said)
        assert said[0][:2] == ("llama", 3)

    listening(body)


@pytest.mark.usefixtures("name")
def test_an_agent_that_is_gone_disturbs_nobody() -> None:
    """And one that comes after it hears all steps."""
    listening(lambda *_: asyncio.sleep(0))
    for _ in range(3):
        progress.step()

    async def body(_: TheseusJobs, said: list[tuple[str, int, float]]) -> None:
        progress._progress._try_at = 0.0
        progress.step()
        await until(lambda: said)
        assert said[-1][:2] == ("llama", 4)

    listening(body)


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"GET / HTTP/1.1",
        struct.pack("<II", 1 << 20, 1),
        struct.pack("<II", 4, 1) + b"\xff" * 4,
        struct.pack("<II", 16, 4) + bytes(16),
    ],
)
def test_strangers_are_dropped(name: str, junk: bytes) -> None:
    """Others are heard all the same."""

    async def body(_: TheseusJobs, said: list[tuple[str, int, float]]) -> None:
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(name)
        stranger.sendall(junk)
        stranger.shutdown(socket.SHUT_WR)
        progress.step()
        await until(lambda: said)
        assert len(said) == 1
        stranger.close()

    listening(body)


@pytest.mark.parametrize(
    "payload", [b"", bytes(12), struct.pack("<III", 1, 1, 900) + b"a", struct.pack("<III", 1, 1, 3) + b"a b"]
)
def test_a_greeting_has_a_version_and_a_name(payload: bytes) -> None:
    """Else it is none."""
    with pytest.raises(BadFrame):
        parse_hello(payload)


def test_no_step_is_no_step() -> None:
    """A count below one is a mistake of the caller's."""
    with pytest.raises(ValueError, match="1 or more"):
        progress.step(0)
