"""The demo's first half: its verdict and report; and the whole demo, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import theseus_py
from theseus_py.demo import report
from theseus_py.demo.progress import StageProgress
from theseus_py.demo.results import LOSS_TOLERANCE, Results, Training
from theseus_py.perf.report import Row, Timing


def results(wrong: int = 0, drift: float = 0.0) -> Results:
    rows = [
        Row(size, size // 4, "float", "sum", -1, timing, timing)
        for size in (8, 64, 1 << 20)
        for timing in [Timing.of(size, 1e-4, 1.5, wrong)]
    ]
    loss = [2.3, 1.2, 0.4]
    trainings = {
        "gloo": Training("gloo", loss, [3.0, 2.0, 2.5], 0.9, 1000),
        "theseus": Training("theseus", [value + drift for value in loss], [3.0, 2.0, 2.0], 0.9, 1000),
    }
    return Results("4 ranks on 2 virtual hosts x 2 rails", rows, trainings, 12.0, {})


def test_equal_losses_and_right_sums_are_no_fault() -> None:
    assert results().faults() == []
    assert results(drift=LOSS_TOLERANCE / 2).faults() == []


@pytest.mark.parametrize("drift", [2 * LOSS_TOLERANCE, -1e-3, float("nan")])
def test_losses_that_differ_are_a_fault(drift: float) -> None:
    """A difference in either direction, and a loss that is no number."""
    assert any("losses" in fault for fault in results(drift=drift).faults())


def test_wrong_sums_and_a_training_that_stands_still_are_faults() -> None:
    assert "6 elements" in results(wrong=1).faults()[0]
    flat = {name: replace(each, loss=[2.0, 2.0, 2.0]) for name, each in results().trainings.items()}
    assert "lower the loss" in replace(results(), trainings=flat).faults()[0]


def test_without_torch_the_sums_alone_are_judged() -> None:
    """Nothing trained is no fault, but a wrong sum still is one."""
    assert replace(results(), trainings={}).faults() == []
    assert "6 elements" in replace(results(wrong=1), trainings={}).faults()[0]


@pytest.mark.parametrize("trained", [True, False])
def test_report_shows_everything(tmp_path: Path, trained: bool) -> None:
    """Tables, verdict and a real PNG, with trainings and without."""
    pytest.importorskip("matplotlib")
    shown = results(drift=1e-7) if trained else replace(results(), trainings={})
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(report.render(shown))
    text = console.export_text()
    assert ("gloo" in text, "90.0%" in text, "1.0e-07" in text) == (trained, trained, trained)
    assert "1 MB" in text
    assert "OK: every AllReduce right" in text
    console.print(report.render(results(wrong=2)))
    assert "FAILED: 12 elements" in console.export_text()
    report.write_picture(shown, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_progress_without_a_terminal_is_a_line_a_quarter(tmp_path: Path) -> None:
    """A log file gets few lines, each with a percentage."""
    file = tmp_path / "log"
    with file.open("w") as stream, StageProgress(Console(file=stream)) as progress:
        for done in range(101):
            progress.update("training", done, 100)
    assert file.read_text().split("\n")[:-1] == [f"training: {percent} %" for percent in (0, 25, 50, 75, 100)]


def demo(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "from theseus_py.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "demo", "--quick", "--output", str(folder)],
        capture_output=True,
        text=True,
        timeout=560,
        env={**os.environ, "COLUMNS": "120", **environment},
        cwd=Path(theseus_py.__path__[0]).parent,  # `python -c` looks there first
        check=False,
    )


@pytest.fixture
def parts() -> None:
    for module in ("theseus_py._core", "torch", "sklearn", "matplotlib", "pysyncobj", "highspy"):
        pytest.importorskip(module)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("parts")
def test_the_demo_runs(tmp_path: Path) -> None:
    """Right sums and equal losses; then a NIC gets slow, and all ranks switch to a plan around it, with no restart and
    the very losses and weights of a run without; pictures, numbers and a trace; nothing is left behind.
    """
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = demo(tmp_path / "out", TMPDIR=str(temporary))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "training over theseus: 100 %" in done.stdout
    assert "OK: every AllReduce right" in done.stdout
    assert "OK: the job healed itself" in done.stdout

    data = json.loads((tmp_path / "out" / "demo.json").read_text())
    assert data["wrong_elements"] == 0
    assert data["largest_loss_difference"] <= LOSS_TOLERANCE
    assert len(data["training"]["theseus"]["loss"]) == len(data["training"]["gloo"]["loss"]) == 20

    healing = data["healing"]
    assert healing["faults"] == []
    ranks = healing["run"]["steps"]
    assert len(ranks) == 4
    assert len({len(steps) for steps in ranks}) == 1
    for steps in ranks:
        assert not steps[0]["schedule"].startswith("heal.")
        assert any(step["schedule"].startswith("heal.") for step in steps)
        assert [step["schedule"] for step in steps] == [step["schedule"] for step in ranks[0]]
        assert [step["loss"] for step in steps] == healing["reference_losses"]
    assert set(healing["run"]["fingerprints"].values()) == {healing["reference_fingerprint"]}
    events = {event["name"] for event in healing["run"]["events"]}
    assert {"capped", "detected", "switched", "restored"} <= events

    trace = json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]
    assert any(event["name"] == "context switch" for event in trace)
    assert any(event["name"] == "capped" for event in trace)
    for picture in ("collectives.png", "healing.png"):
        assert (tmp_path / "out" / picture).stat().st_size > 10_000
    assert list(temporary.glob("theseus*")) == []


@pytest.mark.usefixtures("parts")
def test_a_failing_rank_is_named(tmp_path: Path) -> None:
    """An interface that no rank has ends the demo with the rank and the reason, not with a traceback."""
    done = demo(tmp_path / "out", GLOO_SOCKET_IFNAME="nosuch0")
    assert done.returncode == 1
    assert "failed: " in done.stderr
    assert "nosuch0" in done.stderr
    assert "Traceback" not in done.stderr
