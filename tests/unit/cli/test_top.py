"""`theseus top` shows what a status says, and copes with one that says little."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

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
        "flows": [["b", 1, 0, 0]],
    },
}


def shown(status: dict[str, Any], rates: Rates) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(picture(status, rates))
    return console.export_text()


def test_it_shows_health_flows_and_events() -> None:
    rates = Rates()
    rates.take(STATUS)
    later = {**STATUS, "monitor": {**STATUS["monitor"], "flows": [["b", 1, 5_000_000, 1_000_000_000]]}}
    text = shown(later, rates)
    assert "0.25" in text
    assert "healing map 3" in text
    assert "5.0 MB/s" in text
    assert "planned within 40 ms, in the log 50 ms later" in text


def test_a_job_without_monitor_or_map_is_shown_too() -> None:
    text = shown({**STATUS, "monitor": None, "attributes": [], "has_quorum": False}, Rates())
    assert "no quorum" in text
    assert "normal schedules" in text
