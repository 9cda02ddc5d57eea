"""How commands talk to the agents of this host: find one by its job, ask it, have it append records."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from theseus_py import _core
from theseus_py.agent.wire import (
    LONGEST_ANSWER,
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
    socket_name,
)
from theseus_py.errors import InvalidUsage, RemoteError, Timeout, from_code

__all__ = ["AgentConnection", "connect", "find"]

_NAME = re.compile(r"@(theseus-agent-(\d+)-[0-9a-f]{16})$")
_ANSWER_SECONDS = 15.0
_HELLO_SECONDS = 5.0


class AgentConnection:
    """One connection, used by one thread. Close it, or use it in a `with` statement."""

    def __init__(
        self, name: str, job: str = "", host: str = "", *, role: Role = Role.COMMAND, flow_page: int | None = None
    ) -> None:
        """Connects to an agent's abstract name and says hello; empty names mean whoever listens there.

        RemoteError: nobody, or not as this user, or another job's.
        """
        self._socket = socket.socket(socket.AF_UNIX)
        self._reader = FrameReader(LONGEST_ANSWER)
        self._tickets = itertools.count(1)
        self._arrived: list[Frame] = []
        self.log: int | None = None
        try:
            self._socket.connect(name)
            if not peer_is_same_user(self._socket):
                raise RemoteError("the agent is another user's")
            hello = Packer().u32(VERSION).u32(os.getpid()).u32(role).u64(secrets.randbits(64)).text(job).text(host)
            self._send(Kind.HELLO, hello.take(), flow_page)
            self.refresh(_HELLO_SECONDS)
        except OSError as error:
            self.close()
            raise RemoteError(f"no agent listens at {name[1:]}: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> AgentConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()
        self._reader.close()
        for frame in self._arrived:
            if frame.descriptor is not None:
                os.close(frame.descriptor)
        self._arrived.clear()
        if self.log is not None:
            os.close(self.log)
            self.log = None

    def refresh(self, seconds: float) -> None:
        """Waits for the next word on log and addresses, which comes when they change. Timeout: none came."""
        self._welcome(self._wait(lambda frame: frame.kind == Kind.WELCOME, seconds))

    def _welcome(self, frame: Frame) -> None:
        reader = Unpacker(frame.payload)
        if reader.u32() != VERSION:
            raise RemoteError("the agent speaks another version; end the job, or use its version of this command")
        self.log_id, self.address = reader.u64(), reader.text()
        self.job, self.host, self.bodies = reader.text(), reader.text(), Path(reader.text())
        if frame.descriptor is not None:
            if self.log is not None:
                os.close(self.log)
            self.log, frame.descriptor = frame.descriptor, None

    def status(self) -> dict[str, Any]:
        """Returns what agent.status.status_of gives."""
        ticket = next(self._tickets)
        self._send(Kind.QUERY, Packer().u64(ticket).text("status").take())
        reader = Unpacker(self._wait(_answers(Kind.ANSWER, ticket), _ANSWER_SECONDS).payload)
        reader.u64()
        answer: dict[str, Any] = json.loads(reader.text())
        return answer

    def append(self, fields: dict[str, Any], body: bytes | None = None) -> None:
        """Has the agents append a record. Raises why it was refused, or Timeout where there is no quorum."""
        self.wait_for(self.post(fields, body))

    def post(self, fields: dict[str, Any], body: bytes | None = None) -> int:
        """Begins to append a record, and returns the ticket to wait for."""
        record = _core.encode_record(fields)
        ticket = next(self._tickets)
        with contextlib.ExitStack() as stack:
            descriptor = None
            if body is not None:
                descriptor = os.memfd_create("theseus-plan", os.MFD_CLOEXEC)
                stack.callback(os.close, descriptor)
                with os.fdopen(os.dup(descriptor), "wb") as file:
                    file.write(body)
            self._send(Kind.APPEND, Packer().u64(ticket).text(record).take(), descriptor)
        return ticket

    def wait_for(self, ticket: int) -> None:
        """Waits until a posted record is appended. Raises why it was not."""
        reader = Unpacker(self._wait(_answers(Kind.RESULT, ticket), _ANSWER_SECONDS).payload)
        reader.u64()
        code, sentence = reader.u32(), reader.text()
        if code != 0:
            raise from_code(code, sentence)

    def set_members(self, secret: bytes, hosts: Sequence[tuple[str, str]]) -> None:
        """Says who takes part, as the ranks do."""
        packer = Packer().text(secret).u32(len(hosts))
        for host, address in hosts:
            packer.text(host).text(address)
        self._send(Kind.MEMBERS, packer.take())

    def _send(self, kind: Kind, payload: bytes, descriptor: int | None = None) -> None:
        self._socket.settimeout(_ANSWER_SECONDS)
        data = encode_frame(kind, payload, descriptor=descriptor is not None)
        try:
            if descriptor is not None:
                sent = socket.send_fds(self._socket, [data], [descriptor], socket.MSG_NOSIGNAL)
                data = data[sent:]
            self._socket.sendall(data)
        except TimeoutError:
            raise Timeout("the agent does not read what it is told") from None
        except OSError as error:
            raise RemoteError(f"the agent is gone: {error.strerror}") from error

    def _wait(self, wanted: Any, seconds: float) -> Frame:
        deadline = time.monotonic() + seconds
        while True:
            for index, frame in enumerate(self._arrived):
                if wanted(frame):
                    return self._arrived.pop(index)
            left = deadline - time.monotonic()
            if left <= 0:
                raise Timeout("the agent did not answer in time")
            self._socket.settimeout(left)
            try:
                frames = self._reader.receive(self._socket)
            except TimeoutError:
                continue
            except (OSError, BadFrame) as error:
                raise RemoteError(f"the agent is gone: {error}") from error
            if frames is None:
                raise RemoteError("the agent closed the connection: it is another job's, or it ended")
            self._arrived += frames


def _answers(kind: Kind, ticket: int) -> Any:
    return lambda frame: frame.kind == kind and len(frame.payload) >= 8 and frame.payload[:8] == _ticket(ticket)


def _ticket(number: int) -> bytes:
    return number.to_bytes(8, "little")


def _names() -> Iterator[str]:
    """Names of this user's agents in this network namespace."""
    with contextlib.suppress(OSError), open("/proc/net/unix") as table:
        for line in table:
            match = _NAME.search(line.rstrip("\n"))
            if match is not None and int(match[2]) == os.getuid():
                yield "\0" + match[1]


def find() -> list[AgentConnection]:
    """Returns a connection to every agent of this user on this host, by job and host."""
    found = []
    for name in sorted(set(_names())):
        with contextlib.suppress(RemoteError, Timeout):
            found.append(AgentConnection(name))
    return sorted(found, key=lambda each: (each.job, each.host))


def connect(job: str = "", host: str = "") -> AgentConnection:
    """Returns a connection to the agent of a job; without names to the only one there is.

    InvalidUsage: there is none, or there are several: the message names them.
    """
    if job and host:
        return AgentConnection(socket_name(job, host), job, host)
    agents = find()
    fitting = [each for each in agents if job in ("", each.job) and host in ("", each.host)]
    # Any agent of a job will do: all have one log.
    chosen = fitting[0] if fitting and len({each.job for each in fitting}) == 1 else None
    names = ", ".join(sorted({each.job for each in agents}))
    for each in agents:
        if each is not chosen:
            each.close()
    if chosen is not None:
        return chosen
    if not fitting:
        seen = f"; there are agents of: {names}" if names else ""
        raise InvalidUsage(f"no agent of job '{job}' runs here{seen}" if job else f"no agent runs here{seen}")
    raise InvalidUsage(f"agents of several jobs run here: say --job with one of {names}")
