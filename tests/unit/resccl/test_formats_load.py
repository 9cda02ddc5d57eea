"""One entry for all formats, told by content; folders that hold more than schedules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from unit.resccl.formats_inputs import prove, ring_allreduce

from resccl import Plan, _core, formats
from resccl.formats import FormatError, load, load_folder

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("file", "kind", "form"),
    [
        ("allgather_ring.xml", "plan", "msccl-xml"),
        ("allreduce_packets.json", "plan", "mscclpp-json"),
        ("alltoall_flows.json", "algorithm", "teccl-json"),
    ],
)
def test_the_format_is_told_by_content(file: str, kind: str, form: str, tmp_path: Path) -> None:
    other = tmp_path / "schedule.txt"
    other.write_bytes(
        b"\xef\xbb\xbf \n" + (DATA / file).read_bytes() if form == "msccl-xml" else (DATA / file).read_bytes()
    )
    found = load(other)
    assert (found.kind, found.meta["format"]) == (kind, form)
    if found.plan is None:
        assert found.algorithm is not None
        topology = {"host_of_rank": [0] * found.algorithm["ranks"], "rails": 1}
        found.plan = _core.decode_plan(_core.compile(found.algorithm, topology))
    prove(found.plan, slots=8)


def test_plans_of_ours_are_loaded_as_well(tmp_path: Path) -> None:
    text = ring_allreduce(3).encode()
    plan = Plan.from_dict(formats.import_msccl_xml(text).plan or {})
    (tmp_path / "a").write_bytes(plan.to_bytes())
    (tmp_path / "b").write_text(plan.to_json())
    for file in ("a", "b"):
        found = load(tmp_path / file).plan
        assert found is not None
        assert Plan.from_dict(found).to_bytes() == plan.to_bytes()
    (tmp_path / "a").write_bytes(plan.to_bytes()[:-1])
    with pytest.raises(FormatError, match="a: "):
        load(tmp_path / "a")


def test_what_is_no_schedule_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.json"
    for text in ("", "hello", "{}", "[1]", json.dumps({"flows": []})):
        file.write_text(text)
        with pytest.raises(FormatError, match=r"x\.json"):
            load(file)
    monkeypatch.setattr("resccl.formats.files.MAX_FILE_BYTES", 100)
    file.write_text("<algo>" + " " * 200)
    with pytest.raises(FormatError, match="larger"):
        load(file)
    with pytest.raises(FormatError, match="no such file"):
        load(tmp_path / "missing.xml")
    with pytest.raises(FormatError, match="no file"):
        load(tmp_path)


def test_a_folder_with_bad_files_loads_the_good_ones_and_says_which_it_skipped(tmp_path: Path) -> None:
    good = ring_allreduce(3)
    (tmp_path / "good.xml").write_text(good)
    (tmp_path / "also.json").write_bytes((DATA / "allreduce_packets.json").read_bytes())
    (tmp_path / "cut.xml").write_text(good[: len(good) // 2])
    (tmp_path / "empty.xml").write_text("")
    (tmp_path / "no_gpus.xml").write_text('<algo coll="allreduce" nchunksperloop="1"/>')
    (tmp_path / "README").write_text("hello")
    (tmp_path / ".hidden.xml").write_text(good)
    (tmp_path / "folder.xml").mkdir()
    os.symlink(tmp_path / "nowhere", tmp_path / "broken.xml")
    found = load_folder(tmp_path)
    assert sorted(found.loaded) == ["also.json", "good.xml"]
    reasons = {
        "cut.xml": "no XML",
        "empty.xml": "neither",
        "no_gpus.xml": "0 gpus",
        "README": "name",
        ".hidden.xml": "dot",
    }
    reasons |= {"folder.xml": "no file", "broken.xml": "no such file"}
    assert sorted(found.skipped) == sorted(reasons)
    for file, reason in reasons.items():
        assert reason in found.skipped[file]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    found = load_folder(tmp_path / "missing")
    assert not found.loaded
    assert list(found.skipped) == [str(tmp_path / "missing")]


def test_the_same_file_gives_the_same_bytes_whatever_the_hash_seed() -> None:
    program = (
        "import hashlib, sys; from resccl import _core, formats; "
        "found = [formats.load(f) for f in sys.argv[1:]]; "
        "out = [_core.encode_plan(f.plan) + formats.export_msccl_xml(f.plan) if f.plan else "
        "f.algorithm['transfers'].tobytes() "
        "for f in found]; print(hashlib.sha256(b''.join(out)).hexdigest(), [f.notes for f in found])"
    )
    files = [str(DATA / file) for file in ("allgather_ring.xml", "allreduce_packets.json", "alltoall_flows.json")]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, *files],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "12345")
    }
    assert len(outputs) == 1
