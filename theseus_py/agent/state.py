"""What an agent must not forget: a folder of the job and host, for this user alone.

<state>/<job>/<host>/
members.json     who takes part, and the job's secret
ranks.json       the local ranks, so that a restarted agent can tell its own job from a dead one's remains
port             where the other agents reach this one
raft/            journal
log              what the ranks read (csrc/base/shared_log.h)
bodies/          plans by hash
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from theseus_py.agent.wire import name_hash
from theseus_py.errors import InvalidUsage, SystemError_

__all__ = ["StateFolder", "is_alive", "start_time", "state_root"]


def state_root(setting: str = "") -> Path:
    """Returns the folder of this user's jobs: the setting's, else in XDG_RUNTIME_DIR, else in the temporary one."""
    if setting:
        return Path(setting)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "theseus"
    return Path(tempfile.gettempdir()) / f"theseus-{os.getuid()}"


class StateFolder:
    """The folder of one job and host. Writes are whole or not at all: a new file takes the old one's name."""

    def __init__(self, root: Path, job: str, host: str) -> None:
        """Makes it. InvalidUsage: a folder on the way is not this user's alone; SystemError_: it cannot be made."""
        self.root = root
        self.job_folder = root / f"{_plain(job)}-{name_hash(job, ''):016x}"
        self.path = self.job_folder / f"{_plain(host)}-{name_hash(job, host):016x}"
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check(root)
            for folder in (self.job_folder, self.path, self.bodies, self.raft):
                folder.mkdir(mode=0o700, exist_ok=True)
                _check(folder)
        except OSError as error:
            raise SystemError_(f"the agent cannot keep its state in {root} ({error}); set THESEUS_STATE_DIR") from error

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def raft(self) -> Path:
        return self.path / "raft"

    @property
    def bodies(self) -> Path:
        return self.path / "bodies"

    def load(self, name: str) -> Any:
        """Returns what `save` put there; None where nothing is, or nothing that can be read."""
        try:
            return json.loads((self.path / name).read_text())
        except (OSError, ValueError):
            return None

    def save(self, name: str, value: Any) -> None:
        """Keeps a value under a name. OSError: no room."""
        temporary = self.path / f"{name}.new"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(value, file)
        temporary.replace(self.path / name)

    def forget(self) -> None:
        """Empties the folder: what is there belongs to a log that is over."""
        for entry in list(self.path.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        self.bodies.mkdir(mode=0o700, exist_ok=True)
        self.raft.mkdir(mode=0o700, exist_ok=True)

    def remove(self) -> None:
        """Removes the folder, and those above it that are empty then."""
        shutil.rmtree(self.path, ignore_errors=True)
        for folder in (self.job_folder, self.root):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def save_ranks(self, pids: Iterable[int]) -> None:
        """Notes which processes this agent serves."""
        self.save("ranks.json", {str(pid): start_time(pid) for pid in pids})

    def belongs_to_living(self) -> bool:
        """Returns whether a process that an earlier agent served here still runs."""
        ranks = self.load("ranks.json")
        return isinstance(ranks, dict) and any(
            pid.isdigit() and is_alive(int(pid), started) for pid, started in ranks.items()
        )


def start_time(pid: int) -> int:
    """Returns when a process started, in the kernel's ticks since boot; 0 where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = text[text.rindex(")") + 2 :].split()
    return 0 if fields[0] in ("Z", "X") else int(fields[19])


def is_alive(pid: int, started: object) -> bool:
    """Returns whether the very process that started then still runs: numbers are used again."""
    return isinstance(started, int) and started > 0 and start_time(pid) == started


def _plain(name: str) -> str:
    """Returns a name that can be a folder's, for people's eyes; what tells names apart is the hash behind it."""
    return "".join(c if c.isalnum() or c in "._" else "-" for c in name)[:40].lstrip(".") or "-"


def _check(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise InvalidUsage(
            f"{folder} is not a folder of this user alone (owner {status.st_uid}, mode {status.st_mode & 0o777:o}): "
            "remove it, or set THESEUS_STATE_DIR"
        )
