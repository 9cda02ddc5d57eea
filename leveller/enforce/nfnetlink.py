"""Netlink as nf_tables speaks it: attributes, messages, transactions and dumps.

Spoken here instead of by libnftables: that reads all elements of a set before it deletes one of them, so that changing
100 of 4,000 flows took 45 ms; and nothing needs to be installed. The numbers are of linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

__all__ = ["Message", "Nfnetlink", "NftError", "attribute", "attributes", "nested", "number", "text"]

_HEADER = struct.Struct("=IHHII")
_GENERIC = struct.Struct("!BBH")
_ATTRIBUTE = struct.Struct("=HH")
_NESTED = 0x8000
_KIND = 0x3FFF  # without the flags "nested" and "network order"
_NETFILTER, _SUBSYSTEM = 12, 10
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_ERROR, _DONE = 2, 3
_REQUEST, _ACKNOWLEDGE, _DUMP, _INTERRUPTED = 1, 4, 0x300, 0x10
_SOL_NETLINK, _NO_ECHO, _SNDBUFFORCE = 270, 10, 32
_LONGEST_ANSWER = 1 << 18
_MOST_DUMPS = 5


class NftError(OSError):
    """nf_tables refused, or is not there. Nothing was changed."""


class Message(NamedTuple):
    """A request to nf_tables, or part of its answer: NFT_MSG_*, the address family, flags, encoded attributes."""

    kind: int
    family: int
    flags: int
    body: bytes


def attribute(kind: int, value: bytes) -> bytes:
    """Encodes one attribute, padded."""
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def nested(kind: int, *parts: bytes) -> bytes:
    """Encodes an attribute that holds attributes."""
    return attribute(kind | _NESTED, b"".join(parts))


def number(kind: int, value: int) -> bytes:
    """Encodes a number of 32 bits; negative ones too."""
    return attribute(kind, struct.pack("!I", value & 0xFFFFFFFF))


def text(kind: int, value: str) -> bytes:
    """Encodes a text."""
    return attribute(kind, value.encode() + b"\0")


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Reads attributes, without their flags. ValueError: one is shorter than it says."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size or at + length > len(data):
            raise ValueError("an attribute of nf_tables is shorter than it says")
        yield kind & _KIND, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


def encode(message: Message, sequence: int) -> bytes:
    """Encodes a request to nf_tables."""
    return _encode(_SUBSYSTEM << 8 | message.kind, message.flags, sequence, message.family, 0, message.body)


def transaction(messages: Sequence[Message], sequence: int) -> bytes:
    """Encodes requests that happen at once or not at all; the last of them, `sequence`, is acknowledged."""
    begin = _encode(_BATCH_BEGIN, _REQUEST, 0, 0, _SUBSYSTEM, b"")
    end = _encode(_BATCH_END, _REQUEST, 0, 0, _SUBSYSTEM, b"")
    last = messages[-1]._replace(flags=messages[-1].flags | _ACKNOWLEDGE)
    return begin + b"".join(encode(each, 0) for each in messages[:-1]) + encode(last, sequence) + end


def _encode(kind: int, flags: int, sequence: int, family: int, resource: int, body: bytes) -> bytes:
    length = _HEADER.size + _GENERIC.size + len(body)
    return _HEADER.pack(length, kind, flags | _REQUEST, sequence, 0) + _GENERIC.pack(family, 0, resource) + body


class Answer(NamedTuple):
    """One message of the kernel. `error`: an errno, 0 for "done as asked", None: it is neither."""

    message: Message
    sequence: int
    error: int | None


def parse(data: bytes) -> Iterator[Answer]:
    """Reads what one datagram of the kernel holds. ValueError: a message is shorter than it says."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            raise ValueError("a message of nf_tables is shorter than it says")
        body = data[at + _HEADER.size : at + length]
        if kind in (_ERROR, _DONE):
            code = -struct.unpack_from("=i", body)[0] if len(body) >= 4 else 0
            yield Answer(Message(kind, 0, flags, b""), sequence, code)
        elif kind >> 8 == _SUBSYSTEM:
            if len(body) < _GENERIC.size:
                raise ValueError("a message of nf_tables is too short")
            yield Answer(Message(kind & 0xFF, body[0], flags, body[_GENERIC.size :]), sequence, None)
        at += (length + 3) & ~3


class Nfnetlink:
    """A socket to nf_tables, in the network namespace of the thread that makes it.

    A table with the flag "owner" lives as long as this socket: the kernel removes it, however the process ends.
    """

    def __init__(self) -> None:
        self._sequence = 0
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETFILTER)
        except OSError as error:
            raise _refused(error.errno or errno.EPROTONOSUPPORT) from None
        with suppress(OSError):
            self._socket.setsockopt(_SOL_NETLINK, _NO_ECHO, 1)

    def change(self, messages: Sequence[Message]) -> None:
        """Does all of it, or nothing and raises NftError."""
        self._sequence += 1
        data = transaction(messages, self._sequence)
        answers = list(self._ask(data))
        failed = [answer.error for answer in answers if answer.error]
        if failed:
            raise _refused(failed[0])
        if not any(answer.sequence == self._sequence and answer.error == 0 for answer in answers):
            raise NftError(errno.EPROTO, "nf_tables did not answer")

    def get(self, message: Message) -> Message | None:
        """Returns what one request is answered with; None: there is no such thing."""
        self._sequence += 1
        for answer in self._ask(encode(message, self._sequence)):
            if answer.error == errno.ENOENT:
                return None
            if answer.error:
                raise _refused(answer.error)
            if answer.error is None:
                return answer.message
        return None

    def dump(self, message: Message) -> list[Message]:
        """Returns everything that a request lists; asks again where that changed meanwhile."""
        for _ in range(_MOST_DUMPS):
            self._sequence += 1
            found, whole = self._dump(encode(message._replace(flags=message.flags | _DUMP), self._sequence))
            if whole:
                return found
        raise NftError(errno.EAGAIN, "the ruleset changes too fast to be read")

    def _dump(self, data: bytes) -> tuple[list[Message], bool]:
        found, whole = [], True
        for answer in self._ask(data):
            if answer.sequence != self._sequence:
                continue
            whole = whole and not answer.message.flags & _INTERRUPTED
            if answer.error is None:
                found.append(answer.message)
            elif answer.error in (0, errno.EINTR):
                return found, whole and not answer.error
            else:
                raise _refused(answer.error)
        raise NftError(errno.EPROTO, "nf_tables did not answer")

    def _ask(self, data: bytes) -> Iterator[Answer]:
        """Sends, and yields the answers: the kernel has them ready when sending returns, or makes them as we read."""
        try:
            self._send(data)
            while True:
                yield from self._parsed(self._socket.recv(_LONGEST_ANSWER, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return
        except NftError:
            raise
        except OSError as error:
            raise _refused(error.errno or errno.EIO) from None

    def _send(self, data: bytes) -> None:
        """A transaction is one datagram, however long."""
        if 2 * len(data) > self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF):
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, _SNDBUFFORCE, 2 * len(data))
        self._socket.send(data)

    @staticmethod
    def _parsed(data: bytes) -> list[Answer]:
        try:
            return list(parse(data))
        except ValueError as error:
            raise NftError(errno.EPROTO, str(error)) from None

    def close(self) -> None:
        """Gives the socket up, and with it tables that it owns."""
        self._socket.close()


def _refused(code: int) -> NftError:
    why = {
        errno.EPERM: "root, or CAP_NET_ADMIN in this network namespace, is needed; or the table is somebody else's",
        errno.EPROTONOSUPPORT: "this kernel has no nf_tables",
        errno.EBADF: "it has been closed",
    }.get(code, os.strerror(code))
    return NftError(code, f"nf_tables refused: {why}")
