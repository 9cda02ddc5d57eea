"""Removes marks after an agent that ended without doing so, where the kernel does not.

A guard is a process of its own, in the agent's network namespace. It waits until the agent ends, however that happens,
and removes its rules. Agent and guard hold a name (an abstract socket, one a network namespace): the next agent begins
when both are gone, so a guard never removes what is not its agent's. Where guard and agent are killed together, the
next agent removes what they left.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

__all__ = ["Guard", "GuardError"]

_NAME = "\0leveller-enforce"
_LONGEST_WAIT = 3.0


class GuardError(OSError):
    """There is no guard: another agent has one here, or none can be started."""


class Guard:
    """Keeps others away, and guards against our own end, until `close`.

    kind: whose rules they are, "nft" or "iptables"
    """

    def __init__(self, kind: str) -> None:
        self._held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._hold()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "leveller.enforce.guard", kind],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[self._held.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        except OSError as error:
            self._held.close()
            raise GuardError(error.errno, error.strerror) from None

    def _hold(self) -> None:
        deadline = time.monotonic() + _LONGEST_WAIT
        while True:
            try:
                self._held.bind(_NAME)
                return
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                if time.monotonic() > deadline:
                    raise OSError(
                        errno.EBUSY, "another agent marks flows in this network namespace; stop it first"
                    ) from None
                time.sleep(0.02)

    def close(self) -> None:
        """Ends the guard, which looks whether anything is left."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(2 * _LONGEST_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._held.close()


def _main(kind: str) -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    sys.stdin.buffer.read()
    with suppress(OSError):
        if kind == "nft":
            from leveller.enforce.nft import remove_leftover

            remove_leftover()
        else:
            from leveller.enforce.iptables import remove_leftovers

            remove_leftovers()


if __name__ == "__main__":
    _main(sys.argv[1])
