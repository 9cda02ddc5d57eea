"""A THESEUS_JOB_LOG that cannot be read is said once, stops nothing, and counts from when it can be read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_JOB = """
import pathlib, sys, threading, time
import numpy as np
import theseus_py
from theseus_py import _core
path = pathlib.Path(sys.argv[1])
communicators = theseus_py.init_all(2)
installed = [0, 0]

def run(rank):
    # Both ranks do the same number of requests, and look at what only rank 0 decides.
    stop = np.zeros(1, np.int32)
    while not stop[0]:
        data = np.ones(64, np.float32)
        communicators[rank].all_reduce(data)
        assert (data == 2).all()
        installed[rank] = communicators[rank].context_state()["installed"]
        stop[0] = min(installed) > 0 or time.monotonic() > end
        communicators[rank].broadcast(stop, 0)
        time.sleep(0.001)

end = time.monotonic() + 60
threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
for thread in threads:
    thread.start()
time.sleep(0.3)  # it is looked for every 20 ms
path.unlink(missing_ok=True)
log = _core.SharedLogWriter(str(path), 77)
log.append(0, _core.encode_record({"kind": "attribute", "name": "late"}))
for thread in threads:
    thread.join()
assert min(installed) == 1, installed
for communicator in communicators:
    communicator.destroy()
"""


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), (b"short", "too short"), (bytes(1 << 16), "none")]
)
def test_it_is_said_once(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "log"
    if content is not None:
        path.write_bytes(content)
    environment = {**os.environ, "THESEUS_JOB_LOG": str(path), "THESEUS_ADAPT": "on", "NCCL_DEBUG": "WARN"}
    done = subprocess.run(
        [sys.executable, "-c", _JOB, str(path)], env=environment, capture_output=True, text=True, timeout=120
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    (line,) = [line for line in said.splitlines() if "THESEUS_JOB_LOG" in line]
    assert str(path) in line and reason in line
