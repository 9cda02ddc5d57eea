"""What the agents agreed on, in order: applied to the job's log, and written where the ranks read it.

An entry is a byte and its body: `B`, a log id (the first one begins the log, later ones say nothing); `R`, a ticket
and a record. Every agent applies the same entries to the same log and refuses the same ones; a refused record leaves
nothing behind but its ticket's result. A ticket that comes twice, because whoever proposed it did not
hear of its fate, counts once.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path

from theseus_py import _core
from theseus_py.errors import InvalidUsage, SystemError_, TheseusError

__all__ = ["TICKET_BYTES", "JobState", "Outcome", "beginning", "entry_of"]

TICKET_BYTES = 16
Outcome = tuple[int, str]  # code (csrc/base/result.h), sentence


def beginning(log_id: int) -> bytes:
    """Returns the entry that begins a log."""
    return b"B" + struct.pack("<Q", log_id)


def entry_of(ticket: bytes, record: bytes) -> bytes:
    """Returns the entry of a record."""
    return b"R" + ticket + record


class JobState:
    """The log so far. `on_log()` is called when it begins, `on_record(record)` for each that is taken."""

    def __init__(
        self, path: Path, on_log: Callable[[], None], on_record: Callable[[bytes], None], capacity: int = 64 << 20
    ) -> None:
        self._path = path
        self._capacity = capacity
        self._on_log, self._on_record = on_log, on_record
        self.context: _core.ContextLog | None = None
        self.writer: _core.SharedLogWriter | None = None
        self.frozen: str | None = None  # why what ranks see stands still
        self.outcomes: dict[bytes, Outcome] = {}
        self._waiting: dict[bytes, Callable[[Outcome], None]] = {}
        self._unwritten: deque[tuple[int, bytes]] = deque()
        self._forked = False
        self._replays = False

    @property
    def log_id(self) -> int:
        return 0 if self.context is None else self.context.id

    @property
    def position(self) -> int:
        return 0 if self.context is None else self.context.position

    @property
    def written(self) -> int:
        """How many records ranks can read."""
        return 0 if self.writer is None else self.writer.count

    def when_decided(self, ticket: bytes, callback: Callable[[Outcome], None]) -> None:
        """Calls back once the ticket's record was applied or refused; at once where it was already."""
        if ticket in self.outcomes:
            callback(self.outcomes[ticket])
        else:
            self._waiting[ticket] = callback

    def forget(self, ticket: bytes) -> None:
        self._waiting.pop(ticket, None)

    def replay(self) -> None:
        """Expects all entries again, from the first one on. Ranks keep what they have read meanwhile."""
        self._replays = True
        self.outcomes.clear()

    def apply(self, entry: bytes) -> None:
        """Takes the next entry, which may be anything."""
        kind, body = entry[:1], entry[1:]
        if kind == b"B" and len(body) == 8:
            self._begin(struct.unpack("<Q", body)[0])
        elif kind == b"R" and len(body) >= TICKET_BYTES:
            ticket, record = body[:TICKET_BYTES], body[TICKET_BYTES:]
            if ticket not in self.outcomes:
                self._decide(ticket, self._append(record))

    def _begin(self, log_id: int) -> None:
        if log_id == 0 or not (self.context is None or self._replays):
            return
        if self.context is not None and self.context.id != log_id:
            self.writer = None
        self._replays = False
        self.context = _core.ContextLog(log_id)
        self._unwritten.clear()
        self.flush()

    def _append(self, record: bytes) -> Outcome:
        if self.context is None or self._replays:
            return (InvalidUsage.code, "the job's log has not begun")
        try:
            index = self.context.position
            self.context.apply(record)
        except TheseusError as error:
            return (error.code, error.message)
        self._unwritten.append((index, record))
        self.flush()
        self._on_record(record)
        return (0, "")

    def _decide(self, ticket: bytes, outcome: Outcome) -> None:
        self.outcomes[ticket] = outcome
        callback = self._waiting.pop(ticket, None)
        if callback is not None:
            callback(outcome)

    def flush(self) -> None:
        """Writes what ranks cannot read yet. Call it now and then: a full disk may have room again."""
        if self.context is None or self._replays or self._forked:
            return
        try:
            if self.writer is None:
                self._open_writer(self.context.id)
            assert self.writer is not None
            while self._unwritten:
                self.writer.append(*self._unwritten[0])
                self._unwritten.popleft()
            self.frozen = None
        except TheseusError as error:
            # Ranks keep what they have, and collectives go on.
            self.frozen = error.message
            self._forked = self._forked or (self.writer is not None and self.writer.frozen)

    def _open_writer(self, log_id: int) -> None:
        self._clear_remains(log_id)
        self.writer = _core.SharedLogWriter(str(self._path), log_id, self._capacity)
        self._on_log()

    def _clear_remains(self, log_id: int) -> None:
        """Removes the file of a log that is over, or is damaged: it is written again from the journal."""
        if not self._path.exists():
            return
        try:
            reader = _core.SharedLogReader(str(self._path))
            while reader.next() is not None:
                pass
        except SystemError_:
            self._path.unlink()
            return
        if reader.log_id != log_id:
            self._path.unlink()
        elif reader.frozen:
            self._forked = True
            raise InvalidUsage("the job's log was frozen before: agents' logs have forked")

    def freeze(self, reason: str) -> None:
        """Lets ranks see nothing more of this log."""
        self._forked = True
        self.frozen = reason
        if self.writer is not None:
            self.writer.freeze()
