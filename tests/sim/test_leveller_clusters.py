"""Clusters made by chance have the shape of the trace, and LEVELLER keeps its promise on them; files are checked."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

import pytest

pytest.importorskip("flowsim._core", reason="the native library is not built")

from leveller.cli import _run
from leveller.core.levels import LowestRateFirst
from leveller.sim import simulate
from leveller.sim.clusters import generate
from leveller.sim.optimum import bound


def test_the_shape_of_the_trace() -> None:
    """More than 30 jobs at once, and about 36 % of them contended; equal seeds give equal clusters."""
    clusters = [generate(seed) for seed in range(60)]
    assert mean(len(each.jobs) for each in clusters) > 30
    assert 0.31 < mean(each.contended() for each in clusters) < 0.41
    assert generate(5) == clusters[5] != clusters[6]


def test_hosts_are_one_jobs_each() -> None:
    """And every path is made of links that are there."""
    for seed in range(10):
        cluster = generate(seed)
        assert sum(job.gpus for job in cluster.jobs) <= cluster.gpus
        ends = [path[0] for job in cluster.jobs for path in job.paths()]
        assert len(set(ends)) == len(ends)
        assert {link for job in cluster.jobs for path in job.paths() for link in path} <= cluster.capacities.keys()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("levels", [2, 8])
def test_theorem_1(seed: int, levels: int) -> None:
    """The lowest R is at least half of what no schedule beats, also in networks and with few levels."""
    cluster = generate(seed)
    least = simulate(cluster.jobs, cluster.capacities, LowestRateFirst(levels), 160.0, period=4.0).least
    assert least >= 0.5 * bound(cluster.jobs, cluster.capacities)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = _run(["simulate", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_command_simulates_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The paper's two jobs, written down."""
    file = tmp_path / "jobs.toml"
    jobs = "".join(
        f'[[job]]\nname = "{name}"\nphases = [{{compute = 1, transfers = [{{path = ["x"], bytes = {size}}}]}}]\n'
        for name, size in (("one", 5e9), ("two", 10e9))
    )
    file.write_text(f'[links]\n"x" = 5e9\n{jobs}')
    code, printed, _ = run(capsys, str(file), "--json")
    assert code == 0
    told = json.loads(printed)
    assert told["bound"] == pytest.approx(6 / 7)
    assert told["rates"]["fair"] == pytest.approx({"one": 0.75, "two": 0.75}, rel=0.01)
    assert told["rates"]["lowest-rate-first"] == pytest.approx({"one": 6 / 7, "two": 6 / 7}, rel=0.01)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("links = 3", "links"),
        ("[links]\nx = 1\n[[job]]\nname = 'a'\nphases = []", "does nothing"),
        ("[links]\nx = 0\n[[job]]\nname = 'a'\nphases = [{compute = 1}]", "link x carries nothing"),
        (
            "[links]\nx = 1\n[[job]]\nname = 'a'\nphases = [{transfers = [{path = ['y'], bytes = 1}]}]",
            "crosses link y, which is not among the links",
        ),
        ("[links]\nx = 1\n[[job]]\nname = 'a'\nphases = [{compute = -1}]", "at least 0 seconds"),
        ("job = []\n[links]", r"there is no \[\[job\]\]"),
        ("[[", "jobs.toml"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str) -> None:
    """In one sentence, with what is wrong in it."""
    file = tmp_path / "jobs.toml"
    file.write_text(text)
    code, _, said = run(capsys, str(file))
    assert code == 2
    assert why.replace("\\", "") in " ".join(said.split())
    assert "Traceback" not in said


def test_a_file_or_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """One of both."""
    for arguments in ([], ["x.toml", "--example", "two"], ["--example", "four"]):
        code, _, said = run(capsys, *arguments)
        assert code == 2
        assert "two, three, cluster" in " ".join(said.split())
