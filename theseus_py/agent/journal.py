"""Raft's memory on disk, in the shape that pysyncobj wants.

Written by write(), not through a mapping: a full disk is an OSError, and no signal. What was acknowledged survives the
end of the process; what was half written when it was killed was not acknowledged, and is cut off.

pysyncobj cuts off whatever stands behind the entries that a leader's message is about, and appends those again, even
where they are the same. In between a follower would forget entries that were counted as its own, and vote for somebody
who lacks them. So what is cut off is only set aside: entries that come again take their place again, another one in
their place drops them for good, and `settle` puts back what nobody contradicted.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any, TypeAlias, overload

__all__ = ["Entry", "FileJournal"]

Entry: TypeAlias = tuple[bytes, int, int]  # command, index, term

_HEADER = struct.Struct("<IIQQ")  # length, CRC-32 of the rest, index, term


class FileJournal:
    """Entries in one file, term and vote in another; all entries are in memory, too."""

    def __init__(self, folder: Path) -> None:
        """Opens it, or begins it. OSError: no room, no permission."""
        self._meta_path = folder / "vote"
        self._file = os.open(folder / "journal", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._entries: list[Entry] = []
        self._ends: list[int] = []  # of each entry in the file
        self._aside: list[Entry] = []  # behind the entries, in the file, too
        self._load()
        meta = self._load_meta()
        self._term: int = meta.get("term", 0)
        self._vote: str | None = meta.get("vote")
        # Committed entries beyond the file's end would be waited for in vain.
        last = self._entries[-1][1] if self._entries else 1
        self._commit: int = max(1, min(int(meta.get("commit", 1)), last))
        self._saved = True

    def _load(self) -> None:
        data = memoryview(_read_all(self._file))
        offset = 0
        while offset + _HEADER.size <= len(data):
            length, crc, index, term = _HEADER.unpack_from(data, offset)
            end = offset + _HEADER.size + length
            if end > len(data) or zlib.crc32(data[offset + 8 : end]) != crc:
                break
            self._entries.append((bytes(data[offset + _HEADER.size : end]), index, term))
            self._ends.append(end)
            offset = end
        os.ftruncate(self._file, offset)

    def _load_meta(self) -> dict[str, Any]:
        try:
            meta = json.loads(self._meta_path.read_text())
        except (OSError, ValueError):
            return {}
        return meta if isinstance(meta, dict) else {}

    def _end(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _save_meta(self) -> None:
        temporary = self._meta_path.with_suffix(".new")
        meta = json.dumps({"term": self._term, "vote": self._vote, "commit": self._commit})
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(meta)
        temporary.replace(self._meta_path)
        self._saved = True

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Appends an entry. OSError: no room; the journal is as before."""
        command = bytes(command)
        if self._aside:
            if self._aside[0] == (command, idx, term):
                self._take_back(1)
                return
            self._aside.clear()
            os.ftruncate(self._file, self._end())
        body = struct.pack("<QQ", idx, term) + command
        record = struct.pack("<II", len(command), zlib.crc32(body)) + body
        offset = self._end()
        written = 0
        try:
            while written < len(record):
                written += os.pwrite(self._file, record[written:], offset + written)
        except OSError:
            os.ftruncate(self._file, offset)
            raise
        self._entries.append((command, idx, term))
        self._ends.append(offset + len(record))

    def clear(self) -> None:
        self._entries.clear()
        self._ends.clear()
        self._aside.clear()
        os.ftruncate(self._file, 0)

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Sets entries aside from a place in the list on."""
        self._aside = self._entries[entryFrom:] + self._aside
        del self._entries[entryFrom:]
        del self._ends[entryFrom:]

    def settle(self) -> None:
        """Puts back what was set aside and not contradicted. After each message."""
        self._take_back(len(self._aside))

    def _take_back(self, count: int) -> None:
        for entry in self._aside[:count]:
            self._ends.append(self._end() + _HEADER.size + len(entry[0]))
            self._entries.append(entry)
        del self._aside[:count]

    def deleteEntriesTo(self, entryTo: int) -> None:
        """Would drop the oldest entries; a job's log is never compacted."""
        raise NotImplementedError("a job's journal keeps all entries")

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...
    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Notes what is committed; on disk within a second, as a replay only starts from less."""
        if raftCommitIndex != self._commit:
            self._commit = raftCommitIndex
            self._saved = False

    def getRaftCommitIndex(self) -> int:
        return self._commit

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        """Notes term and vote, on disk before anybody is told. OSError: no room."""
        self._term, self._vote = term, votedForNodeId
        self._save_meta()

    def getCurrentTerm(self) -> int:
        return self._term

    def getVotedForNodeId(self) -> str | None:
        return self._vote

    def onOneSecondTimer(self) -> None:
        if not self._saved:
            self._save_meta()

    def _destroy(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _read_all(descriptor: int) -> bytes:
    parts = []
    offset = 0
    while part := os.pread(descriptor, 1 << 20, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
