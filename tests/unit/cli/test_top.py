"""`theseus top` shows what a status says, and copes with one that says little."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from theseus_py.cli import status
from theseus_py.cli.communicators import duration_text, size_text
from theseus_py.cli.top import Rates, picture

STATUS: dict[str, Any] = {
    "job": "train",
    "position": 7,
    "has_quorum": True,
    "members": [{"host": "a"}, {"host": "b"}],
    "attributes": [{"name": "nic_health", "values": [1.0, 0.25, 1.0, 1.0]}],
    "monitor": {
        "map": 3,
        "events": [{"detected": 1_000_000, "planned": 41_000_000, "in_log": 91_000_000, "map": 3}],
        "flows": [["b", 1, 0, 0, 0, 0]],
    },
    "communicators": [],
}


def rank_of(rank: int, **changed: Any) -> dict[str, Any]:
    return {
        "rank": rank, "age": 0.4, "epoch": 2, "installed": 7, "read": 7, "agreements": 31, "next_k": 100,
        "held_back_by": None, "tte": {"samples": 90, "p50": 8.5e-7, "p99": 1.4e-5},
        "resources": {"bytes": 3 << 20, "nodes": 5}, **changed,
    }  # fmt: skip


def communicator_of(*local: dict[str, Any], **changed: Any) -> dict[str, Any]:
    schedule = {
        "collective": "AllReduce", "from_bytes": 1024, "to_bytes": (1 << 20) - 1, "schedule": "even",
        "origin": "context", "may_share": False, "since": 1200,
    }  # fmt: skip
    return {"id": "0123456789" + "a" * 22, "name": "", "ranks": 8, "local": list(local), "schedules": [schedule],
            **changed}  # fmt: skip


def words_of(text: str, start: str) -> list[str]:
    """Return the words of the first row that starts so."""
    row = next(line for line in text.splitlines() if start in line)
    return row.replace("│", " ").split()


def shown(status: dict[str, Any], rates: Rates) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(picture(status, rates))
    return console.export_text()


def test_it_shows_health_flows_and_events() -> None:
    rates = Rates()
    rates.take(STATUS)
    later = {**STATUS, "monitor": {**STATUS["monitor"], "flows": [["b", 1, 5_000_000, 1_000_000_000, 0, 0]]}}
    text = shown(later, rates)
    assert "0.25" in text
    assert "healing map 3" in text
    assert "5.0 MB/s" in text
    assert "planned within 40 ms, in the log 50 ms later" in text


def test_a_job_without_monitor_or_map_is_shown_too() -> None:
    text = shown({**STATUS, "monitor": None, "attributes": [], "has_quorum": False}, Rates())
    assert "no quorum" in text
    assert "normal schedules" in text


def test_it_shows_what_the_ranks_say_of_their_communicators() -> None:
    """A row a communicator and a row a schedule; ranks that differ show as a range, costs of the slowest."""
    ranks = rank_of(0), rank_of(1, agreements=30, tte={"samples": 5, "p50": 9e-7, "p99": 2.5e-3})
    text = shown({**STATUS, "communicators": [communicator_of(*ranks)]}, Rates())
    row = " ".join(words_of(text, "2 of 8"))
    assert row == "01234567 2 of 8 2 7 of 7 30 to 31 100 900 ns, 2.5 ms 6 MB, 10 nodes"
    assert " ".join(words_of(text, "AllReduce")) == "01234567 AllReduce 1 KB to 1 MB even context 1200"


def test_ranks_that_are_silent_or_hold_others_back_are_named() -> None:
    ranks = rank_of(0, age=30.0), rank_of(1, held_back_by=6), rank_of(2, tte={"samples": 0, "p50": 0.0, "p99": 0.0})
    text = shown({**STATUS, "communicators": [communicator_of(*ranks, name="[bold]dp", schedules=[])]}, Rates())
    assert "[bold]dp: silent: rank 0" in text
    assert "[bold]dp: the newest context waits for rank 6" in text
    assert "schedules in use" not in text


def test_a_rank_without_samples_shows_no_time() -> None:
    rank = rank_of(0, tte={"samples": 0, "p50": 0.0, "p99": 0.0})
    text = shown({**STATUS, "communicators": [communicator_of(rank)]}, Rates())
    assert " ".join(words_of(text, "1 of 8")).endswith("100 -, - 3 MB, 5 nodes")


def test_status_shows_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    found = {
        **STATUS, "host": "a", "leader": "a", "log_id": 1, "readable": 7, "ranks": [1], "pid": 2, "frozen": None,
        "missing_plans": [], "communicators": [communicator_of(rank_of(0))],
    }  # fmt: skip
    status.show(found, with_log=False)
    text = " ".join(capsys.readouterr().out.split())
    assert "communicators of this host's ranks" in text
    assert "schedules in use" in text and "AllReduce" in text


def test_sizes_and_times_as_people_write_them() -> None:
    assert [size_text(size) for size in (1, 1023, 1024, 1536, 1 << 20, 3 << 30)] == [
        "1 B", "1023 B", "1 KB", "1.5 KB", "1 MB", "3 GB"
    ]  # fmt: skip
    assert [duration_text(each) for each in (8.5e-7, 3.21e-6, 0.014, 2.5)] == ["850 ns", "3.21 us", "14 ms", "2.5 s"]
