"""The path that probes find is the one that data takes, before and after a spine goes down."""

from __future__ import annotations

import json
import subprocess
import sys
from ipaddress import IPv6Address
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
    s = told["carried"][0].removeprefix("spine")
    assert told["path"] == ["10.0.0.2>", f"10.1.{s}.2", f"10.1.{s}.5", "10.0.1.2"]


def test_probing_anew_finds_where_flows_went_when_a_spine_went_down(told: dict[str, Any]) -> None:
    assert told["probed later"] == told["carried later"]
    assert told["gone"] not in told["probed later"]


def test_connections_do_not_feel_the_probes(told: dict[str, Any]) -> None:
    assert told["whole"] and told["whole later"]


def test_ipv6_flows_are_found_too(told: dict[str, Any]) -> None:
    s = 0 if told["gone"] != "spine0" else 1
    routers = [str(IPv6Address(each)) for each in (f"fd01:{s}:0::2", f"fd01:{s}:1::1")]
    assert told["ipv6"] == ["fd00::2>", *routers, "fd00:1::2"]
