"""Authenticated TCP between agents, commands and the controller.

Both sides prove that they know the cluster's secret before either reads a payload, and each frame has a tag under keys
of this connection alone, numbered, so that nothing can be put in, left out or repeated. Nothing is encrypted.

    connector -> magic, version, nonce
    acceptor  -> magic, version, nonce, proof
    connector -> proof
    frames    -> u32 length, payload, 16 bytes of HMAC-SHA256 over number, length and payload
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

from leveller.core.marking import Marking
from leveller.wire import LONGEST, BadMessage, Message, decode, encode

__all__ = ["Channel", "Refused", "connect", "read_secret", "serve"]

_MAGIC = b"LEVELLER"
_VERSION = 1
_HELLO = struct.Struct("<8sH32s")
_HEAD = struct.Struct("<I")
_TAG = 16
_PROOF = 32
_HANDSHAKE_SECONDS = 3.0
_MOST_STRANGERS = 64
_MOST_BACKLOG = 64 << 20


class Refused(Exception):
    """The other side does not know the secret, speaks another version, or broke the protocol."""


def read_secret(path: Path | None) -> bytes:
    """Returns the cluster's secret, from a file or from LEVELLER_SECRET. ValueError says what is wrong with it."""
    if path is None:
        secret = os.environ.get("LEVELLER_SECRET", "").encode()
        if not secret:
            raise ValueError("no secret: name a file with --secret, or set LEVELLER_SECRET")
    else:
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ValueError(f"{path} can be read by others: chmod 600 {path}")
        secret = path.read_bytes().strip()
    if len(secret) < 16:
        raise ValueError("the secret has fewer than 16 bytes: make one with 'openssl rand -hex 32'")
    return secret


class Channel:
    """One connection after its handshake."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, send_key: bytes, receive_key: bytes
    ) -> None:
        self._reader, self._writer = reader, writer
        self._send_key, self._receive_key = send_key, receive_key
        self._sent = self._received = 0

    @property
    def peer(self) -> str:
        """Where the other side is."""
        name = self._writer.get_extra_info("peername")
        return str(name[0]) if name else "?"

    def send(self, message: Message) -> None:
        """Sends as the connection takes it. Refused: the other side reads nothing."""
        if self._writer.transport.get_write_buffer_size() > _MOST_BACKLOG:
            raise Refused("the other side does not read")
        payload = encode(message)
        head = _HEAD.pack(len(payload))
        self._writer.write(head + payload + _tag(self._send_key, self._sent, head + payload))
        self._sent += 1

    async def receive(self) -> Message:
        """Returns the next message. Refused; OSError, asyncio.IncompleteReadError at the end."""
        head = await self._reader.readexactly(_HEAD.size)
        (length,) = _HEAD.unpack(head)
        if length > LONGEST:
            raise Refused(f"a message of {length} bytes is too long")
        body = await self._reader.readexactly(length + _TAG)
        payload, tag = body[:length], body[length:]
        if not hmac.compare_digest(tag, _tag(self._receive_key, self._received, head + payload)):
            raise Refused("a message was tampered with")
        self._received += 1
        try:
            return decode(payload)
        except BadMessage as error:
            raise Refused(str(error)) from None

    def close(self) -> None:
        self._writer.close()


def _tag(key: bytes, number: int, data: bytes) -> bytes:
    return hmac.digest(key, struct.pack("<Q", number) + data, "sha256")[:_TAG]


def _derive(secret: bytes, purpose: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, b"leveller " + purpose + b"\0" + nonces, "sha256")


def _tune(writer: asyncio.StreamWriter) -> None:
    """No delay; and a mark above all levels, so that what commands the levels does not wait behind them."""
    raw = writer.get_extra_info("socket")
    traffic_class = Marking().control << 2
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_IP, socket.IP_TOS, traffic_class),
        (socket.IPPROTO_IPV6, socket.IPV6_TCLASS, traffic_class),
    ):
        with contextlib.suppress(OSError):
            raw.setsockopt(level, option, value)


async def _greeting(reader: asyncio.StreamReader) -> bytes:
    """Returns the other side's nonce."""
    magic, version, nonce = _HELLO.unpack(await reader.readexactly(_HELLO.size))
    if magic != _MAGIC:
        raise Refused("that is no LEVELLER")
    if version != _VERSION:
        raise Refused(f"it speaks version {version}, and this is version {_VERSION}")
    return bytes(nonce)


async def connect(host: str, port: int, secret: bytes) -> Channel:
    """Connects to the controller. OSError; Refused, also where the secrets differ."""
    try:
        return await asyncio.wait_for(_connect(host, port, secret), _HANDSHAKE_SECONDS)
    except (asyncio.TimeoutError, TimeoutError):
        raise Refused(f"{host}:{port} does not answer as a controller does") from None
    except asyncio.IncompleteReadError:
        raise Refused(f"{host}:{port} hung up: is it a controller, with the same secret?") from None


async def _connect(host: str, port: int, secret: bytes) -> Channel:
    reader, writer = await asyncio.open_connection(host, port, limit=2 * LONGEST)
    try:
        _tune(writer)
        mine = os.urandom(32)
        writer.write(_HELLO.pack(_MAGIC, _VERSION, mine))
        nonces = mine + await _greeting(reader)
        if not hmac.compare_digest(await reader.readexactly(_PROOF), _derive(secret, b"acceptor", nonces)):
            raise Refused("the controller has another secret")
        writer.write(_derive(secret, b"connector", nonces))
        return Channel(reader, writer, _derive(secret, b"up", nonces), _derive(secret, b"down", nonces))
    except BaseException:
        writer.close()
        raise


async def serve(
    host: str | None, port: int, secret: bytes, handle: Callable[[Channel], Awaitable[None]]
) -> asyncio.Server:
    """Listens; `handle` runs for each connection that has proved itself, until it returns. OSError: taken."""
    strangers = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal strangers
        if strangers >= _MOST_STRANGERS:
            writer.close()
            return
        strangers += 1
        try:
            channel = await asyncio.wait_for(_accept(reader, writer, secret), _HANDSHAKE_SECONDS)
        except (OSError, Refused, asyncio.IncompleteReadError, asyncio.TimeoutError, TimeoutError):
            writer.close()
            return
        finally:
            strangers -= 1
        try:
            await handle(channel)
        except (OSError, Refused, asyncio.IncompleteReadError):
            pass  # it is gone, which `handle` has seen
        finally:
            channel.close()

    return await asyncio.start_server(accept, host, port, limit=2 * LONGEST)


async def _accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes) -> Channel:
    _tune(writer)
    mine = os.urandom(32)
    nonces = await _greeting(reader) + mine
    writer.write(_HELLO.pack(_MAGIC, _VERSION, mine) + _derive(secret, b"acceptor", nonces))
    if not hmac.compare_digest(await reader.readexactly(_PROOF), _derive(secret, b"connector", nonces)):
        raise Refused("it does not know the secret")
    return Channel(reader, writer, _derive(secret, b"down", nonces), _derive(secret, b"up", nonces))
