"""Local ranks as processes: their environment, their reports, and how they end."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from theseus_py.spawn import Layout, RankFailed, Report, rank_environment, spawn

PYTHON = [sys.executable, "-c"]


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_virtual_hosts_have_their_own_addresses() -> None:
    """4 ranks on 2 hosts with 2 rails: two ranks a host, distinct loopback addresses a host and rail."""
    layout = Layout(4, 2, 2)
    variables = [rank_environment(layout, rank, 1234) for rank in range(4)]
    assert [v["THESEUS_HOST"] for v in variables] == ["host0", "host0", "host1", "host1"]
    assert [v["LOCAL_RANK"] for v in variables] == ["0", "1", "0", "1"]
    assert variables[0]["THESEUS_NICS"] == "127.0.1.1,127.0.1.2"
    assert variables[3]["THESEUS_NICS"] == "127.0.2.1,127.0.2.2"
    assert "THESEUS_HOST" not in rank_environment(Layout(2), 0, 1234)


@pytest.mark.parametrize(("ranks", "hosts"), [(5, 2), (7, 3), (3, 3), (64, 5)])
def test_uneven_ranks_fill_all_hosts(ranks: int, hosts: int) -> None:
    """Every rank has one host, every host at least one rank, and no host two more than another."""
    layout = Layout(ranks, hosts)
    sizes = [len(layout.ranks_of(host)) for host in range(hosts)]
    assert sum(sizes) == ranks
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("arguments", "said"), [((0,), "ranks"), ((2, 3), "3 hosts"), ((2, 1, 0), "rails"), ((2, 0), "hosts")]
)
def test_impossible_layouts_are_refused(arguments: tuple[int, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Layout(*arguments)


def test_reports_arrive_from_every_rank() -> None:
    """What a rank reports reaches the parent whole, however long it is."""
    script = (
        "import os; from theseus_py.spawn import report; report('x', rank=int(os.environ['RANK']), text='y' * 200000)"
    )
    seen: dict[int, Report] = {}
    spawn([*PYTHON, script], Layout(3), on_report=lambda rank, message: seen.update({rank: message}), timeout=60)
    assert {rank: message["rank"] for rank, message in seen.items()} == {0: 0, 1: 1, 2: 2}
    assert all(len(message["text"]) == 200000 for message in seen.values())


def test_the_first_failure_ends_all_ranks() -> None:
    """Rank 1 fails; the error names it and repeats what it said; ranks that would sleep for ever are gone."""
    script = (
        "import os, sys, time; from theseus_py.spawn import report\n"
        "report('pid', pid=os.getpid())\n"
        "time.sleep(1) if os.environ['RANK'] == '1' else time.sleep(600)\n"
        "sys.exit('the disk is full')"
    )
    pids: list[int] = []
    with pytest.raises(RankFailed, match=r"rank 1 failed: .*the disk is full") as failure:
        spawn([*PYTHON, script], Layout(3), on_report=lambda _, message: pids.append(message["pid"]), timeout=60)
    assert failure.value.rank == 1
    assert len(pids) == 3
    assert not any(alive(pid) for pid in pids)


def test_a_killed_rank_is_named_with_its_signal() -> None:
    """SIGKILL leaves no last words: the signal is the reason, also when survivors fail because of it."""
    script = (
        "import os, signal, sys, time; from theseus_py.spawn import report\n"
        "os.kill(os.getpid(), signal.SIGKILL) if os.environ['RANK'] == '2' else None\n"
        "time.sleep(0.2); report('error', message='rank 2 has gone'); sys.exit(1)"
    )
    with pytest.raises(RankFailed, match=r"rank 2 failed: killed by signal 9 \(SIGKILL\)"):
        spawn([*PYTHON, script], Layout(3), timeout=60)


def test_a_reported_error_is_the_reason() -> None:
    """A rank that reports its error is quoted, not its traceback's last line."""
    script = "import sys; from theseus_py.spawn import report; report('error', message='no such root'); sys.exit(1)"
    with pytest.raises(RankFailed, match="no such root"):
        spawn([*PYTHON, script], Layout(2), timeout=60)


def test_ranks_that_never_end_meet_the_limit() -> None:
    """The time limit ends ranks that ignore SIGTERM, too."""
    script = (
        "import os, signal, time; from theseus_py.spawn import report\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); report('pid', pid=os.getpid()); time.sleep(600)"
    )
    pids: list[int] = []
    with pytest.raises(RankFailed, match="2 of 2 ranks"):
        spawn([*PYTHON, script], Layout(2), on_report=lambda _, message: pids.append(message["pid"]), timeout=3)
    assert not any(alive(pid) for pid in pids)


def test_a_child_left_behind_does_not_hold_the_parent() -> None:
    """A grandchild that keeps the pipes open must not keep spawn() from returning."""
    script = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(30)'], close_fds=False)"
    )
    begin = time.monotonic()
    spawn([*PYTHON, script], Layout(1), timeout=25)
    assert time.monotonic() - begin < 25


def test_ranks_die_with_their_parent() -> None:
    """A parent killed outright leaves no rank behind."""
    rank = (
        "import os, time; from theseus_py.spawn import die_with_parent\n"
        "die_with_parent(); print(os.getpid(), flush=True); time.sleep(600)"
    )
    parent = f"from theseus_py.spawn import *; import sys; spawn([sys.executable, '-c', {rank!r}], Layout(1))"
    with subprocess.Popen([*PYTHON, parent], stdout=subprocess.PIPE, env=dict(os.environ)) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert alive(pid)
        process.kill()
        process.wait()
    deadline = time.monotonic() + 20
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pid)


def test_a_missing_program_is_named() -> None:
    with pytest.raises(RankFailed, match="cannot start no-such-program"):
        spawn(["no-such-program"], Layout(2), timeout=10)
