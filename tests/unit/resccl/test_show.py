"""Looking at schedules: the time line respects every wait; pictures are the same every time, and cut if large."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("resccl._core", reason="the native library is not built")

from resccl import Plan, analyse, compile, show
from resccl.examples import hm


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compile(hm.all_reduce(2, 2), "2x2")


def test_the_time_line_respects_every_wait(plan: Plan) -> None:
    """A message is received after it is sent, a TB does one thing at a time, and dependencies come first."""
    fields = plan.to_dict()
    times = show._times(fields, {part["rank"]: part for part in fields["rank_plans"]})
    lines = {rank: show.timeline(plan, rank) for rank in range(plan.ranks)}
    for rank, line in lines.items():
        blocks = fields["rank_plans"][rank]["thread_blocks"]
        assert line.thread_blocks == len(blocks) and len(line.cells) == sum(map(len, blocks))
        assert max(cell.time for cell in line.cells) < line.length == max(times.values()) + 1
        for tb, instructions in enumerate(blocks):
            assert [cell.opcode for cell in line.cells if cell.tb == tb] == [i["opcode"] for i in instructions]
            for step, instruction in enumerate(instructions):
                assert step == 0 or times[rank, tb, step - 1] < times[rank, tb, step]
                for other, at, distance in instruction["dependencies"]:
                    assert distance or times[rank, other, at] < times[rank, tb, step]
    messages = list(show._messages({part["rank"]: part for part in fields["rank_plans"]}))
    sends = sum(i["send"] >= 0 for part in fields["rank_plans"] for tb in part["thread_blocks"] for i in tb)
    assert len(messages) == sends > 0
    assert all(times[sender] < times[receiver] for sender, receiver in messages)


def test_a_plan_that_waits_for_ever_has_no_time_line(plan: Plan) -> None:
    fields = plan.to_dict()
    fields["rank_plans"][0]["thread_blocks"][0][0]["dependencies"] = [[0, 0, 0]]
    with pytest.raises(ValueError, match="wait for ever"):
        show.timeline(Plan.from_dict(fields), 0)


def test_a_rank_that_is_not_there(plan: Plan) -> None:
    with pytest.raises(ValueError, match="rank 4"):
        show.timeline(plan, 4)


def test_a_large_plan_is_not_taken_apart(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take gigabytes of objects."""
    monkeypatch.setattr(show, "MOST_INSTRUCTIONS", 10)
    monkeypatch.setattr(Plan, "to_dict", None)
    with pytest.raises(ValueError, match="too large"):
        show.timeline(plan, 0)


def test_text(plan: Plan) -> None:
    """Every task, sub-pipeline and thread block has a line; what is cut is said."""
    analysis = analyse(hm.all_reduce(2, 2), "2x2")
    tasks = show.dag_text(analysis, 1000)
    assert sum(line.startswith("  t") for line in tasks) == analysis.tasks
    assert any("between hosts" in line for line in tasks) and any("after t" in line for line in tasks)
    assert len(show.pipeline_text(analysis, 1000)) == analysis.sub_pipelines
    assert "more tasks" in show.dag_text(analysis, 3)[-1]
    assert "more sub-pipelines" in show.pipeline_text(analysis, 1)[-1]
    line = show.timeline(plan, 0)
    text = show.timeline_text(line, 1000)
    assert len(text) == line.thread_blocks + 1
    assert "up to time" in show.timeline_text(line, 2)[-1]
    assert sum(len(row.split()) - 2 for row in text[1:]) == line.thread_blocks * line.length


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures(plan: Plan, suffix: str, tmp_path: Path) -> None:
    """The file is what its name says, and the same each time it is drawn."""
    pytest.importorskip("matplotlib")
    from resccl.draw import draw

    analysis, line = analyse(hm.all_reduce(2, 2), "2x2"), show.timeline(plan, 0)
    pictures = []
    for name in ("a", "b"):
        file = tmp_path / f"{name}.{suffix}"
        draw(file, "title", analysis, line)
        pictures.append(file.read_bytes())
    assert pictures[0] == pictures[1]
    assert pictures[0].startswith(b"\x89PNG" if suffix == "png" else b"<?xml")


def test_large_schedules_are_cut_and_say_so(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from resccl.draw import draw

    file = tmp_path / "large.svg"
    draw(file, "title", analyse(hm.all_gather(4, 8), "4x8"), None)
    import matplotlib

    assert matplotlib.get_backend().lower() == "agg"
    assert file.stat().st_size < 3_000_000
    from resccl import draw as module

    assert module._cut(240, 992, "tasks") == " (the first 240 of 992 tasks)" and module._cut(3, 3, "tasks") == ""


def test_another_ending_is_refused(tmp_path: Path) -> None:
    from resccl.draw import draw

    with pytest.raises(ValueError, match=r"\.png or \.svg"):
        draw(tmp_path / "a.gif", "title", None, None)


def test_nothing_draws_until_it_is_asked_to() -> None:
    """matplotlib, typer and the formats are loaded by who needs them, not by `import resccl`."""
    code = (
        "import sys, resccl; print([m for m in ('matplotlib', 'typer', 'rich', 'resccl.formats') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=Path(show.__file__).parents[1],
    )
    assert done.stdout.strip() == "[]"
