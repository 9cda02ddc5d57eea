"""Raft among the agents, by pysyncobj.

pysyncobj thinks, and does nothing else: its messages go over our own channel (`channel`), which knows who is who before
a byte is unpickled; its entries go to our own journal; its clock is our event loop, one call of `tick` at a time. At
most five agents vote; the others follow read-only, and pass what they propose to the leader.

pysyncobj by itself leaves a proposal until the next heartbeat, what followers acknowledge until the next tick, and what
is committed until the heartbeat after. Here all that is done at once, where there is something to do: an entry takes
trips between agents, not heartbeats, and an idle job costs what it would.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pysyncobj.syncobj
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from theseus_py.agent.journal import FileJournal

__all__ = ["MOST_VOTERS", "RETRY_REASONS", "Replica", "voters_of"]

MOST_VOTERS = 5
# A second attempt may succeed.
RETRY_REASONS = {
    FAIL_REASON.QUEUE_FULL: "too much is waiting",
    FAIL_REASON.MISSING_LEADER: "there is no leader",
    FAIL_REASON.DISCARDED: "the leader changed",
    FAIL_REASON.NOT_LEADER: "the leader changed",
    FAIL_REASON.LEADER_CHANGED: "the leader changed",
    FAIL_REASON.REQUEST_DENIED: "the leader refused",
    FAIL_REASON.UNKNOWN_OUTCOME: "the leader lost track",
}

# Heartbeats. Entries go in batches: with a message for each, pysyncobj 0.3.17 now and then cuts off some that were
# applied.
_PERIOD = 0.030
# More than a busy machine keeps an agent from running: with 0.3 to 0.6 s, five agents and a load of 10 on two cores had
# an election a second.
_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 1.5, 2.5
_FALLBACK = 4.0
_FOR_EVER = 10.0**9
_ACKNOWLEDGEMENT = "next_node_idx"
_PROPOSAL = "apply_command"


def voters_of(hosts: Sequence[str]) -> list[str]:
    """Returns the hosts whose agents vote: the first ones."""
    return list(hosts[: min(len(hosts), MOST_VOTERS)])


class _PlainUnpickler(pickle.Unpickler):
    """Numbers, text, bytes, lists and dicts: raft's messages hold nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a message of raft")


class _ChannelTransport(Transport):  # type: ignore[misc]
    """Hands messages to the channel, and what comes from it to pysyncobj."""

    def __init__(self, send: Callable[[str, bytes], bool], voters: Sequence[str]) -> None:
        super().__init__(None, None, [])
        self._send = send
        self._voters = {host: Node(host) for host in voters}
        self._followers: dict[str, Node] = {}
        self.term: Callable[[], int] = lambda: 0

    def send(self, node: Node, message: Any) -> bool:
        if message["type"] == _ACKNOWLEDGEMENT:
            message = {**message, "term": self.term()}
        return self._send(node.id, pickle.dumps(message, protocol=4))

    def connected(self, host: str) -> None:
        if host in self._voters:
            self._onNodeConnected(self._voters[host])
        else:
            self._followers[host] = Node(host)
            self._onReadonlyNodeConnected(self._followers[host])

    def lost(self, host: str) -> None:
        if host in self._voters:
            self._onNodeDisconnected(self._voters[host])
        elif (node := self._followers.pop(host, None)) is not None:
            self._onReadonlyNodeDisconnected(node)

    def received(self, host: str, payload: bytes, machine: _Machine) -> str:
        """Hands a message on and returns its type."""
        node = self._voters.get(host) or self._followers.get(host)
        message = _PlainUnpickler(io.BytesIO(payload)).load()
        kind = str(message["type"])
        acknowledges = kind == _ACKNOWLEDGEMENT
        # pysyncobj believes what a follower acknowledged to an earlier leader, of a log that may have changed since.
        if node is None or (acknowledges and message["term"] != self.term()):
            return kind
        with machine.never_sending_twice(node) if acknowledges and not message["reset"] else contextlib.nullcontext():
            self._onMessageReceived(node, message)
        return kind


class _Machine(SyncObj):  # type: ignore[misc]
    """What is replicated: one method, whose argument every agent gets in the same order."""

    def __init__(self, apply: Callable[[bytes], None], *arguments: Any, **keywords: Any) -> None:
        self._apply = apply
        super().__init__(*arguments, **keywords)

    @replicated  # type: ignore[untyped-decorator]
    def entry(self, data: bytes) -> None:
        self._apply(data)

    @property
    def progress(self) -> tuple[int, int]:
        """What is committed, and what is in the log, as far as this agent knows."""
        return int(self.raftCommitIndex), int(self._SyncObj__raftLog[-1][1])

    @property
    def has_work(self) -> bool:
        """Whether a tick may apply an entry, or find one committed."""
        committed, appended = self.progress
        return committed > self.raftLastApplied or bool(self._isLeader() and appended > committed)

    def send_at_next_tick(self) -> None:
        """Lets a leader's next tick send what followers lack, and what is committed."""
        self._SyncObj__newAppendEntriesTime = 0.0

    @contextlib.contextmanager
    def never_sending_twice(self, node: Node) -> Iterator[None]:
        """An acknowledgement of some entries says nothing of later ones, which are on their way and in order: pysyncobj
        would send those again, and followers cut off and append what they have already. Lost ones are asked for.
        """
        ahead = self._SyncObj__raftNextIndex
        before = ahead.get(node, 0)
        yield
        if node in ahead:
            ahead[node] = max(before, ahead[node])


class Replica:
    """One agent's part. All calls on the event loop's thread."""

    def __init__(
        self,
        host: str,
        voters: Sequence[str],
        folder: Path,
        send: Callable[[str, bytes], bool],
        apply: Callable[[bytes], None],
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """Takes up the journal in `folder`: `apply` gets committed entries from the first one on, at coming ticks.

        `send(host, bytes)` says whether the message went off. `soon` calls back when whoever calls here is done; if not
        given, the event loop. OSError: no room.
        """
        self._soon = soon or (lambda function: asyncio.get_running_loop().call_soon(function))
        self._hurries = False
        self._failure: Exception | None = None
        self._told = (0, 0)  # progress at the last message to all
        self._transport = _ChannelTransport(send, voters)
        settings = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=True,
            appendEntriesPeriod=_PERIOD,
            raftMinTimeout=_SHORTEST_TIMEOUT,
            raftMaxTimeout=_LONGEST_TIMEOUT,
            leaderFallbackTimeout=_FALLBACK,
            # An entry never comes in parts: pysyncobj ends a series of them too early where sizes meet its limit.
            appendEntriesBatchSizeBytes=4 << 20,
            # Ids follow from positions, so nothing is ever compacted.
            logCompactionMinEntries=10**9,
            logCompactionMinTime=_FOR_EVER,
            commandsWaitLeader=False,
            journalFile=str(folder),
        )
        own = Node(host) if host in voters else None
        others = [Node(each) for each in voters if each != host]
        self._journal = FileJournal(folder)
        self._machine = _with_journal(
            lambda: _Machine(apply, own, others, conf=settings, transport=self._transport), self._journal
        )
        self._transport.term = lambda: self.term
        self.tick_seconds = _PERIOD if not others else _PERIOD / 2

    def tick(self) -> None:
        """Thinks. OSError: no room for the journal; the replica is of no more use until it is made anew."""
        if self._failure is not None:
            raise self._failure
        self._machine.doTick(0)
        # What is appended or committed by now went into no message of that tick.
        if self.is_leader and self._machine.progress != self._told:
            self._told = self._machine.progress
            self._machine.send_at_next_tick()
            self._machine.doTick(0)

    def _hurry(self) -> None:
        """Thinks as soon as whoever is at it now is done, once for all that has come together by then."""
        if not self._hurries and self._failure is None:
            self._hurries = True
            self._soon(self._tick_at_once)

    def _tick_at_once(self) -> None:
        if not self._hurries:
            return  # closed meanwhile
        self._hurries = False
        try:
            self.tick()
        except Exception as error:
            self._failure = error  # the next tick's, whose caller knows what to do

    def propose(self, data: bytes, failed: Callable[[str], None]) -> None:
        """Asks for an entry; `failed(why)` where it surely or perhaps was not taken. Success shows by `apply`."""

        def done(_: object, reason: int) -> None:
            if reason != FAIL_REASON.SUCCESS:
                failed(RETRY_REASONS.get(reason, f"error {reason}"))

        self._machine.entry(data, callback=done)
        self._hurry()

    def connected(self, host: str) -> None:
        self._transport.connected(host)

    def lost(self, host: str) -> None:
        self._transport.lost(host)

    def received(self, host: str, payload: bytes) -> None:
        """Takes a message. pickle.UnpicklingError, KeyError...: it was none; OSError: no room for the journal."""
        try:
            kind = self._transport.received(host, payload, self._machine)
        finally:
            self._journal.settle()
        if kind == _PROPOSAL or self._machine.has_work:
            self._hurry()

    @property
    def is_leader(self) -> bool:
        return bool(self._machine._isLeader())

    @property
    def leader(self) -> str | None:
        """Whom this agent takes for the leader; not to be trusted for more than a hint."""
        node = self._machine._getLeader()
        return None if node is None else str(node.id)

    @property
    def has_quorum(self) -> bool:
        return bool(self._machine.hasQuorum)

    @property
    def caught_up(self) -> bool:
        """Whether all that was committed when this agent started has been applied."""
        return bool(self._machine.isReady())

    @property
    def term(self) -> int:
        return int(self._machine.raftCurrentTerm)

    def close(self) -> None:
        self._hurries = False
        self._machine.destroy()


def _with_journal(make: Callable[[], _Machine], journal: FileJournal) -> _Machine:
    """Returns what `make` makes, with our journal in it: pysyncobj has no other way to be given one."""
    module = pysyncobj.syncobj
    original = module.createJournal
    module.createJournal = lambda _: journal
    try:
        return make()
    finally:
        module.createJournal = original
