"""The agent itself: what the other modules of this package do, put together on one event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import struct
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from theseus_py import _core
from theseus_py.agent.bodies import Bodies
from theseus_py.agent.channel import Address, Channel, Kind, key_of
from theseus_py.agent.exchange import Exchange
from theseus_py.agent.job import JobState, Outcome, beginning
from theseus_py.agent.members import Members
from theseus_py.agent.probe import Prober
from theseus_py.agent.proposals import Proposals
from theseus_py.agent.replica import Replica
from theseus_py.agent.reports import RankReport
from theseus_py.agent.server import Client, Server, result_payload
from theseus_py.agent.state import StateFolder
from theseus_py.agent.wire import VERSION, BadFrame, Packer, Role
from theseus_py.agent.wire import Kind as Frame
from theseus_py.errors import InternalError, TheseusError

__all__ = ["Agent", "Life", "MakeMonitor", "Monitor"]

_log = logging.getLogger(__name__)
_IDLE_TICK_SECONDS = 0.030
_MONITOR_SECONDS = 0.020
_RETRY_SECONDS = 3.0


@dataclass(frozen=True)
class Life:
    """When an agent ends: `grace` seconds after its last rank went, or `patience` after its start if none came."""

    grace: float = 3.0
    patience: float = 20.0
    stay: bool = False  # never by itself
    keep: bool = False  # its folder outlives it


class Monitor(Protocol):
    """Looks at the ranks' flow pages and decides what is to be proposed. Called about every 20 ms."""

    def tick(self) -> None: ...

    def describe(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


MakeMonitor: TypeAlias = "Callable[[Agent], Monitor]"


class Agent:
    """One job's agent on one host."""

    def __init__(
        self,
        job: str,
        host: str,
        state: StateFolder,
        channel_address: str,
        *,
        life: Life | None = None,
        make_monitor: MakeMonitor | None = None,
    ) -> None:
        self.job, self.host = job, host
        self.address = channel_address
        self.channel = Channel(host, self._on_up, self._on_down, self._on_frame)
        self.bodies = Bodies(state.bodies, self.channel)
        self.exchange = Exchange(host, self.channel)
        self.prober = Prober(host, self.channel, self._probed_address)
        self.members: Members | None = None
        self.replica: Replica | None = None
        self.trouble: str | None = None  # why there is no replica at the moment
        self._state = state
        self._life = life or Life()
        self._believers: set[Client] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._own_nonce, self._own_ticket = secrets.randbits(64), 0
        self._server: Server | None = None
        self._end_at: float | None = None
        self._done = asyncio.Event()
        self._new_job_state()
        self._monitor = None if make_monitor is None else make_monitor(self)

    def _new_job_state(self) -> None:
        self.log = JobState(self._state.log, self._welcome_all, self._on_record)
        self.proposals = Proposals(self.log, self.bodies)

    # --- Life.

    async def run(self, listener: Any, channel_listener: Any) -> None:
        """Serves until it is over: the last rank gone, or `stop` called. The folder goes, too, where none needs it."""
        await self.channel.serve(channel_listener)
        self._server = Server(listener, self)
        self._end_at = None if self._life.stay else time.monotonic() + self._life.patience
        kept = Members.from_saved(self._state.load("members.json"))
        if kept is not None and kept.address_of(self.host) is not None:
            self._join(kept)
        self._spawn(self._ticks())
        self._spawn(self._monitoring())
        await self._done.wait()
        in_use = bool(self._server.ranks)
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._monitor is not None:
            self._monitor.close()
        self._part()
        await self.prober.stop()
        await self.channel.close()
        self.bodies.close()
        self.log.writer = None
        if not in_use and not self._life.keep:
            self._state.remove()

    def stop(self) -> None:
        self._done.set()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ticks(self) -> None:
        while True:
            self._tick()
            if self._end_at is not None and time.monotonic() >= self._end_at:
                self.stop()
            await asyncio.sleep(_IDLE_TICK_SECONDS if self.replica is None else self.replica.tick_seconds)

    def _tick(self) -> None:
        if self.replica is None:
            return
        try:
            self.replica.tick()
            if self.log.log_id == 0 and self.replica.is_leader and self.replica.caught_up:
                self.replica.propose(beginning(secrets.randbits(64) | 1), lambda _: None)
            self.log.flush()
            self.exchange.send(self.replica.leader)
        except Exception as error:
            self._fail(error)

    async def _monitoring(self) -> None:
        while self._monitor is not None:
            await asyncio.sleep(_MONITOR_SECONDS)
            try:
                self._monitor.tick()
            except Exception:
                _log.exception("the monitor failed once")

    # --- Agreement.

    def _join(self, members: Members) -> None:
        """Takes part in the job's Raft, from what the journal holds on."""
        self.members = members
        self.channel.join(key_of(self.job, members.secret), members.hosts, members.to_dial(self.host))
        self._take_up()

    def _take_up(self) -> None:
        assert self.members is not None
        try:
            self.replica = Replica(
                self.host,
                self.members.voters,
                self._state.raft,
                lambda host, payload: self.channel.send(host, Kind.RAFT, payload),
                self.log.apply,
            )
        except OSError as error:
            return self._fail(error)
        for host in self.channel.connected:
            self.replica.connected(host)
        self.proposals.replica = self.replica
        self.trouble = None

    def _fail(self, error: Exception) -> None:
        """Raft cannot go on: a full disk, or a defect. Ranks keep what they have; the journal is taken up again."""
        _log.error("raft stopped, and is taken up again: %s", error, exc_info=not isinstance(error, OSError))
        self.trouble = f"the agent's journal cannot be written ({error})" if isinstance(error, OSError) else repr(error)
        self._part()
        self._spawn(self._take_up_later())

    async def _take_up_later(self) -> None:
        await asyncio.sleep(_RETRY_SECONDS)
        if self.replica is None and self.members is not None:
            self.log.replay()
            self._take_up()

    def _part(self) -> None:
        if self.replica is not None:
            replica, self.replica = self.replica, None
            replica.close()
        self.proposals.replica = None
        self.proposals.close()

    async def _begin_anew(self, members: Members) -> None:
        """Another job, or a larger one: nothing of the old log goes on."""
        self.members = None
        self._part()
        await self.prober.stop()
        await self.channel.leave()
        self.log.writer = None
        self.bodies.close()
        self._state.forget()
        self._state.save("port", int(self.address.rpartition(":")[2]))
        self._save(members)
        self._new_job_state()
        self._join(members)

    def _save(self, members: Members) -> None:
        try:
            self._state.save("members.json", members.to_save())
            self._save_ranks()
        except OSError as error:
            _log.error("the members cannot be kept, a restart would lose them: %s", error)

    def _on_up(self, host: str) -> None:
        if self.replica is not None:
            self.replica.connected(host)

    def _on_down(self, host: str) -> None:
        self.exchange.forget(host)
        if self.replica is not None:
            self.replica.lost(host)

    def _on_frame(self, host: str, kind: int, payload: bytes) -> None:
        try:
            if kind == Kind.RAFT and self.replica is not None:
                self.replica.received(host, payload)
            elif kind == Kind.FETCH:
                self.bodies.on_fetch(host, payload)
            elif kind == Kind.CHUNK:
                self.bodies.on_chunk(payload)
            elif kind == Kind.ROWS:
                self.exchange.receive(host, payload)
            elif kind == Kind.PROBE:
                self.prober.on_probe(host, payload)
            elif kind == Kind.PROBED:
                self.prober.on_probed(host, payload)
        except (ValueError, struct.error) as error:
            _log.warning("%s sent what cannot be: %s", host, error)
        except Exception as error:
            self._fail(error)

    def _probed_address(self, host: str) -> Address | None:
        """Returns where a host's agent listens, unless a probe would go over no NIC: virtual hosts on loopback."""
        text = None if self.members is None else self.members.address_of(host)
        address = None if text is None else Address.parse(text)
        return None if address is None or address.is_loopback else address

    def _on_record(self, record: bytes) -> None:
        fields = _core.decode_record(record)
        if fields["kind"] == "schedule" and not fields["algorithm"]:
            self.bodies.want(fields["plan_hash"], fields["plan_bytes"])

    def propose(self, fields: dict[str, Any], body: bytes | None = None) -> None:
        """Proposes a record of this agent's own, for the monitor; what comes of it shows in the log.

        TheseusError: the record cannot be.
        """
        record = _core.encode_record(fields)
        if body is not None:
            self.bodies.store(fields["plan_hash"], body)
        self._own_ticket += 1
        self._spawn(self._propose(struct.pack("<QQ", self._own_nonce, self._own_ticket), record))

    async def _propose(self, ticket: bytes, record: bytes) -> None:
        code, sentence = await self.proposals.agree(ticket, record)
        if code != 0:
            _log.warning("a record of the monitor was refused: %s", sentence)

    def rank_flow_pages(self) -> list[tuple[int, int]]:
        """Returns process id and flow page descriptor of each local rank's process that has one."""
        ranks = [] if self._server is None else self._server.ranks
        return [(client.pid, client.flow_page) for client in ranks if client.flow_page is not None]

    def rank_reports(self) -> list[tuple[float, RankReport]]:
        """Returns what the local ranks last said of their communicators, and when (time.monotonic)."""
        ranks = [] if self._server is None else self._server.ranks
        return [each for client in ranks for each in client.reports.newest()]

    def describe_monitor(self) -> dict[str, Any] | None:
        """Returns what the monitor says of itself, for status."""
        return None if self._monitor is None else self._monitor.describe()

    @property
    def log_path(self) -> Path:
        """Where the job's log lies on this host, once there is one."""
        return self._state.log

    # --- Clients (server.Handler).

    def accepts(self, job: str, host: str) -> bool:
        return (job, host) == (self.job, self.host) or (job, host) == ("", "")

    def greet(self, client: Client) -> None:
        if client.role == Role.RANK:
            self._end_at = None
            self._ranks_changed()
        self._welcome(client)

    def leave(self, client: Client) -> None:
        self._believers.discard(client)
        if client.role != Role.RANK:
            return
        self._ranks_changed()
        if self._server is not None and not self._server.ranks and not self._life.stay:
            self._end_at = time.monotonic() + self._life.grace

    def _ranks_changed(self) -> None:
        try:
            self._save_ranks()
        except OSError as error:
            _log.error("the ranks cannot be noted: %s", error)

    def _save_ranks(self) -> None:
        if self._server is not None and self._server.ranks:
            self._state.save_ranks(client.pid for client in self._server.ranks)

    def _welcome(self, client: Client) -> None:
        payload = Packer().u32(VERSION).u64(0 if self.log.writer is None else self.log.log_id).text(self.address)
        payload.text(self.job).text(self.host).text(str(self._state.bodies))
        client.send(Frame.WELCOME, payload.take(), None if self.log.writer is None else self.log.writer.fileno())

    def _welcome_all(self) -> None:
        for client in [] if self._server is None else list(self._server.clients):
            if client.greeted:
                self._welcome(client)

    def told_members(self, client: Client, secret: bytes, hosts: list[tuple[str, str]]) -> None:
        """Takes what a rank says of who takes part: the first word counts as long as one who said it is there."""
        try:
            members = Members.of(secret, hosts)
        except ValueError as error:
            raise BadFrame(str(error)) from None
        if members.address_of(self.host) is None:
            _log.warning("a rank names members that this host is not one of; ignored")
        elif members == self.members:
            self._believers.add(client)
        elif self.members is None:
            self._believers = {client}
            self._save(members)
            self._join(members)
        elif members.hosts > self.members.hosts or not self._believers:
            self._believers = {client}
            self._spawn(self._begin_anew(members))
        else:
            _log.warning("ranks name different members; the first word counts")

    def append(self, client: Client, ticket: int, record: bytes, descriptor: int | None) -> None:
        self._spawn(self._append(client, ticket, record, descriptor))

    async def _append(self, client: Client, ticket: int, record: bytes, descriptor: int | None) -> None:
        global_ticket = struct.pack("<QQ", client.nonce, ticket)
        outcome: Outcome
        try:
            async with client.turn:
                await self.proposals.examine(record, descriptor)
                agreeing = asyncio.ensure_future(self.proposals.agree(global_ticket, record))
            outcome = await agreeing
        except TheseusError as error:
            outcome = (error.code, error.message)
        except Exception as error:
            _log.exception("an append failed")
            outcome = (InternalError.code, f"the agent failed: {error!r}")
        finally:
            if descriptor is not None:
                os.close(descriptor)
        client.send(Frame.RESULT, result_payload(ticket, *outcome))

    def query(self, client: Client, ticket: int, subject: str) -> None:
        from theseus_py.agent.status import answer

        client.send(Frame.ANSWER, Packer().u64(ticket).text(answer(self, subject)).take())

    @property
    def rank_pids(self) -> list[int]:
        return [] if self._server is None else sorted(client.pid for client in self._server.ranks)
