"""The controller's connections and rounds. Decides nothing: see state.py."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress

from leveller.channel import Channel, Refused, serve
from leveller.controller.state import ControllerState
from leveller.wire import VERSION, Answer, Ask, Hello, Marked, Message, Query, Report

__all__ = ["ControllerServer"]

#: How long a round waits for agents; who is later counts with what it said before.
_PATIENCE = 0.1
_SHORTEST_ROUND = 0.02


class ControllerServer:
    """Asks all agents every `period` seconds, and at once where flows came or went; pushes what changed.

    The policy itself may rank more rarely (leveller.core.lazy).
    """

    def __init__(self, state: ControllerState, secret: bytes, period: float = 1.0) -> None:
        self.state = state
        self._secret = secret
        self._period = period
        self._channels: dict[str, Channel] = {}
        self._server: asyncio.Server | None = None
        self._awaited: set[str] = set()
        self._answered = asyncio.Event()
        self._hurry = asyncio.Event()
        self.round_seconds = 0.0
        self._serving: set[asyncio.Future[None]] = set()

    async def listen(self, host: str | None, port: int) -> int:
        """Opens the door, and returns the port. OSError: it is taken."""
        self._server = await serve(host, port, self._secret, self._serve)
        return int(self._server.sockets[0].getsockname()[1])

    async def run(self) -> None:
        """Rounds, for ever."""
        while True:
            await self.round()
            with suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), self._period)
            self._hurry.clear()
            await asyncio.sleep(_SHORTEST_ROUND)

    async def round(self) -> None:
        """Asks, waits for the answers, ranks, pushes."""
        started = time.monotonic()
        self._awaited = set(self._channels)
        self._answered.clear()
        for host, channel in list(self._channels.items()):
            self._send(host, channel, Ask(self.state.rounds + 1))
        if self._awaited:
            with suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self._answered.wait(), _PATIENCE)
        for host, levels in self.state.rank(time.monotonic()).items():
            if host in self._channels:
                self._send(host, self._channels[host], levels)
        self.round_seconds = time.monotonic() - started

    async def close(self) -> None:
        """Hangs up. Agents keep their levels."""
        if self._server is not None:
            self._server.close()
        for channel in self._channels.values():
            channel.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _send(self, host: str, channel: Channel, message: Message) -> None:
        try:
            channel.send(message)
        except (OSError, Refused):
            channel.close()  # the reader finds the end
            self._awaited.discard(host)

    async def _serve(self, channel: Channel) -> None:
        serving = asyncio.ensure_future(self._serve_one(channel))
        self._serving.add(serving)
        try:
            await serving
        except asyncio.CancelledError:
            serving.cancel()  # the controller closes
        finally:
            self._serving.discard(serving)

    async def _serve_one(self, channel: Channel) -> None:
        hello = await channel.receive()
        if not isinstance(hello, Hello) or hello.version != VERSION:
            raise Refused("it does not say hello")
        if not hello.host:
            return await self._serve_command(channel)
        before = self._channels.get(hello.host)
        if before is not None:
            before.close()
        self._channels[hello.host] = channel
        self.state.join(hello.host, time.monotonic())
        self._hurry.set()
        try:
            while True:
                self._take(hello.host, await channel.receive())
        finally:
            if self._channels.get(hello.host) is channel:
                del self._channels[hello.host]
                self.state.gone(hello.host)
                self._hurry.set()

    def _take(self, host: str, message: Message) -> None:
        if isinstance(message, Report):
            if self.state.report(host, message, time.monotonic()) and message.round == 0:
                self._hurry.set()
            self._awaited.discard(host)
            if not self._awaited:
                self._answered.set()
        elif isinstance(message, Marked):
            self.state.marked(host, message)
        else:
            raise Refused("an agent does not say that")

    async def _serve_command(self, channel: Channel) -> None:
        while True:
            query = await channel.receive()
            if not isinstance(query, Query):
                raise Refused("a command does not say that")
            if query.subject == "status":
                body: object = {**self.state.status(time.monotonic()), "round_seconds": self.round_seconds}
            else:
                try:
                    body = self.state.explain(query.job)
                except KeyError:
                    known = ", ".join(sorted(job["job"] for job in self.state.status(0.0)["jobs"])) or "none"  # type: ignore[attr-defined]
                    body = {"error": f"there is no job {query.job}; there are: {known}"}
            channel.send(Answer(json.dumps(body).encode()))
