"""Against SimGrid, where it is installed."""

from __future__ import annotations

import pytest

pytest.importorskip("flowsim._core", reason="the native library is not built")

from benchmarks.peers import simgrid_flows

pytestmark = pytest.mark.skipif(
    not simgrid_flows.installed(),
    reason="simgrid is not installed: pip install simgrid (it builds from Boost's headers and pybind11 < 3)",
)


@pytest.mark.parametrize("seed", range(10))
def test_times_are_within_one_percent(seed: int) -> None:
    """Fair sharing on random networks gives each flow the time that SimGrid gives it."""
    assert simgrid_flows.worst_difference(seed) < 0.01
