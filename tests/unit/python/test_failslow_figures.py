"""What benchmarks/failslow.py compares with: floors, the expected results, and the medians it shows."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
pytest.importorskip("scipy", reason="floors are linear programs")


@pytest.fixture(autouse=True)
def _repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not (ROOT / "benchmarks" / "harness").is_dir():
        pytest.skip("the benchmarks are not there")
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    yield


def caps_module() -> Any:
    return importlib.import_module("benchmarks.harness.nic_caps")


@pytest.mark.parametrize("fraction, wanted", [(0.5, 1.032), (0.1, 1.060), (0.0, 1.067)])
def test_one_slow_nic_costs_all_reduce_little(fraction: float, wanted: float) -> None:
    """Four hosts: what all NICs have left together decides, n R / (n R - 1 + p)."""
    module = caps_module()
    value = module.floor("all_reduce", 4, 4, [module.Cap(1, 2, fraction)])
    assert value == pytest.approx(16 / (15 + fraction), abs=1e-6)
    assert value == pytest.approx(wanted, abs=1e-3)


def test_floors_are_those_of_the_healing() -> None:
    """Two ways to the same figure: the whole linear program here, closed forms over cuts in the library."""
    floors = pytest.importorskip("theseus_py.healing.floors")
    module = caps_module()
    names = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter"}
    for scenario in module.scenarios(module.FRACTIONS, more=True):
        for collective, name in names.items():
            theirs = floors.floor(name, module.capacities(4, 4, scenario.caps))
            assert module.floor(collective, 4, 4, scenario.caps) == pytest.approx(theirs, abs=1e-6), scenario.name


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_a_single_wrong_element_is_found(collective: str) -> None:
    """The right result passes on every rank, and any one change of it does not."""
    values = importlib.import_module("benchmarks.harness.nic_values")
    ranks, count = 4, 4000
    made = [values.Expected(rank, ranks, count) for rank in range(ranks)]
    memory = [np.empty(count, np.float32) for _ in range(ranks)]
    sent, received = zip(*(made[r].buffers(collective, count, memory[r]) for r in range(ranks)), strict=True)
    for rank in range(ranks):
        if collective == "broadcast":
            received[rank][:] = received[0]
        elif collective == "all_gather":
            received[rank][:] = np.concatenate(sent)
        else:
            first = rank * len(received[rank]) if collective == "reduce_scatter" else 0
            received[rank][:] = np.sum(sent, axis=0)[first : first + len(received[rank])]
        assert made[rank].wrong(collective, count, received[rank]) == 0
        spoilt = received[rank].copy()
        spoilt[len(spoilt) // 3] += 1
        assert made[rank].wrong(collective, count, spoilt) == 1


def test_runs_that_did_not_end_are_no_slowdown() -> None:
    """Where half of the runs stalled there is no figure; otherwise the median over the healthy one."""
    module = caps_module()
    reports = importlib.import_module("benchmarks.harness.nic_report")
    jobs = importlib.import_module("benchmarks.harness.nic_job")
    testbed = importlib.import_module("theseus_py.testbed")
    measured = reports.Measured(testbed.Shape())
    slow, dead = (module.Scenario(str(p), (module.Cap(1, 2, p),)) for p in (0.5, 0.0))
    for scenario, seconds, stalled in [(module.HEALTHY, 2.0, False), (slow, 3.0, False), (dead, 9.0, True)]:
        measured.add("ours", scenario, "all_reduce", jobs.Run(seconds, stalled, []))
    assert measured.slowdown("ours", slow, "all_reduce") == 1.5
    assert measured.slowdown("ours", dead, "all_reduce") is None
    assert measured.stalled("ours", dead, "all_reduce")
    assert measured.slowdown("other", slow, "all_reduce") is None
