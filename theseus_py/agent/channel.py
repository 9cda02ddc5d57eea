"""Authenticated TCP connections between the agents of a job, one a pair.

Whoever does not know the job's secret gets nothing and gives nothing: both sides prove that they know it before a byte
of payload is read, and each frame carries a tag under keys of this connection alone, numbered, so that nothing can be
put in, left out or repeated. Nothing is encrypted.

    connector -> magic, version, nonce
    acceptor  -> magic, version, nonce, proof
    connector -> proof, u16 length, own name
    frames    -> u32 length, u8 kind, payload, 16 bytes of HMAC-SHA256 over number, length, kind and payload

An agent dials those that stand before it in the list of members, over one address after the other until one answers. A
connector that proves the purpose "probe" instead of "connector" joins nothing: its connection is there
to measure the path (probe.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import hashlib
import hmac
import os
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass

__all__ = ["LONGEST_FRAME", "Address", "Channel", "Kind", "ProbeEnd", "key_of", "listen_socket"]

LONGEST_FRAME = 8 << 20
_MOST_BACKLOG = 64 << 20  # a peer that reads nothing is dropped
_MAGIC = b"THSAGENT"
_VERSION = 1
_HELLO = struct.Struct("<8sI32s")
_HEAD = struct.Struct("<IB")
_TAG = 16
_PING_SECONDS = 0.1
# A link over a NIC that died is made anew over another one before Raft elects another leader (replica.py).
_DEAD_SECONDS = 0.8
_HANDSHAKE_SECONDS = 2.0
_NEXT_SECONDS = 0.3  # until the next address is dialled as well
_RETRY_SECONDS = 0.25
_MOST_STRANGERS = 64


class Kind(enum.IntEnum):
    """Types of frames; those above PING go to the owner."""

    PING = 0
    RAFT = 1
    FETCH = 2
    CHUNK = 3
    ROWS = 4
    PROBE = 5
    PROBED = 6


class _Refused(Exception):
    """The other side is none of ours, or broke the protocol."""


class Address:
    """Where an agent listens: one port, at an address of each NIC. As text "10.0.0.1,10.1.0.1:4000"."""

    def __init__(self, addresses: list[str], port: int) -> None:
        self.addresses = addresses
        self.port = port

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads what `str` gives. ValueError: it is none."""
        hosts, _, port = text.rpartition(":")
        if not hosts or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"'{text}' is not where an agent listens")
        return cls(hosts.split(","), int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether it can be reached from this machine alone, over no NIC."""
        return any(each.startswith("127.") or each == "::1" for each in self.addresses)

    def __str__(self) -> str:
        return f"{','.join(self.addresses)}:{self.port}"


def key_of(job: str, secret: bytes) -> bytes:
    """Returns the key that all connections of a job derive theirs from."""
    return hmac.digest(secret, b"theseus agent\0" + job.encode(), "sha256")


def listen_socket(port: int) -> socket.socket:
    """Returns a listener on all addresses, at a port that the system picks where `port` is 0. OSError: taken."""
    try:
        listener = socket.socket(socket.AF_INET6)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        any_address: tuple[str, int] = ("::", port)
    except OSError:
        listener = socket.socket(socket.AF_INET)
        any_address = ("0.0.0.0", port)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(any_address)
        listener.listen(64)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


class _Link:
    """One connection after its handshake."""

    def __init__(
        self, host: str, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], keys: tuple[bytes, bytes]
    ) -> None:
        self.host = host
        self.reader, self.writer = streams
        self._send_key, self._receive_key = keys
        self._sent = 0
        self._received = 0
        raw = self.writer.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, kind: int, payload: bytes) -> None:
        head = _HEAD.pack(len(payload), kind)
        tag = hmac.digest(self._send_key, struct.pack("<Q", self._sent) + head + payload, "sha256")[:_TAG]
        self._sent += 1
        self.writer.write(head + payload + tag)

    @property
    def backlog(self) -> int:
        return self.writer.transport.get_write_buffer_size()

    async def receive(self) -> tuple[int, bytes]:
        head = await self.reader.readexactly(_HEAD.size)
        length, kind = _HEAD.unpack(head)
        if length > LONGEST_FRAME:
            raise _Refused("a frame is too long")
        body = await self.reader.readexactly(length + _TAG)
        payload, tag = body[:length], body[length:]
        right = hmac.digest(self._receive_key, struct.pack("<Q", self._received) + head + payload, "sha256")[:_TAG]
        if not hmac.compare_digest(tag, right):
            raise _Refused("a frame was tampered with")
        self._received += 1
        return kind, payload

    def close(self) -> None:
        self.writer.close()


@dataclass(frozen=True)
class ProbeEnd:
    """One end of a connection that measures its path. `key`: for tags of what the acceptor says of it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    key: bytes


class Channel:
    """All connections of one agent. Callbacks run on the event loop."""

    def __init__(
        self,
        host: str,
        on_up: Callable[[str], None],
        on_down: Callable[[str], None],
        on_frame: Callable[[str, int, bytes], None],
    ) -> None:
        self._host = host
        self._on_up, self._on_down, self._on_frame = on_up, on_down, on_frame
        self.on_probe: Callable[[ProbeEnd], Awaitable[None]] | None = None  # serves one to its end
        self._key: bytes | None = None
        self._members: frozenset[str] = frozenset()
        self._links: dict[str, _Link] = {}
        self._server: asyncio.Server | None = None
        self._strangers = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=2 * LONGEST_FRAME)

    def join(self, key: bytes, members: frozenset[str], dial: Mapping[str, Address]) -> None:
        """Takes connections of members from now on, and keeps one to each of `dial`. Once."""
        self._key, self._members = key, members
        for host, address in dial.items():
            self._spawn(self._keep(host, address))

    async def leave(self) -> None:
        """Ends all connections; join() may follow."""
        self._key, self._members = None, frozenset()
        for host in list(self._links):
            self._drop(self._links[host])
        # More than once where need be: before Python 3.12, wait_for() can swallow a cancellation.
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=_RETRY_SECONDS)

    async def close(self) -> None:
        await self.leave()
        if self._server is not None:
            self._server.close()

    def send(self, host: str, kind: int, payload: bytes) -> bool:
        """Sends if there is a connection, and says so."""
        link = self._links.get(host)
        if link is None:
            return False
        if link.backlog > _MOST_BACKLOG:
            self._drop(link)
            return False
        link.send(kind, payload)
        return True

    def backlog(self, host: str) -> int:
        """Bytes that wait to go to a host; 0 without a connection."""
        link = self._links.get(host)
        return 0 if link is None else link.backlog

    @property
    def connected(self) -> list[str]:
        return sorted(self._links)

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep(self, host: str, address: Address) -> None:
        first = random.randrange(len(address.addresses))
        while self._key is not None:
            ips = [*address.addresses[first:], *address.addresses[:first]]
            first = (first + 1) % len(ips)
            with contextlib.suppress(OSError, TimeoutError, asyncio.TimeoutError, EOFError, _Refused):
                await self._run(await self._dial_any(host, ips, address.port))
            await asyncio.sleep(_RETRY_SECONDS * (0.5 + random.random()))

    async def _dial_any(self, host: str, ips: list[str], port: int) -> _Link:
        """Dials one address after the other, without waiting long for any: a dead NIC neither answers nor refuses."""
        dials: set[asyncio.Task[_Link]] = set()
        try:
            for ip in [*ips, None]:
                if ip is not None:
                    dials.add(asyncio.ensure_future(self._dial(host, ip, port)))
                patience = _HANDSHAKE_SECONDS if ip is None else _NEXT_SECONDS
                done, dials = await asyncio.wait(dials, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if found := [dial for dial in done if dial.exception() is None]:
                    return found[0].result()
                if not dials and ip == ips[-1]:
                    break
            raise TimeoutError
        finally:
            for dial in dials:
                dial.cancel()

    async def _dial(self, host: str, ip: str, port: int) -> _Link:
        streams = await asyncio.open_connection(ip, port, limit=2 * LONGEST_FRAME)
        try:
            purposes = (b"to acceptor", b"to connector")
            to_acceptor, to_connector = await self._prove(streams, b"connector", purposes)
            return _Link(host, streams, (to_acceptor, to_connector))
        except BaseException:
            streams[1].close()
            raise

    async def open_probe(self, source: str, ip: str, port: int) -> ProbeEnd:
        """Connects from the address `source`. OSError, EOFError: no way; PermissionError: it is none of ours."""
        reader, writer = await asyncio.open_connection(ip, port, local_addr=(source, 0))
        try:
            (key,) = await self._prove((reader, writer), b"probe", (b"of a probe",))
            return ProbeEnd(reader, writer, key)
        except BaseException as error:
            writer.transport.abort()
            if isinstance(error, _Refused):
                raise PermissionError(str(error)) from None
            raise

    async def _prove(
        self, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], purpose: bytes, keys: tuple[bytes, ...]
    ) -> list[bytes]:
        """Says hello as the connector, and returns the connection's keys of those purposes."""
        reader, writer = streams
        if self._key is None:
            raise _Refused("this agent is of no job")
        mine = os.urandom(32)
        writer.write(_HELLO.pack(_MAGIC, _VERSION, mine))
        theirs = _read_hello(await reader.readexactly(_HELLO.size))
        if not hmac.compare_digest(await reader.readexactly(32), _proof(self._key, b"acceptor", mine, theirs)):
            raise _Refused("it does not know the job's secret")
        name = self._host.encode()
        writer.write(_proof(self._key, purpose, mine, theirs, name) + struct.pack("<H", len(name)) + name)
        return [_proof(self._key, each, mine, theirs) for each in keys]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._key is None or self._strangers >= _MOST_STRANGERS:
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            self._strangers += 1
            try:
                end = await asyncio.wait_for(self._greet(reader, writer), _HANDSHAKE_SECONDS)
            finally:
                self._strangers -= 1
            if isinstance(end, _Link):
                await self._run(end)
            elif self.on_probe is not None:
                await self.on_probe(end)
        except (OSError, TimeoutError, asyncio.TimeoutError, EOFError, _Refused, asyncio.CancelledError):
            pass  # a stranger, or the agent leaves
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Link | ProbeEnd:
        assert self._key is not None
        theirs = _read_hello(await reader.readexactly(_HELLO.size))
        mine = os.urandom(32)
        writer.write(_HELLO.pack(_MAGIC, _VERSION, mine) + _proof(self._key, b"acceptor", theirs, mine))
        proof = await reader.readexactly(32)
        (length,) = struct.unpack("<H", await reader.readexactly(2))
        name = await reader.readexactly(min(length, 4096))
        is_probe = hmac.compare_digest(proof, _proof(self._key, b"probe", theirs, mine, name))
        if not is_probe and not hmac.compare_digest(proof, _proof(self._key, b"connector", theirs, mine, name)):
            raise _Refused("it does not know the job's secret")
        host = name.decode(errors="replace")
        if host not in self._members or host == self._host:
            raise _Refused("it is no member")
        if is_probe:
            return ProbeEnd(reader, writer, _proof(self._key, b"of a probe", theirs, mine))
        keys = (_proof(self._key, b"to connector", theirs, mine), _proof(self._key, b"to acceptor", theirs, mine))
        return _Link(host, (reader, writer), keys)

    async def _run(self, link: _Link) -> None:
        """Takes frames until the connection ends or is silent for too long."""
        if (old := self._links.get(link.host)) is not None:
            self._drop(old)  # the other side has started anew
        self._links[link.host] = link
        self._on_up(link.host)
        pinger = asyncio.ensure_future(self._ping(link))
        try:
            while True:
                kind, payload = await asyncio.wait_for(link.receive(), _DEAD_SECONDS)
                if kind != Kind.PING and self._links.get(link.host) is link:
                    self._on_frame(link.host, kind, payload)
        finally:
            pinger.cancel()
            self._drop(link)

    async def _ping(self, link: _Link) -> None:
        while True:
            await asyncio.sleep(_PING_SECONDS)
            link.send(Kind.PING, b"")

    def _drop(self, link: _Link) -> None:
        link.close()
        if self._links.get(link.host) is link:
            del self._links[link.host]
            self._on_down(link.host)


def _read_hello(data: bytes) -> bytes:
    magic, version, nonce = _HELLO.unpack(data)
    if magic != _MAGIC or version != _VERSION:
        raise _Refused("it speaks something else")
    return bytes(nonce)


def _proof(key: bytes, purpose: bytes, connector: bytes, acceptor: bytes, name: bytes = b"") -> bytes:
    return hmac.digest(key, hashlib.sha256(purpose).digest() + connector + acceptor + name, "sha256")
