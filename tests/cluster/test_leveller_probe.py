"""The path that probes find is the one that data takes, before and after a spine goes down."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("leaf_spine.py")
FLOWS = 12


@pytest.fixture(scope="module", params=[2, 4])
def told(request: pytest.FixtureRequest) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(request.param), str(FLOWS)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_flows_are_found_on_the_spines_that_carry_them(told: dict[str, Any]) -> None:
    assert told["probed"] == told["carried"]
    assert len(set(told["carried"])) > 1, "all on one spine: the test tells nothing"
    assert told["path"] == ["host0>leaf0", f"leaf0>{told['carried'][0]}", f"{told['carried'][0]}>leaf1", "leaf1>host1"]


def test_probing_anew_finds_where_flows_went_when_a_spine_went_down(told: dict[str, Any]) -> None:
    assert told["probed later"] == told["carried later"]
    assert told["gone"] not in told["probed later"]


def test_connections_do_not_feel_the_probes(told: dict[str, Any]) -> None:
    assert told["whole"] and told["whole later"]


def test_ipv6_flows_are_found_too(told: dict[str, Any]) -> None:
    over = told["ipv6"][1].partition(">")[2]
    assert told["ipv6"] == ["host0>leaf0", f"leaf0>{over}", f"{over}>leaf1", "leaf1>host1"]
