"""The Unix socket that ranks and commands of this node connect to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from theseus_py.agent.reports import Reports
from theseus_py.agent.wire import (
    LONGEST_REQUEST,
    VERSION,
    BadFrame,
    Frame,
    FrameReader,
    Kind,
    Packer,
    Role,
    Unpacker,
    encode_frame,
    peer_is_same_user,
)

__all__ = ["Client", "Handler", "Server", "bind"]

_MOST_CLIENTS = 4096
_MOST_QUEUED = 128 << 20


class Client:
    """One connection, of a rank's process or of a command."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._outbound: deque[tuple[bytes, int | None]] = deque()
        self._queued = 0
        self._loop = asyncio.get_running_loop()
        self._writing = False
        self.role = Role.COMMAND
        self.pid = 0
        self.nonce = 0
        self.greeted = False
        self.flow_page: int | None = None
        self.reports = Reports()
        self.turn = asyncio.Lock()  # appends of one client keep their order

    @property
    def is_open(self) -> bool:
        return self._connection.fileno() >= 0

    def send(self, kind: int, payload: bytes, descriptor: int | None = None) -> None:
        """Queues a frame. `descriptor` stays the caller's; a copy goes."""
        if not self.is_open:
            return
        copy = None if descriptor is None else os.dup(descriptor)
        data = encode_frame(kind, payload, descriptor=copy is not None)
        self._outbound.append((data, copy))
        self._queued += len(data)
        self.flush()

    def flush(self) -> None:
        """Sends what the socket takes; a client that reads nothing is closed."""
        try:
            while self._outbound:
                data, descriptor = self._outbound.popleft()
                try:
                    if descriptor is None:
                        sent = self._connection.send(data, socket.MSG_NOSIGNAL)
                    else:
                        sent = socket.send_fds(self._connection, [data], [descriptor], socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    self._outbound.appendleft((data, descriptor))
                    break
                if descriptor is not None:
                    os.close(descriptor)
                self._queued -= sent
                if sent < len(data):
                    self._outbound.appendleft((data[sent:], None))
        except OSError:
            for _, descriptor in self._outbound:
                if descriptor is not None:
                    os.close(descriptor)
            self._outbound.clear()
            self._queued = 0
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)  # the reader finds the end
        if self._queued > _MOST_QUEUED:
            self.close()
        self._want_to_write(bool(self._outbound))

    def _want_to_write(self, wanted: bool) -> None:
        if wanted == self._writing or not self.is_open:
            return
        self._writing = wanted
        if wanted:
            self._loop.add_writer(self._connection, self.flush)
        else:
            self._loop.remove_writer(self._connection)

    def close(self) -> None:
        if not self.is_open:
            return
        self._loop.remove_reader(self._connection)
        self._want_to_write(False)
        for _, descriptor in self._outbound:
            if descriptor is not None:
                os.close(descriptor)
        self._outbound.clear()
        if self.flow_page is not None:
            os.close(self.flow_page)
            self.flow_page = None
        self._connection.close()


class Handler(Protocol):
    """What the agent does for its clients. Called on the event loop; BadFrame closes the client."""

    def accepts(self, job: str, host: str) -> bool: ...
    def greet(self, client: Client) -> None: ...
    def leave(self, client: Client) -> None: ...
    def told_members(self, client: Client, secret: bytes, hosts: list[tuple[str, str]]) -> None: ...
    def append(self, client: Client, ticket: int, record: bytes, descriptor: int | None) -> None: ...
    def query(self, client: Client, ticket: int, subject: str) -> None: ...


def bind(name: str) -> socket.socket | None:
    """Returns a listener at an abstract name; None where another process listens there: one agent a job and host."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(name)
        listener.listen(256)
    except OSError:
        listener.close()
        return None
    listener.setblocking(False)
    return listener


class Server:
    """Accepts clients and cuts what they send into calls of the handler."""

    def __init__(self, listener: socket.socket, handler: Handler) -> None:
        self._listener = listener
        self._handler = handler
        self.clients: set[Client] = set()
        self._kinds: dict[int, Callable[[Client, Frame], None]] = {
            Kind.MEMBERS: self._members,
            Kind.APPEND: self._append,
            Kind.QUERY: self._query,
            Kind.REPORT: self._report,
        }
        asyncio.get_running_loop().add_reader(listener, self._accept)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for client in list(self.clients):
            client.close()
        self.clients.clear()

    @property
    def ranks(self) -> list[Client]:
        return [client for client in self.clients if client.greeted and client.role == Role.RANK]

    def _accept(self) -> None:
        for _ in range(64):
            try:
                connection, _address = self._listener.accept()
            except OSError:
                return
            connection.setblocking(False)
            if not peer_is_same_user(connection) or len(self.clients) >= _MOST_CLIENTS:
                connection.close()
                continue
            client = Client(connection)
            self.clients.add(client)
            reader = FrameReader(LONGEST_REQUEST)
            asyncio.get_running_loop().add_reader(connection, self._read, client, connection, reader)

    def _read(self, client: Client, connection: socket.socket, reader: FrameReader) -> None:
        try:
            frames = reader.receive(connection)
        except BlockingIOError:
            return
        except (OSError, BadFrame):
            frames = None
        if frames is None or not self._take(client, frames):
            reader.close()
            self._drop(client)

    def _take(self, client: Client, frames: list[Frame]) -> bool:
        """Hands frames on; False where the client is to go. Descriptors that nobody takes are closed."""
        good = True
        for frame in frames:
            try:
                if good:
                    self._dispatch(client, frame)
            except BadFrame:
                good = False
            finally:
                if frame.descriptor is not None:
                    os.close(frame.descriptor)
        return good and client.is_open

    def _drop(self, client: Client) -> None:
        if client not in self.clients:
            return
        self.clients.discard(client)
        client.close()
        if client.greeted:
            self._handler.leave(client)

    def _dispatch(self, client: Client, frame: Frame) -> None:
        if frame.kind == Kind.HELLO and not client.greeted:
            return self._hello(client, frame)
        if not client.greeted or frame.kind not in self._kinds:
            raise BadFrame("a message that nobody expects")
        self._kinds[frame.kind](client, frame)

    def _hello(self, client: Client, frame: Frame) -> None:
        reader = Unpacker(frame.payload)
        version, client.pid, role, client.nonce = reader.u32(), reader.u32(), reader.u32(), reader.u64()
        job, host = reader.text(), reader.text()
        reader.end()
        if version != VERSION or role not in list(Role) or not self._handler.accepts(job, host):
            raise BadFrame("another version, or another job")
        client.role = Role(role)
        if frame.descriptor is not None:
            client.flow_page, frame.descriptor = frame.descriptor, None
        client.greeted = True
        self._handler.greet(client)

    def _members(self, client: Client, frame: Frame) -> None:
        reader = Unpacker(frame.payload)
        secret, count = reader.raw(), reader.u32()
        if not 0 < count <= 65536:
            raise BadFrame("a list of members that cannot be")
        hosts = [(reader.text(), reader.text()) for _ in range(count)]
        reader.end()
        self._handler.told_members(client, secret, hosts)

    def _append(self, client: Client, frame: Frame) -> None:
        reader = Unpacker(frame.payload)
        ticket, record = reader.u64(), reader.raw()
        reader.end()
        descriptor, frame.descriptor = frame.descriptor, None  # the handler's from now on
        self._handler.append(client, ticket, record, descriptor)

    def _query(self, client: Client, frame: Frame) -> None:
        reader = Unpacker(frame.payload)
        ticket, subject = reader.u64(), reader.text()
        reader.end()
        self._handler.query(client, ticket, subject)

    def _report(self, client: Client, frame: Frame) -> None:
        if client.role == Role.RANK:
            client.reports.take(frame.payload, time.monotonic())


def result_payload(ticket: int, code: int, sentence: str) -> bytes:
    """Returns the payload of a RESULT."""
    return Packer().u64(ticket).u32(code).text(sentence).take()
