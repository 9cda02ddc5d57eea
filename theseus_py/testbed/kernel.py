"""The system calls that make namespaces, for Pythons that do not have them yet (os.setns came with 3.12)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x40000

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def become_root_of_own() -> None:
    """Enters a user namespace in which this user is root. Raises OSError where the kernel does not let users."""
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(_CLONE_NEWUSER), "a user namespace cannot be made")
    with suppress(OSError):  # kernels before 3.19 have no such file, and do not ask for it
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def enter_own_mounts() -> None:
    """Enters a mount namespace of its own, whose changes nobody else sees."""
    _check(_libc.unshare(_CLONE_NEWNS), "a mount namespace cannot be made")
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mounts cannot be made private")


def enter_own_network() -> int:
    """Enters a new network namespace, and returns a descriptor that keeps it."""
    _check(_libc.unshare(_CLONE_NEWNET), "a network namespace cannot be made")
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def children_get_own_pids() -> None:
    """Lets children live in a new PID namespace. The first one is its init: with its end the kernel ends all others."""
    _check(_libc.unshare(_CLONE_NEWPID), "a PID namespace cannot be made")


def enter(namespace: int) -> None:
    """Enters the network namespace of a descriptor; the calling thread alone."""
    _check(_libc.setns(namespace, _CLONE_NEWNET), "a network namespace cannot be entered")


@contextmanager
def inside(namespace: int, back: int) -> Iterator[None]:
    """Enters the network namespace of a descriptor for the time of a `with`, then that of `back`."""
    enter(namespace)
    try:
        yield
    finally:
        enter(back)


def show_own_proc_and_sys() -> None:
    """Mounts /proc and /sys anew, so that they tell of this process's PIDs and network. Where refused, they stay."""
    for kind, place in ((b"proc", b"/proc"), (b"sysfs", b"/sys")):
        _libc.mount(kind, place, kind, _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)
