"""What ranks (csrc/net/agent_client.cc) and commands say to the node's agent, over an abstract Unix socket.

A stream of frames, little-endian: u32 length of the payload, u32 type, payload. The type's highest bit says that one
descriptor comes along (SCM_RIGHTS); descriptors come in the order of their frames. `text` is u32 length and bytes.
Both sides look at the other's user id (SO_PEERCRED) before anything else.

    HELLO    ->  u32 version, u32 pid, u32 role, u64 nonce, text job, text host; with the flow page's descriptor where
                 there is one. Nonce and ticket name an append for good: whoever asks again is not served twice.
    WELCOME  <-  u32 version, u64 log id (0: none yet), text address, text job, text host, text folder of the plans;
                 with the log's descriptor where there is a log. Comes again whenever any of this changes.
    MEMBERS  ->  text secret, u32 number, number x (text host, text address); the same on every host
    APPEND   ->  u64 ticket, text record; with the plan's descriptor where the record names a hash
    RESULT   <-  u64 ticket, u32 code (csrc/base/result.h), text sentence
    QUERY    ->  u64 ticket, text subject ("status")
    ANSWER   <-  u64 ticket, text JSON
    REPORT   ->  how a rank is doing: reports.py; nobody answers
"""

from __future__ import annotations

import enum
import os
import socket
import struct
from dataclasses import dataclass, field

__all__ = [
    "LONGEST_ANSWER",
    "LONGEST_REQUEST",
    "VERSION",
    "BadFrame",
    "Frame",
    "FrameReader",
    "Kind",
    "Packer",
    "Role",
    "Unpacker",
    "encode_frame",
    "name_hash",
    "peer_is_same_user",
    "socket_name",
]

VERSION = 2
LONGEST_REQUEST = 4 << 20  # what an agent reads
LONGEST_ANSWER = 64 << 20  # what its clients read
_MOST_DESCRIPTORS = 8
_WITH_DESCRIPTOR = 0x80000000
_HEADER = struct.Struct("<II")
_NAME_PREFIX = "theseus-agent"


class Kind(enum.IntEnum):
    """Types of frames."""

    HELLO = 1
    WELCOME = 2
    MEMBERS = 3
    APPEND = 4
    RESULT = 5
    QUERY = 6
    ANSWER = 7
    REPORT = 8


class Role(enum.IntEnum):
    """Who says hello. An agent lives as long as it has ranks; commands come and go."""

    RANK = 0
    COMMAND = 1


class BadFrame(Exception):
    """The other side broke the protocol; the connection is of no more use."""


@dataclass
class Frame:
    """One frame; whoever takes it owns the descriptor."""

    kind: int
    payload: bytes
    descriptor: int | None = None


def name_hash(job: str, host: str) -> int:
    """Returns FNV-1a over both names, as csrc/net/agent_client.cc computes it."""
    value = 0xCBF29CE484222325
    for byte in job.encode() + b"\0" + host.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def socket_name(job: str, host: str) -> str:
    """Returns the agent's abstract name, with its leading zero byte."""
    return f"\0{_NAME_PREFIX}-{os.getuid()}-{name_hash(job, host):016x}"


def peer_is_same_user(connection: socket.socket) -> bool:
    """Returns whether the process at the other end of a Unix socket runs as this user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.geteuid())


class Packer:
    """Writes a payload."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def u32(self, value: int) -> Packer:
        self._parts.append(struct.pack("<I", value))
        return self

    def u64(self, value: int) -> Packer:
        self._parts.append(struct.pack("<Q", value))
        return self

    def text(self, value: str | bytes) -> Packer:
        data = value.encode() if isinstance(value, str) else value
        self.u32(len(data))
        self._parts.append(data)
        return self

    def take(self) -> bytes:
        return b"".join(self._parts)


class Unpacker:
    """Reads a payload, which may be anything: BadFrame where it is too short or not text."""

    def __init__(self, payload: bytes) -> None:
        self._rest = memoryview(payload)

    def _take(self, size: int) -> memoryview:
        if size > len(self._rest):
            raise BadFrame("a message is shorter than it says")
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    def u32(self) -> int:
        return int(struct.unpack("<I", self._take(4))[0])

    def u64(self) -> int:
        return int(struct.unpack("<Q", self._take(8))[0])

    def raw(self) -> bytes:
        return bytes(self._take(self.u32()))

    def text(self) -> str:
        try:
            return self.raw().decode()
        except UnicodeDecodeError:
            raise BadFrame("a name in a message is no text") from None

    def end(self) -> None:
        if len(self._rest) > 0:
            raise BadFrame("a message is longer than it says")


def encode_frame(kind: int, payload: bytes, *, descriptor: bool = False) -> bytes:
    """Returns a frame's bytes; the descriptor itself goes along with the first of them."""
    return _HEADER.pack(len(payload), kind | (_WITH_DESCRIPTOR if descriptor else 0)) + payload


@dataclass
class FrameReader:
    """Cuts what comes over a Unix socket into frames."""

    limit: int
    _bytes: bytearray = field(default_factory=bytearray)
    _descriptors: list[int] = field(default_factory=list)

    def receive(self, connection: socket.socket) -> list[Frame] | None:
        """Returns the frames that are complete after one read; None at the end. BadFrame, OSError: close it."""
        data, descriptors, flags, _ = socket.recv_fds(connection, 1 << 18, _MOST_DESCRIPTORS)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._descriptors += descriptors
        if flags & socket.MSG_CTRUNC or len(self._descriptors) > _MOST_DESCRIPTORS:
            raise BadFrame("too many descriptors in one message")
        if not data:
            return None
        self._bytes += data
        return self._cut()

    def _cut(self) -> list[Frame]:
        frames: list[Frame] = []
        while len(self._bytes) >= _HEADER.size:
            length, kind = _HEADER.unpack_from(self._bytes)
            if length > self.limit:
                raise BadFrame("a message is too long")
            if len(self._bytes) < _HEADER.size + length:
                break
            descriptor = None
            if kind & _WITH_DESCRIPTOR:
                if not self._descriptors:
                    raise BadFrame("a descriptor was announced and did not come")
                descriptor = self._descriptors.pop(0)
            payload = bytes(self._bytes[_HEADER.size : _HEADER.size + length])
            del self._bytes[: _HEADER.size + length]
            frames.append(Frame(kind & ~_WITH_DESCRIPTOR, payload, descriptor))
        return frames

    def close(self) -> None:
        """Closes descriptors that nobody took."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
