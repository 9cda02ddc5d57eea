"""A testbed leaves nothing behind, however it ends, and two of them know nothing of each other."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster.watch import flow, is_gone, processes_in, until, until_it_flows

import theseus_py
from theseus_py.testbed import Shape, Testbed, TestbedError

# A daemon: in a session of its own, with nobody to wait for it, deaf to SIGTERM.
DAEMON = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork() and os._exit(0)
os.setsid()
time.sleep(600)
"""


def network_of(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def test_the_end_of_the_with_block_takes_all_along() -> None:
    """Processes, daemons among them, end; no process is left in the hosts' namespaces."""
    with Testbed(hosts=2, nics=1) as bed:
        keeper = bed.status()["pid"]
        sleeper = bed.start(0, ["sleep", "600"])
        host = network_of(sleeper.pid)
        assert bed.start(0, [sys.executable, "-c", DAEMON]).wait(30) == 0
        until(lambda: len(processes_in(host)) == 2, "the daemon")
        assert network_of(bed.start(1, ["sleep", "600"]).pid) != host
    until(lambda: is_gone(keeper), "the keeper's end")
    assert sleeper.poll() == -signal.SIGTERM
    until(lambda: processes_in(host) == [], "everybody's end")


def test_kill_9_of_the_keeper_leaves_nothing() -> None:
    """The kernel ends everything that ran there, and the user is told in one sentence."""
    with Testbed(hosts=2, nics=1) as bed:
        sender, receiver = flow(bed, 0, 1, 0, 7000)
        until_it_flows(bed, 0, 0)
        hosts = [network_of(sender.pid), network_of(receiver.pid)]
        assert bed.start(0, [sys.executable, "-c", DAEMON]).wait(30) == 0
        os.kill(bed.status()["pid"], signal.SIGKILL)
        for host in hosts:
            until(lambda host=host: processes_in(host) == [], "everybody's end")  # type: ignore[misc]
        with pytest.raises(TestbedError, match="keeper is gone"):
            bed.status()


def test_kill_9_of_the_user_leaves_nothing() -> None:
    """A program that dies inside its `with` block takes its testbed along."""
    code = """
import sys, time
from theseus_py.testbed import Testbed
bed = Testbed(hosts=2, nics=1)
print(bed.status()["pid"], bed.start(0, ["sleep", "600"]).pid, flush=True)
time.sleep(600)
"""
    user = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=package_folder())
    assert user.stdout is not None
    keeper, sleeper = map(int, user.stdout.readline().split())
    user.kill()
    user.wait()
    user.stdout.close()
    until(lambda: is_gone(keeper) and is_gone(sleeper), "the end of the keeper and what it ran")


def package_folder() -> Path:
    """Where `python -c` finds the package."""
    return Path(theseus_py.__path__[0]).parent


def test_two_testbeds_do_not_meet(bed: Testbed) -> None:
    """The same addresses twice: a host of one cannot reach a listener of the other."""
    with Testbed(hosts=3, nics=2) as other:
        listener = other.start(
            0, [sys.executable, "-c", "import socket, time; s = socket.create_server(('', 7000)); time.sleep(600)"]
        )
        asking = "import socket, sys; socket.create_connection((sys.argv[1], 7000), 5)"
        here = [sys.executable, "-c", asking, bed.shape.address(0, 0)]
        silent = os.open(os.devnull, os.O_WRONLY)
        until(lambda: other.start(1, here, stderr=silent).wait(30) == 0, "the listener")
        assert bed.start(1, here, stderr=silent).wait(30) != 0
        os.close(silent)
        assert listener.poll() is None


def test_a_named_testbed_stays_until_it_is_taken_down() -> None:
    """It outlives the object that made it; its name is taken meanwhile, and free afterwards."""
    name = f"test-{os.getpid()}"
    try:
        with Testbed.up(name, Shape(hosts=2, nics=1)) as bed:
            started = bed.start(0, ["sleep", "600"])
        until(lambda: is_gone(started.pid), "the end of what this user had started")
        with pytest.raises(TestbedError, match="is up already"):
            Testbed.up(name)
        with Testbed.attach(name) as again:
            assert again.shape == Shape(hosts=2, nics=1)
            again.cap(1, 0, 0.5)
        with Testbed.attach(name) as third:
            assert third.status()["caps"][1] == [[0.5, 0.5]]
            assert third.status()["processes"] == 0
    finally:
        Testbed.attach(name).down()
    with pytest.raises(TestbedError, match="no testbed named"):
        Testbed.attach(name)


def test_users_without_rights_can_make_one() -> None:
    """In a user namespace: the same network, and caps, for somebody who has no rights."""
    code = """
import sys
from theseus_py.testbed import Testbed, missing
lacking = [line for line in missing() if not line.startswith("strict")]
if lacking:
    sys.exit("lacking: " + "; ".join(lacking))
with Testbed(hosts=2, nics=2, rate="100mbit") as bed:
    bed.cap(0, 1, 0.5)
    listen = "import socket; socket.create_server(('10.77.1.2', 7000))"
    raise SystemExit(bed.start(1, [sys.executable, "-c", listen]).wait(30))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=package_folder(),
        timeout=120,
        preexec_fn=drop_rights if os.getuid() == 0 else None,
        check=False,
    )
    if "lacking: " in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr


def drop_rights() -> None:
    """Takes from root, for good, what makes it root here: CAP_SYS_ADMIN and CAP_NET_ADMIN."""
    pr_capbset_drop = 24
    for capability in (21, 12):
        assert ctypes.CDLL(None).prctl(pr_capbset_drop, capability, 0, 0, 0) == 0
