"""Raft among the agents, by pysyncobj.

pysyncobj thinks, and does nothing else: its messages go over our own channel (`channel`), which knows who is who before
a byte is unpickled; its entries go to our own journal; its clock is our event loop, one call of `tick` at a time. At
most five agents vote; the others follow read-only, and pass what they propose to the leader.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
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

# Batches of 30 ms: proposals take 31 ms at the leader, 62 ms from elsewhere. Without batches pysyncobj 0.3.17 now and
# then cuts off entries that were applied.
_PERIOD = 0.030
# More than a busy machine keeps an agent from running: with 0.3 to 0.6 s, five agents and a load of 10 on two cores had
# an election a second.
_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 1.0, 2.0
_FALLBACK = 3.0
_FOR_EVER = 10.0**9
_ACKNOWLEDGEMENT = "next_node_idx"


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

    def received(self, host: str, payload: bytes) -> None:
        node = self._voters.get(host) or self._followers.get(host)
        message = _PlainUnpickler(io.BytesIO(payload)).load()
        # pysyncobj believes what a follower acknowledged to an earlier leader, of a log that may have changed since.
        late = message["type"] == _ACKNOWLEDGEMENT and message["term"] != self.term()
        if node is not None and not late:
            self._onMessageReceived(node, message)


class _Machine(SyncObj):  # type: ignore[misc]
    """What is replicated: one method, whose argument every agent gets in the same order."""

    def __init__(self, apply: Callable[[bytes], None], *arguments: Any, **keywords: Any) -> None:
        self._apply = apply
        super().__init__(*arguments, **keywords)

    @replicated  # type: ignore[untyped-decorator]
    def entry(self, data: bytes) -> None:
        self._apply(data)


class Replica:
    """One agent's part. All calls on the event loop's thread."""

    def __init__(
        self,
        host: str,
        voters: Sequence[str],
        folder: Path,
        send: Callable[[str, bytes], bool],
        apply: Callable[[bytes], None],
    ) -> None:
        """Takes up the journal in `folder`: `apply` gets committed entries from the first one on, at coming ticks.

        `send(host, bytes)` says whether the message went off. OSError: no room.
        """
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
        self._machine.doTick(0)

    def propose(self, data: bytes, failed: Callable[[str], None]) -> None:
        """Asks for an entry; `failed(why)` where it surely or perhaps was not taken. Success shows by `apply`."""

        def done(_: object, reason: int) -> None:
            if reason != FAIL_REASON.SUCCESS:
                failed(RETRY_REASONS.get(reason, f"error {reason}"))

        self._machine.entry(data, callback=done)

    def connected(self, host: str) -> None:
        self._transport.connected(host)

    def lost(self, host: str) -> None:
        self._transport.lost(host)

    def received(self, host: str, payload: bytes) -> None:
        """Takes a message. pickle.UnpicklingError, KeyError...: it was none; OSError: no room for the journal."""
        try:
            self._transport.received(host, payload)
        finally:
            self._journal.settle()

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
