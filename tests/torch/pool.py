"""Ranks that stay: processes with a process group of the backend, which run one case after the other.

Importing torch takes seconds, so tests share the ranks of a world size. A case that fails or hangs costs its ranks: the
next test gets new ones.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("worker.py")


class Pool:
    """`ranks` worker processes in one group, each at the end of a pipe."""

    def __init__(self, ranks: int, timeout: float = 240.0) -> None:
        self.ranks = ranks
        self._folder = tempfile.TemporaryDirectory()
        address = str(Path(self._folder.name) / "pool")
        self._listener = Listener(address, "AF_UNIX", backlog=ranks)
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        store = str(Path(self._folder.name) / "store")
        # One folder up, so that `torch` means PyTorch and not this folder.
        command = [sys.executable, str(WORKER), address, store, str(ranks)]
        self._processes = [subprocess.Popen([*command, str(rank)], env=environment) for rank in range(ranks)]
        self._pipes: dict[int, Connection] = {}
        self._listener._listener._socket.settimeout(timeout)  # type: ignore[attr-defined]
        try:
            for _ in range(ranks):
                pipe = self._listener.accept()
                self._pipes[pipe.recv()] = pipe
            self._collect(timeout)
        except BaseException:
            self.close(kill=True)
            raise

    def run(self, module: str, case: str, *arguments: Any, timeout: float = 60.0) -> list[Any]:
        """Run a function of a case module on every rank; return its results by rank, or raise with their tracebacks."""
        return self.run_each(module, case, [arguments] * self.ranks, timeout)

    def run_each(self, module: str, case: str, arguments: list[tuple[Any, ...]], timeout: float) -> list[Any]:
        """The same with arguments of their own for each rank."""
        for rank, pipe in self._pipes.items():
            pipe.send((module, case, arguments[rank]))
        return self._collect(timeout)

    def _collect(self, timeout: float) -> list[Any]:
        results: list[Any] = []
        failures: list[str] = []
        for rank in range(self.ranks):
            pipe = self._pipes[rank]
            # Once one rank has failed, the others may wait for it in vain.
            if not pipe.poll(5.0 if failures else timeout):
                failures.append(f"rank {rank}: no answer after {timeout} s")
                # It writes to its standard error where it hangs.
                self._processes[rank].send_signal(signal.SIGUSR1)
                time.sleep(0.2)
                continue
            try:
                good, value = pipe.recv()
            except EOFError:
                good, value = False, "the process ended"
            if good:
                results.append(value)
            else:
                failures.append(f"rank {rank}: {value}")
        if failures:
            raise AssertionError("\n".join(failures))
        return results

    def process(self, rank: int) -> subprocess.Popen[bytes]:
        """The process of a rank, for tests that stop it."""
        return self._processes[rank]

    def close(self, *, kill: bool = False) -> None:
        """End all ranks."""
        for pipe in self._pipes.values():
            if not kill:
                with contextlib.suppress(OSError):
                    pipe.send(None)
        for process in self._processes:
            if kill:
                process.kill()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pipe in self._pipes.values():
            pipe.close()
        self._listener.close()
        self._folder.cleanup()
