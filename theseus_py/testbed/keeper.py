"""The process that keeps a testbed: it holds the namespaces, starts processes in them, and caps NICs.

Everything hangs on this one process. Its descriptors keep the network namespaces, and the processes it starts live in
a PID namespace whose init ends when this process does: then the kernel ends whatever is left, daemons too. So even a
kill -9 leaves nothing, and two testbeds share no name but the one users give them. One thread: a process with several
may neither enter user namespaces nor fork safely.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from theseus_py.testbed import kernel, wire
from theseus_py.testbed.errors import TestbedError
from theseus_py.testbed.shape import Shape

if TYPE_CHECKING:
    from theseus_py.testbed.network import Network

_PATIENCE_SECONDS = 2.0


@dataclass
class _Client:
    connection: socket.socket
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)


def main() -> None:
    """Entry point: `keeper DESCRIPTOR OPTIONS`. Builds, says so over the descriptor, then serves."""
    owner = socket.socket(fileno=int(sys.argv[1]))
    owner.set_inheritable(False)
    options: dict[str, Any] = json.loads(sys.argv[2])
    name: str | None = options.pop("name")
    try:
        keeper = Keeper(Shape(**options), name)
    except (TestbedError, OSError) as error:
        wire.send(owner, {"error": str(error)})
        sys.exit(1)
    wire.send(owner, {"ready": os.getpid()})
    if name is None:
        keeper.add(owner)
        keeper.owner = owner
    else:
        owner.close()
        _forget_the_terminal()
    keeper.serve()


def _forget_the_terminal() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)
    os.chdir("/")


def enter_namespaces() -> int:
    """Enters namespaces of this process's own, and returns a descriptor of the network's. Raises TestbedError."""
    try:
        if not _may_make_namespaces():
            kernel.become_root_of_own()
        kernel.enter_own_mounts()
        fabric = kernel.enter_own_network()
        kernel.children_get_own_pids()
    except OSError as error:
        raise TestbedError(
            f"{error.strerror or error}: run as root, or let users make namespaces "
            "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone; a container's seccomp profile)"
        ) from error
    return fabric


def _may_make_namespaces() -> bool:
    """Root without CAP_SYS_ADMIN and CAP_NET_ADMIN (a plain container's) is a user like others."""
    with open("/proc/self/status") as status:
        effective = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
    needed = (1 << 21) | (1 << 12)
    return effective & needed == needed


class Keeper:
    """Holds one testbed and serves its users. Listens as `name`; without one it serves and ends with its owner."""

    def __init__(self, shape: Shape, name: str | None) -> None:
        self._user = os.getuid()
        self._listener = None if name is None else _listen(name)
        self.owner: socket.socket | None = None
        self._fabric = enter_namespaces()
        self._init_lives_by = _start_init()
        self._network = _build(shape, self._fabric)
        self._selector = selectors.DefaultSelector()
        self._jobs = 0
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ)

    def add(self, connection: socket.socket) -> None:
        """Serves a connection from now on."""
        self._selector.register(connection, selectors.EVENT_READ, _Client(connection))

    def serve(self) -> None:
        """Serves until somebody says down, or the owner is gone. Does not return."""
        signal.signal(signal.SIGTERM, lambda number, frame: self._end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, _Client):
                    self._hear(key.data)
                else:
                    self._bury(key.fd, *key.data)

    def _accept(self) -> None:
        assert self._listener is not None
        connection = wire.accept(self._listener, self._user)
        if connection is not None:
            self.add(connection)

    def _hear(self, client: _Client) -> None:
        received = wire.receive(client.connection)
        if received is None:
            self._leave(client)
            return
        message, descriptors = received
        try:
            answer = self._obey(client, message, descriptors)
        except (ValueError, TestbedError) as error:
            answer = {"error": str(error), "kind": type(error).__name__}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}", "kind": "TestbedError"}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        _tell(client, {**answer, "answer": True})
        if message["do"] == "down":
            self._end()

    def _obey(self, client: _Client, message: wire.Message, descriptors: Sequence[int]) -> wire.Message:
        what = message["do"]
        network = self._network
        if what == "start":
            return self._start(client, message, descriptors)
        if what == "signal":
            self._signal(client, message)
        elif what == "cap":
            network.cap(message["host"], message["nic"], message["fraction"], message["direction"])
        elif what == "traffic":
            return {"traffic": [[[nic.sent, nic.received] for nic in host] for host in network.traffic()]}
        elif what == "job":
            self._jobs += 1
            return {"job": self._jobs}
        elif what == "status":
            shape = network.shape
            processes = sum(len(other.processes) for other in self._clients())
            return {"shape": vars(shape), "caps": network.caps(), "processes": processes, "pid": os.getpid()}
        elif what != "down":
            raise ValueError(f"unknown request '{what}'")
        return {}

    def _start(self, client: _Client, message: wire.Message, descriptors: Sequence[int]) -> wire.Message:
        """The first two descriptors are standard output and error; others go by the names of their variables."""
        host = message["host"]
        self._network.shape.check(host, 0)
        namespace = self._network.hosts[host]
        passed = dict(zip(message["variables"], descriptors[2:], strict=True))
        environment = {**message["environment"], **{name: str(number) for name, number in passed.items()}}

        def settle() -> None:
            kernel.enter(namespace)
            kernel.enter_own_mounts()
            kernel.show_own_proc_and_sys()

        try:
            process = subprocess.Popen(
                message["command"],
                env=environment,
                cwd=message["folder"],
                stdin=subprocess.DEVNULL,
                stdout=descriptors[0],
                stderr=descriptors[1],
                pass_fds=tuple(passed.values()),
                start_new_session=True,
                preexec_fn=settle,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise TestbedError(f"cannot start {message['command'][0]}: {error}") from error
        client.processes[process.pid] = process
        self._selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, (client, process))
        return {"pid": process.pid}

    def _signal(self, client: _Client, message: wire.Message) -> None:
        """Signals a process, and what it started in its session, as a terminal would."""
        process = client.processes.get(message["pid"])
        if process is not None:
            _signal_group(process, message["signal"])

    def _bury(self, descriptor: int, client: _Client, process: subprocess.Popen[bytes]) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        code = process.wait()
        client.processes.pop(process.pid, None)
        _tell(client, {"exit": process.pid, "code": code})

    def _leave(self, client: _Client) -> None:
        """A user is gone, and takes what it started along."""
        self._selector.unregister(client.connection)
        processes = list(client.processes.values())
        _end_processes(processes)
        for process in processes:  # it may listen still
            _tell(client, {"exit": process.pid, "code": process.returncode})
        if client.connection is self.owner:
            self._end()
        client.connection.close()  # last: the user may wait for it

    def _clients(self) -> list[_Client]:
        return [key.data for key in self._selector.get_map().values() if isinstance(key.data, _Client)]

    def _end(self) -> None:
        """Ends politely what can be; the PID namespace's end takes the rest."""
        _end_processes([process for client in self._clients() for process in client.processes.values()])
        os._exit(0)


def _build(shape: Shape, fabric: int) -> Network:
    try:
        from theseus_py.testbed.network import Network
    except ImportError as error:
        raise TestbedError(f"{error.name} is not installed: pip install 'theseus-ccl[testbed]'") from error
    return Network(shape, fabric)


def _listen(name: str) -> socket.socket:
    try:
        return wire.listen(name)
    except OSError as error:
        raise TestbedError(f"a testbed named '{name}' is up already: take it down, or give another name") from error


def _start_init() -> int:
    """Starts the PID namespace's init. It ends when the descriptor that is returned, and kept by nobody else, closes.

    It has nothing else to do: children of the dead, which fall to it, are reaped by the kernel as it ignores SIGCHLD.
    """
    reading, writing = os.pipe()
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.dup2(reading, 0)
        os.closerange(1, 1024)
        with suppress(OSError):
            os.read(0, 1)
        os._exit(0)
    os.close(reading)
    return writing


def _tell(client: _Client, message: wire.Message) -> None:
    with suppress(OSError):  # its end is read next
        wire.send(client.connection, message)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _end_processes(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends processes and what shares their sessions. Reaps last: until then their ids name nobody else."""
    for process in processes:
        _signal_group(process, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline and not all(_has_ended(process) for process in processes):
        time.sleep(0.01)
    for process in processes:
        _signal_group(process, signal.SIGKILL)
        process.wait()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
