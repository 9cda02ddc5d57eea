"""Schedules that other people's tools write, on emulated GPUs: imported, made plan files, loaded by communicators.

The comparison with the host executor is `DISABLED_GpuLoadedPlans.OfAFolder` of build/tests/test_emu.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from unit.resccl.formats_inputs import ring_allreduce

resccl_core = pytest.importorskip("resccl._core", reason="the compiler's extension is not built")

from resccl.formats import Imported, load, load_bytes  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("THESEUS_BUILD_DIR", REPOSITORY / "build")) / "tests" / "test_emu"
DATA = REPOSITORY / "tests" / "unit" / "resccl" / "data"
FOLDER = Path(os.environ.get("THESEUS_SCHEDULES", "/nonexistent"))
LIMIT = 600  # seconds, for all plans of a folder


def plan_file(found: Imported) -> bytes:
    """The plan file of what was imported."""
    if found.plan is not None:
        return bytes(resccl_core.encode_plan(found.plan))
    assert found.algorithm is not None
    topology = {"host_of_rank": [0] * found.algorithm["ranks"], "rails": 1}
    return bytes(resccl_core.compile(found.algorithm, topology))


def run_plans(folder: Path) -> list[str]:
    """Run all plans of a folder on emulated GPUs; one line each, of those that ran as on the host."""
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not built: install GoogleTest (libgtest-dev), then run make test")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("THESEUS_", "NCCL_"))}
    command = [PROGRAM, "--gtest_filter=DISABLED_GpuLoadedPlans.OfAFolder", "--gtest_also_run_disabled_tests"]
    done = subprocess.run(
        command,
        env={**environment, "PLANS_OF_TEST": str(folder), "THESEUS_EMU_DEVICES": "8"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return [line for line in done.stdout.splitlines() if line.endswith(" equal")]


def test_imported_schedules_run_on_gpus(tmp_path: Path) -> None:
    texts = {f"ring-{ranks}.xml": ring_allreduce(ranks).encode() for ranks in (2, 3, 4)}
    texts |= {file.name: file.read_bytes() for file in sorted(DATA.iterdir())}
    for name, text in texts.items():
        (tmp_path / f"{name}.plan").write_bytes(plan_file(load_bytes(text, name)))
    assert len(run_plans(tmp_path)) == len(texts)


@pytest.mark.skipif(not FOLDER.is_dir(), reason="THESEUS_SCHEDULES names no folder with schedules")
def test_real_schedules_run_on_gpus(tmp_path: Path) -> None:
    files = sorted(file for file in FOLDER.rglob("*") if file.suffix in (".xml", ".json"))
    for file in files:
        (tmp_path / f"{file.name}.plan").write_bytes(plan_file(load(file)))
    lines = run_plans(tmp_path)
    print("\n".join(lines))
    assert len(lines) == len(files)
