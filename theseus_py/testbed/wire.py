"""How a keeper and its users talk: one JSON object a message, over a Unix socket, with descriptors where needed."""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

Message = dict[str, Any]
_MOST_BYTES = 1 << 20
_MOST_DESCRIPTORS = 64


def pair() -> tuple[socket.socket, socket.socket]:
    """Returns two connected ends that keep messages apart."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        _widen(end)
    return ends


def listen(name: str) -> socket.socket:
    """Returns a listener under `name`, which leaves no file. OSError where another one has it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(_address(name))
        listener.listen(16)
    except OSError:
        listener.close()
        raise
    return listener


def connect(name: str) -> socket.socket:
    """Returns a connection to the listener of this user under `name`. OSError where there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(_address(name))
        if peer_user(connection) != os.getuid():
            raise PermissionError(f"another user's process listens as '{name}'")
    except OSError:
        connection.close()
        raise
    _widen(connection)
    return connection


def accept(listener: socket.socket, user: int) -> socket.socket | None:
    """Returns the next connection; None where another user's process, which is turned away, made it."""
    connection, _ = listener.accept()
    if peer_user(connection) != user:
        connection.close()
        return None
    _widen(connection)
    return connection


def peer_user(connection: socket.socket) -> int:
    """Returns the user id of the other end's process, as the kernel knows it."""
    credentials = array.array("i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return credentials[1]


def send(connection: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Sends one message. ValueError where it is too long, OSError where the other end is gone."""
    data = json.dumps(message).encode()
    if len(data) > _MOST_BYTES:
        raise ValueError(f"a message of {len(data)} bytes is too long; the limit is {_MOST_BYTES}")
    if descriptors:
        socket.send_fds(connection, [data], list(descriptors))
    else:
        connection.send(data)


def receive(connection: socket.socket) -> tuple[Message, list[int]] | None:
    """Returns the next message and the descriptors that came with it, now the caller's; None at the end."""
    try:
        data, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, _MOST_DESCRIPTORS)
    except ConnectionError:
        return None
    if not data:
        return None
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    message: Message = json.loads(data)
    return message, descriptors


def _address(name: str) -> str:
    return f"\0theseus-testbed-{os.getuid()}-{name}"


def _widen(connection: socket.socket) -> None:
    # A message carries a whole environment. Beyond the system's limit for users, which root may pass.
    for option in (socket.SO_SNDBUF, 32):  # 32: SO_SNDBUFFORCE
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, option, 2 * _MOST_BYTES)
