"""Schedules that other people's tools wrote, where the folder THESEUS_SCHEDULES has some."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resccl import _core
from resccl.formats import export_msccl_xml, import_msccl_xml, load, raise_algorithm
from resccl.interpret import Interpreter, setting_for

FOLDER = Path(os.environ.get("THESEUS_SCHEDULES", "/nonexistent"))
FILES = sorted(file for file in FOLDER.rglob("*") if file.suffix in (".xml", ".json")) if FOLDER.is_dir() else []

if not FILES:
    pytest.skip("THESEUS_SCHEDULES names no folder with schedules", allow_module_level=True)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_real_schedule_is_right(file: Path) -> None:
    found = load(file)
    plan = found.plan
    if plan is None:
        assert found.algorithm is not None
        topology = {"host_of_rank": [0] * found.algorithm["ranks"], "rails": 1}
        plan = _core.decode_plan(_core.compile(found.algorithm, topology))
    _core.verify(_core.encode_plan(plan), slots=2)
    for in_place in (False, True) if plan["collective"] != "AllToAll" else (False,):
        # Races are the verifier's; watching for them takes minutes in Python.
        assert Interpreter(plan, setting_for(plan, 2, slots=2, in_place=in_place)).run(watch=False) is None


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_real_schedule_can_be_exported_and_raised(file: Path) -> None:
    plan = load(file).plan
    if plan is None:
        pytest.skip("an algorithm already")
    back = import_msccl_xml(export_msccl_xml(plan)).plan
    assert back is not None
    _core.verify(_core.encode_plan(back))
    topology = {"host_of_rank": [0] * plan["ranks"], "rails": 1}
    _core.verify(_core.compile(raise_algorithm(plan), topology))
