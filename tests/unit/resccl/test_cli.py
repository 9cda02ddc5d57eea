"""The command `resccl` as a user meets it: right answers, and one helpful sentence for what cannot be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("resccl._core", reason="the native library is not built")

from resccl import Plan, compile
from resccl.cli import main
from resccl.examples import hm

MESH = """
from resccl import Algorithm

def algorithm(ranks, chunks_each=1):
    a = Algorithm("mesh", "AllGather", ranks, ranks * chunks_each)
    for src in a.all_ranks:
        for dst in a.all_ranks:
            if src != dst:
                for piece in range(chunks_each):
                    a.send(src, dst, 0, src * chunks_each + piece)
    return a

def wrong(ranks):
    a = algorithm(ranks)
    a.send(0, ranks, 0, 0)
    return a

def nothing():
    return 7

def crash():
    return [][1]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with mesh.py, which is the current one, and a wide terminal."""
    (tmp_path / "mesh.py").write_text(MESH)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    return tmp_path


class Resccl:
    """Runs the command; collects what it prints."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, line: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as end:
            main(line.split())
        said = self._capsys.readouterr()
        assert end.value.code == code, said.out + said.err
        return said.out + said.err


@pytest.fixture
def resccl(folder: Path, capsys: pytest.CaptureFixture[str]) -> Resccl:
    return Resccl(capsys)


@pytest.mark.parametrize("name", ["compile", "verify", "import", "export", "tbs", "simulate", "show"])
def test_every_command_helps(name: str, resccl: Resccl) -> None:
    assert "Usage: resccl" in resccl(f"{name} --help")
    assert name in resccl("--help")


@pytest.mark.parametrize(
    ("source", "transfers"),
    [
        ("mesh.py", 12),
        ("mesh.py:algorithm --set chunks_each=3", 36),
        ("resccl.examples.hm:all_gather", 12),
        ("resccl.synth:all_reduce", 24),
        ("ring --collective AllReduce", 24),
    ],
)
def test_compile_verify_and_show_what_it_wrote(source: str, transfers: int, resccl: Resccl, folder: Path) -> None:
    """A program, a module, a built-in algorithm: compiled, written, proven again from the file."""
    said = resccl(f"compile {source} -t 2x2 -o out.plan")
    assert f"transfers {transfers} ".split() in [line.split() for line in said.splitlines()]
    assert "thread blocks a rank" in said
    Plan.load(folder / "out.plan").verify(any_count=True)
    assert resccl("verify out.plan").startswith("right: ")
    assert "Thread blocks of rank 0" in resccl("show out.plan -t 2x2 --most 5")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("compile mesh.py:wrong -t 1x3", "mesh.py:15: algorithm 'mesh': transfer 0 -> 3 of chunk 0"),
        ("compile mesh.py:nothing -t 1x3", "returned int, no resccl.Algorithm"),
        ("compile mesh.py:crash -t 1x3", "mesh.py:22: IndexError"),
        ("compile mesh.py:missing -t 1x3", "has no function 'missing'"),
        ("compile none.py -t 1x3", "none.py: there is no such file"),
        ("compile mesh.py -t 3", "'3' is no topology"),
        ("compile mesh.py", "--topology"),
        ("compile mesh.py -t 1x3 --set x=1", "--set x"),
        ("compile mesh.py -t 1x3 --set x", "write NAME=VALUE"),
        ("compile mesh.py -t 1x3 --scheduling best", "there is no scheduling 'best'"),
        ("compile ring -t 1x3", "needs --collective"),
        ("compile rign -t 1x3", "ring"),
        ("compile no.such:thing -t 1x3", "no module 'no.such'"),
        ("compile ring -c AllToAll -t 1x3", "ring"),
        ("verify none.plan", "none.plan"),
        ("verify mesh.py", "mesh.py"),
        ("verify --slots -1 mesh.py", "--slots"),
        ("export mesh.py -o out.txt", "end it in .plan"),
        ("compile mesh.py -t 1x3 -o out.txt", "end it in .plan"),
        ("show mesh.py", "needs --topology"),
        ("show mesh.py -t 1x3 --rank 3", "no part for rank 3"),
        ("import none.xml", "none.xml"),
        ("simulate mesh.py -t 1x3 -b 8X", "'8X' is no size"),
        ("simulate mesh.py -t 1x3 -b 0", "'0' is no size"),
        ("simulate mesh.py -t 1x3 --scheduling best", "there is no scheduling 'best'"),
        ("bogus", "bogus"),
    ],
)
def test_a_mistake_is_one_helpful_sentence(line: str, said: str, resccl: Resccl) -> None:
    """Exit code 2 (1 for a refused import), the thing named, and no traceback."""
    text = resccl(line, code=1 if line.startswith("import") else 2)
    assert said in text and "Traceback" not in text


def test_syntax_errors_are_named(resccl: Resccl, folder: Path) -> None:
    (folder / "bad.py").write_text("x = 1\ndef f(:\n")
    assert "bad.py:2" in resccl("compile bad.py -t 1x2", code=2)


def test_a_refused_plan_shows_the_run(resccl: Resccl, folder: Path) -> None:
    """Exit code 1; the instructions in order, readable, and how it ends."""
    fields = compile(hm.all_reduce(2, 2), "2x2").to_dict()
    for part in fields["rank_plans"]:
        for tb in part["thread_blocks"]:
            for instruction in tb:
                instruction["dependencies"] = []
    Plan.from_dict(fields).save(folder / "bad.plan")
    said = resccl("verify bad.plan", code=1)
    assert "a run that shows it" in said
    assert "micro-batch 0  " in said and "races" in said
    assert said.splitlines()[-1].startswith("resccl: bad.plan: ")
    short, full = resccl("verify bad.plan", code=1), resccl("verify bad.plan --full", code=1)
    assert len(full) >= len(short)


def test_export_and_import(resccl: Resccl, folder: Path) -> None:
    """A plan goes to MSCCL XML and comes back as one that the verifier accepts; a bad file beside it is only named."""
    resccl("compile resccl.examples.hm:all_reduce -t 1x3 -o ar.plan --no-fold")
    (folder / "files").mkdir()
    resccl("export ar.plan -o files/ar.xml")
    resccl("export ar.plan -o files/ar.json")
    (folder / "files" / "bad.xml").write_text("<algo")
    (folder / "files" / "note.md").write_text("about")
    said = resccl("import files -o plans", code=1)
    assert "1 file refused" in said and "bad.xml" in said and "note.md" not in said
    assert said.count("right") == 2
    assert sorted(path.name for path in (folder / "plans").iterdir()) == ["ar.plan"]
    Plan.load(folder / "plans" / "ar.plan").verify()


def test_json_says_the_same(resccl: Resccl, folder: Path) -> None:
    resccl("compile mesh.py -t 1x3 -o a.plan")
    resccl("export a.plan -o a.json")
    assert Plan.load(folder / "a.json") == Plan.load(folder / "a.plan")


def test_tbs_prints_the_papers_table(resccl: Resccl, folder: Path) -> None:
    """MSCCL's 14 and 30 next to ours, for each algorithm and shape; and the same as JSON."""
    said = resccl("tbs --no-idle --json out.json")
    assert said.count(" MSCCL  ") == said.count(" ResCCL  ") == said.count(" ours  ") == 4
    written = {(row.pop("algorithm"), row.pop("by")): row for row in json.loads((folder / "out.json").read_text())}
    assert set(written) == {
        (f"{kind} {collective}", by)
        for kind in ("expert", "synthesised")
        for collective in ("AllReduce", "AllGather")
        for by in ("MSCCL", "ResCCL", "ours")
    }
    for row in (written["expert AllGather", "MSCCL"], written["expert AllReduce", "MSCCL"]):
        assert {shape: cell["thread_blocks"] for shape, cell in row.items()} == {
            "2x4": 14,
            "2x8": 30,
            "4x4": 14,
            "4x8": 30,
        }


def test_tbs_of_a_file(resccl: Resccl) -> None:
    """A schedule's own thread blocks next to those of ours for the same transfers."""
    resccl("compile resccl.examples.hm:all_gather -t 1x4 -o ag.plan --allocation per_connection")
    row = next(line.split() for line in resccl("tbs -f ag.plan").splitlines() if line.split()[:1] == ["ag.plan"])
    assert row[1:4] == ["AllGather", "4", "6"] and int(row[4]) <= 6


def test_simulate(resccl: Resccl) -> None:
    """Each scheduling has a row; a plan from a file takes the time that its own scheduling takes."""
    said = resccl("simulate resccl.examples.hm:all_gather -t 2x2 -b 8M")
    rows = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line.split()[1:] and "%" in line}
    assert set(rows) == {"hpds", "hpds_improved", "round_robin", "algorithm_level", "stage_level"}
    assert all(float(row[0]) > 0 for row in rows.values())
    resccl("compile resccl.examples.hm:all_gather -t 2x2 -o ag.plan --loop sub_pipelines")
    given = next(line for line in resccl("simulate ag.plan -t 2x2 -b 8M").splitlines() if "as given" in line)
    assert given.split()[2:] == rows["hpds"]


def test_show_draws(resccl: Resccl, folder: Path) -> None:
    pytest.importorskip("matplotlib")
    said = resccl("show resccl.examples.hm:all_reduce -t 2x2 -o a.svg")
    assert "Sub-pipelines" in said and "chunk 0" in said and "written: a.svg" in said
    assert (folder / "a.svg").read_text().startswith("<?xml")


def test_a_program_may_import_its_neighbours(resccl: Resccl, folder: Path) -> None:
    """As `python FILE` would let it."""
    shutil.copy(folder / "mesh.py", folder / "neighbour.py")
    (folder / "program.py").write_text("from neighbour import algorithm\n")
    resccl("compile program.py -t 1x2")
