"""Ranks that die, stop, stray, come late, disagree or fork: the others are told what happened, and nothing hangs."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from process.processes import Ranks, one_host, two_hosts

Place = Callable[[int], Mapping[str, str]]
PLACES = pytest.mark.parametrize("place", [one_host, two_hosts], ids=["shm", "tcp"])
# So many MB that a signal falls into the middle of a call.
LARGE = 16 << 20


def shared_memory_names() -> set[str]:
    """What lies in /dev/shm."""
    folder = Path("/dev/shm")
    return {each.name for each in folder.iterdir()} if folder.exists() else set()


def survivors_go_on(ranks: Ranks, dead: int) -> None:
    """Every survivor got RemoteError naming the dead rank, and shrinks to a communicator that works."""
    for outcome in ranks.wait_for("outcome", dead):
        assert outcome["error"] == "RemoteError", outcome
        assert f"rank {dead}" in outcome["message"], outcome
    for state in ranks.wait_for("async_error", dead):
        assert state["error"] == "RemoteError", state
    ranks.wait_for("shrunk", dead)
    assert [each.wait_for_end() for each in ranks.but(dead)] == [0] * 3


@PLACES
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("dead", [0, 2])
def test_a_rank_ends_in_the_middle_of_a_large_call(place: Place, sign: signal.Signals, dead: int) -> None:
    # A stopped rank is found by its silence: soon, so that the test need not wait as long as users do by default.
    quick = {"THESEUS_HEARTBEAT_TIMEOUT": "5"} if sign == signal.SIGSTOP else {}
    with Ranks("until_it_fails", 4, place, quick, elements=LARGE // 4, pause=0.0, shrink_by=[dead]) as ranks:
        ranks.wait_for("ready")
        ranks.tell()
        ranks.wait_for("used")
        ranks.tell()
        ranks.wait_for("looping")
        ranks[dead].signal(sign)
        survivors_go_on(ranks, dead)


@PLACES
def test_a_rank_is_killed_before_the_first_call(place: Place) -> None:
    with Ranks("until_it_fails", 4, place, elements=1000, pause=0.0, shrink_by=[3]) as ranks:
        ranks.wait_for("ready")
        ranks[3].signal(signal.SIGKILL)
        ranks[3].wait_for_end()
        ranks.tell(3, use=False)
        ranks.tell(3)
        survivors_go_on(ranks, 3)


@PLACES
def test_a_rank_is_killed_between_calls(place: Place) -> None:
    with Ranks("until_it_fails", 4, place, elements=10, pause=0.2, shrink_by=[1]) as ranks:
        ranks.wait_for("ready")
        ranks.tell()
        ranks.wait_for("used")
        ranks.tell()
        ranks.wait_for("looping")
        ranks[1].signal(signal.SIGKILL)
        survivors_go_on(ranks, 1)


@pytest.mark.parametrize("dead", [0, 2])
def test_a_rank_is_killed_inside_init(dead: int) -> None:
    with Ranks("only_init", 4, environment={"THESEUS_INIT_TIMEOUT": "15"}) as ranks:
        ranks[dead].tell()
        ranks[dead].wait_for("joining")
        for each in ranks.but(dead, 3):
            each.tell()
            each.wait_for("joining")
        ranks[dead].signal(signal.SIGKILL)
        ranks[dead].wait_for_end()
        ranks[3].tell()
        for outcome in ranks.wait_for("outcome", dead):
            assert outcome["error"] in ("RemoteError", "Timeout", "SystemError"), outcome


def test_nothing_stays_in_shared_memory() -> None:
    before = shared_memory_names()
    for stage in ("id", "ready", "looping"):
        with Ranks("until_it_fails", 3, elements=1 << 20, pause=0.0, shrink_by=[]) as ranks:
            if stage != "id":
                ranks.wait_for("ready")
            if stage == "looping":
                ranks.tell(use=False)
                ranks.tell()
                ranks.wait_for("looping")
            for each in ranks.all:
                each.signal(signal.SIGKILL)
    assert {name for name in shared_memory_names() - before if "theseus" in name.lower()} == set()


def test_a_late_rank_is_waited_for() -> None:
    with Ranks("late", 3, environment={"THESEUS_HEARTBEAT_TIMEOUT": "4"}, seconds=6) as ranks:
        assert [each["error"] for each in ranks.wait_for("outcome")] == [None] * 3


@PLACES
def test_a_timeout_ends_a_call_that_others_never_make(place: Place) -> None:
    with Ranks("abandoned", 4, place, {"THESEUS_TIMEOUT": "2"}) as ranks:
        for outcome in ranks.wait_for("outcome", 3):
            assert outcome["error"] == "Timeout", outcome
        ranks.tell()
        ranks.wait_for("left")
        assert [each.wait_for_end() for each in ranks.all] == [0] * 4


@PLACES
def test_abort_returns_while_others_hang(place: Place) -> None:
    with Ranks("abort_from_aside", 4, place) as ranks:
        ranks[0].wait_for("aborted")
        assert ranks[0].wait_for("outcome")["error"] == "InvalidUsage"
        for outcome in [each.wait_for("outcome") for each in ranks.but(0, 3)]:
            assert outcome["error"] == "RemoteError" and "rank 0" in outcome["message"], outcome
        ranks[3].tell()
        ranks.wait_for("left")
        assert [each.wait_for_end() for each in ranks.all] == [0] * 4


@pytest.mark.parametrize(
    ("odd", "others", "words"),
    [
        ("short", "sum", ["4090", "4096"]),
        ("int32", "sum", ["int32", "float32"]),
        ("max", "sum", ["max", "sum"]),
        ("gather", "sum", ["AllGather", "AllReduce"]),
        ("broadcast 1", "broadcast 0", ["Broadcast", "root"]),
        ("reduce 1", "reduce 0", ["Reduce", "root"]),
        ("sum", "barrier,sum", ["4096", "uint8"]),
        ("large", "sum", ["1048576", "4096"]),
        ("sum,max", "max,sum", ["max", "sum"]),
    ],
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_mismatched_calls_name_both_sides(odd: str, others: str, words: list[str], ranks: int) -> None:
    with Ranks("mismatched", ranks, calls=[others] * (ranks - 1) + [odd]) as all_ranks:
        for outcome in all_ranks.wait_for("outcome"):
            assert outcome["error"] == "InvalidUsage", outcome
            assert "mismatched calls" in outcome["message"], outcome
            assert f"rank {ranks - 1}" in outcome["message"], outcome
            for word in words:
                assert word in outcome["message"], outcome
        all_ranks.wait_for("left")


def listening_ports(process: int) -> list[tuple[str, int]]:
    """Where a process listens for TCP, by the kernel."""
    inodes = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        try:
            inodes.add(os.readlink(link))
        except FileNotFoundError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, port = fields[1].split(":")
                host = socket.inet_ntoa(int(address[:8], 16).to_bytes(4, "little"))
                found.append(("127.0.0.1" if host == "0.0.0.0" else host, int(port, 16)))
    return found


def test_strangers_at_the_port_do_no_harm() -> None:
    with Ranks("only_init", 3) as ranks:
        doors = listening_ports(ranks[0].process.pid)
        assert doors
        strangers = []
        ranks[0].tell()
        ranks[0].wait_for("joining")
        for said in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(range(200, 208)), b"abc", b"", *[b""] * 50):
            strangers.append(socket.create_connection(doors[0], 10))
            strangers[-1].sendall(said)
        socket.create_connection(doors[0], 10).close()
        ranks.tell(0)
        assert [each["error"] for each in ranks.wait_for("outcome")] == [None] * 3
        for each in strangers:
            each.close()


@pytest.mark.parametrize(
    "claims",
    [[[0, 2], [0, 2]], [[0, 3], [1, 3], [1, 3]], [[0, 3], [1, 3], [2, 4]]],
    ids=["rank 0 twice", "rank 1 twice", "another number of ranks"],
)
def test_ranks_that_disagree_on_who_they_are(claims: list[list[int]]) -> None:
    with Ranks("init_as", len(claims), environment={"THESEUS_INIT_TIMEOUT": "40"}, claims=claims) as ranks:
        errors = [each["error"] for each in ranks.wait_for("outcome")]
        assert None not in errors and any(each != "Timeout" for each in errors), errors


def test_a_missing_rank_ends_init_and_is_named() -> None:
    with Ranks("only_init", 3, environment={"THESEUS_INIT_TIMEOUT": "2"}) as ranks:
        ranks.tell(2)
        for outcome in ranks.wait_for("outcome", 2):
            assert outcome["error"] in ("Timeout", "RemoteError"), outcome
        assert "2" in ranks[0].seen[-1]["message"]


def test_a_unique_id_serves_once() -> None:
    with Ranks("init_twice", 3, environment={"THESEUS_INIT_TIMEOUT": "5"}) as ranks:
        for outcome in ranks.wait_for("outcome"):
            assert outcome["error"] is not None, outcome
        ranks.wait_for("first_works")
        assert [each.wait_for_end() for each in ranks.all] == [0] * 3


@PLACES
@pytest.mark.parametrize("way", ["_exit", "exit", "abort", "destroy", "subprocess"])
def test_a_fork_is_inert(place: Place, way: str) -> None:
    with Ranks("forked", 3, place, way=way) as ranks:
        ranks.wait_for("done")
        assert [each.wait_for_end() for each in ranks.all] == [0] * 3


@pytest.mark.parametrize(("files", "memory"), [(8, 0), (14, 0), (40, 0), (0, 1 << 20), (0, 24 << 20)])
def test_too_little_of_something_is_an_error_with_a_name(files: int, memory: int) -> None:
    with Ranks("limited", 2, environment={"THESEUS_INIT_TIMEOUT": "10"}, files=files, memory=memory) as ranks:
        ranks.tell()
        outcomes = ranks.wait_for("outcome")
        for outcome in outcomes:
            assert outcome["error"] is None or outcome["message"], outcome
        known = {None, "SystemError_", "RemoteError", "Timeout", "MemoryError"}
        assert {each["error"] for each in outcomes} <= known, outcomes
        assert [each.wait_for_end() for each in ranks.all] == [0] * 2


@pytest.mark.parametrize("way", ["plain", "global", "work", "thread"])
def test_an_end_without_destroy_does_not_hang(way: str) -> None:
    with Ranks("no_destroy", 2, way=way) as ranks:
        ranks.wait_for("leaving")
        assert [each.wait_for_end() for each in ranks.all] == [0] * 2


def test_a_rank_may_leave_while_others_still_pass_on_what_it_sent() -> None:
    environment = {"THESEUS_ALGO": "ring", "THESEUS_SLOT_BYTES": "1024"}
    with Ranks("leave_early", 3, environment=environment) as ranks:
        assert ranks[0].wait_for("outcome")["error"] is None
        assert ranks[0].wait_for_end() == 0
        ranks[1].tell()
        for each in ranks.but(0):
            assert each.wait_for("outcome")["error"] is None
            assert each.wait_for_end() == 0


def test_more_ranks_than_cores() -> None:
    with Ranks("many_small", 8, rounds=1000) as ranks:
        ranks.wait_for("done")
        assert [each.wait_for_end() for each in ranks.all] == [0] * 8


@pytest.mark.parametrize(
    ("place", "environment"),
    [
        (one_host, {}),
        (one_host, {"THESEUS_CMA": "0"}),
        (two_hosts, {}),
        (two_hosts, {"THESEUS_SLOT_BYTES": "2048", "THESEUS_SLOTS": "2", "THESEUS_ALGO": "hierarchical"}),
    ],
    ids=["cma", "shm", "tcp", "hierarchical"],
)
def test_processes_compute_what_numpy_computes(place: Place, environment: dict[str, str]) -> None:
    with Ranks("calls_of_seed", 4, place, environment, seed=5, rounds=48) as ranks:
        ranks.wait_for("done")
        assert [each.wait_for_end() for each in ranks.all] == [0] * 4
