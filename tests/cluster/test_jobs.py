"""Jobs: ranks get what torchrun would tell them, fail together, and our library's ranks meet over all NICs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster.watch import is_gone, until

import theseus_py
from theseus_py.testbed import JobFailed, Shape, Testbed

SHOW = """
import json, os
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
         "THESEUS_JOB_ID", "THESEUS_NICS", "THESEUS_HOST")
print(json.dumps({name: os.environ.get(name) for name in names}))
"""
ALL_REDUCE = """
import numpy as np
from theseus_py import Communicator
with Communicator.from_env() as communicator:
    count = 1 << 20
    for turn in range(TURNS):
        data = (np.arange(count) % 251 + communicator.rank).astype(np.float32)
        communicator.all_reduce(data)
        ranks = communicator.ranks
        assert np.array_equal(data, np.arange(count) % 251 * ranks + ranks * (ranks - 1) // 2), "wrong sums"
        if communicator.rank == 0:
            print("done", turn, flush=True)
"""


def python(code: str) -> list[str]:
    folder = str(Path(theseus_py.__path__[0]).parent)
    return [sys.executable, "-c", f"import sys; sys.path[0] = {folder!r}\n{code}"]


def test_ranks_know_their_places(bed: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks on each of two hosts: torchrun's variables, one job, no name of a host."""
    monkeypatch.setenv("THESEUS_HOST", "elsewhere")
    said: dict[int, dict[str, str | None]] = {}
    bed.launch(
        python(SHOW), hosts=[0, 2], ranks_per_host=2, on_line=lambda rank, line: said.update({rank: json.loads(line)})
    ).wait(60)
    assert sorted(said) == [0, 1, 2, 3]
    for rank, variables in said.items():
        assert variables["RANK"] == str(rank) and variables["WORLD_SIZE"] == "4"
        assert variables["LOCAL_RANK"] == str(rank % 2) and variables["LOCAL_WORLD_SIZE"] == "2"
        assert variables["GROUP_RANK"] == str(rank // 2)
        assert variables["MASTER_ADDR"] == bed.shape.management_address(0)
        assert variables["THESEUS_NICS"] == "eth0,eth1"
        assert variables["THESEUS_HOST"] is None
    for name in ("MASTER_PORT", "THESEUS_JOB_ID"):
        assert len({variables[name] for variables in said.values()}) == 1


def test_the_first_failure_ends_all(bed: Testbed) -> None:
    """The others are ended, and the error names the rank, how it ended, and its last line."""
    code = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit('no luck')\ntime.sleep(600)"
    job = bed.launch(python(code), on_line=lambda rank, line: None)
    with pytest.raises(JobFailed, match="rank 1 failed: exit code 1, last said: no luck"):
        job.wait(60)
    assert all(is_gone(process.pid) for process in job.processes)


def test_a_killed_rank_is_named_as_the_cause(bed: Testbed) -> None:
    """Killed by a signal outranks those that fail because of it."""
    code = "import os, sys, time\nif os.environ['RANK'] == '2': os.kill(os.getpid(), 9)\ntime.sleep(0.2)\nsys.exit(1)"
    with pytest.raises(JobFailed, match=r"rank 2 failed: killed by signal 9 \(SIGKILL\)"):
        bed.launch(python(code), on_line=lambda rank, line: None).wait(60)


def test_all_that_ranks_print_is_heard(bed: Testbed) -> None:
    """More than a pipe holds, and a last line without its end."""
    lines: list[str] = []
    code = "import sys\nfor number in range(20000): print(number)\nsys.stdout.write('end')"
    bed.launch(python(code), hosts=[1], on_line=lambda rank, line: lines.append(line)).wait(60)
    assert lines == [*map(str, range(20000)), "end"]


def test_a_program_that_is_not_there_is_named(bed: Testbed) -> None:
    with pytest.raises(RuntimeError, match="cannot start no-such-program"):
        bed.launch(["no-such-program"])


def test_ranks_meet_and_sum_over_all_nics() -> None:
    """AllReduce over 4 hosts x 4 NICs is right, and every NIC of every host carries its part."""
    pytest.importorskip("theseus_py._core", reason="the native library is not built")
    with Testbed(hosts=4, nics=4, rate="400mbit") as bed:
        before = bed.bytes()
        bed.launch(python(ALL_REDUCE.replace("TURNS", "3")), on_line=lambda rank, line: None).wait(120)
        data = 3 * 2 * 3 / 4 * (4 << 20) / 4  # turns, there and back, but one's own quarter, over four NICs
        for host_before, host_after in zip(before, bed.bytes(), strict=True):
            for nic_before, nic_after in zip(host_before, host_after, strict=True):
                assert nic_after.sent - nic_before.sent > 0.4 * data
                assert nic_after.received - nic_before.received > 0.4 * data


def test_caps_in_the_middle_change_no_result() -> None:
    """Two ranks a host; a NIC slows down, dies and heals while sums run, and all sums are right."""
    pytest.importorskip("theseus_py._core", reason="the native library is not built")
    with Testbed(hosts=4, nics=2, rate="400mbit") as bed:
        done: list[str] = []
        job = bed.launch(
            python(ALL_REDUCE.replace("TURNS", "16")), ranks_per_host=2, on_line=lambda rank, line: done.append(line)
        )
        for turns, fraction in [(2, 0.3), (5, 0.0), (5, 1.0)]:
            deadline = time.monotonic() + 60
            while len(done) < turns and job.running() and time.monotonic() < deadline:
                job.pump(0.1)
            bed.cap(1, 1, fraction)
            if fraction == 0:
                time.sleep(0.5)
        job.wait(120)
        assert done == [f"done {turn}" for turn in range(16)]


def test_ctrl_c_ends_the_job_of_the_command() -> None:
    """`theseus testbed run` on SIGINT, and on SIGKILL: no rank stays, the testbed does."""
    name = f"test-{os.getpid()}"
    command = python("from theseus_py.cli import main; main()")
    with Testbed.up(name, Shape(hosts=2, nics=1)) as bed:
        try:
            for number in (signal.SIGINT, signal.SIGKILL):
                user = subprocess.Popen(
                    [*command, "testbed", "run", "--name", name, "--", "sleep", "600"],
                    stderr=subprocess.PIPE,
                    # Shells start what runs in the background deaf to it.
                    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
                )
                until(lambda: bed.status()["processes"] == 2, "the ranks")
                user.send_signal(number)
                user.communicate(timeout=60)
                until(lambda: bed.status()["processes"] == 0, "the ranks' end")
        finally:
            bed.down()
