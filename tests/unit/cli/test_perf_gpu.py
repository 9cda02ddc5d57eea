"""`theseus perf` and benchmarks/gpu_check.py on emulated GPUs: the whole CUDA path, on a processor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from theseus_py.perf.collectives import COLLECTIVES
from theseus_py.perf.values import ELEMENT_TYPES, Problem

pytest.importorskip("theseus_py._core", reason="the native library is not built")

ROOT = Path(__file__).resolve().parents[3]
# Where tests/emu keeps the kernels that it compiled: each takes seconds.
KERNELS = ROOT / "build" / "tests" / "kernels"


def emulated(command: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    path = os.pathsep.join([str(ROOT), *sys.path])
    settings = {"THESEUS_DEVICE": "cuda-emu", "THESEUS_KERNEL_CACHE": str(KERNELS), "COLUMNS": "200", **more}
    return subprocess.run(
        [sys.executable, *command],
        env={**inherited, "PYTHONPATH": path, **settings},
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT,
        check=False,
    )


def perf(line: str, file: Path, **more: str) -> dict[str, list[dict[str, object]]]:
    """Run the command; check that all results were right; return its devices and rows."""
    code = "from theseus_py.cli import main; main()"
    done = emulated(["-c", code, "perf", *line.split(), "-n", "2", "-w", "1", "-J", str(file)], **more)
    assert done.returncode == 0, done.stderr
    assert "Out of bounds values : 0 OK" in done.stdout
    report = json.loads(file.read_text())
    return {"devices": report["config"]["devices"], "rows": report["results"]}


def test_ranks_as_processes(tmp_path: Path) -> None:
    """A process a rank, a GPU each, memory passed between them; the table says what they ran on."""
    found = perf("all_reduce -g 2 -b 8 -e 4K -f 512", tmp_path / "x.json")
    assert [row["size"] for row in found["rows"]] == [8, 4096]
    assert [each["device"] for each in found["devices"]] == [0, 1]
    assert all(str(each["device_hex"]).startswith("emu:") for each in found["devices"])
    assert "host memory" not in {each["device_info"] for each in found["devices"]}


def test_ranks_as_threads(tmp_path: Path) -> None:
    """One process, ranks as threads; in processes of several threads each, ranks count on."""
    found = perf("all_gather -g 2 -t 3 -b 1K -e 1K -o sum", tmp_path / "x.json")
    assert [each["rank"] for each in found["devices"]] == [0, 1, 2, 3, 4, 5]
    assert len({each["pid"] for each in found["devices"]}) == 2
    assert [each["device"] for each in found["devices"]] == [0, 1, 2, 3, 0, 1]  # the emulator shows four


def test_ranks_of_one_process_share_a_gpu(tmp_path: Path) -> None:
    """None waits for another but in a collective: giving memory back would, as kernels wait for their peers."""
    found = perf("all_reduce -t 3 -b 8 -e 2K -f 16", tmp_path / "x.json", THESEUS_EMU_DEVICES="1")
    assert [each["device"] for each in found["devices"]] == [0, 0, 0]


CHECK = str(ROOT / "benchmarks" / "gpu_check.py")


def test_parts_leave_no_check_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of parts, which loads nothing, names all that the modules have."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.gpu import behaviour, contract, parts

    assert set(parts.CONTRACT) == set(contract.GROUPS)
    assert len(behaviour.CHECKS) == parts.BEHAVIOURS
    assert set(parts.COLLECTIVES) == set(COLLECTIVES) - {"barrier"}
    several = [part.name for part in parts.parts_of(parts.Plan(emulated=False, quick=False, gpus=8, build=ROOT))]
    assert several.count("8 GPUs") == len(parts.COLLECTIVES)


def test_gpu_check_prints_and_writes_its_table(tmp_path: Path) -> None:
    """The parts that need no kernels, as the whole script runs them."""
    parts = ["contract: devices", "contract: memory", "contract: ipc", "contract: streams", "contract: graphs"]
    out, data = tmp_path / "table.md", tmp_path / "x.json"
    done = emulated([CHECK, "--quick", "--check", "--parts", *parts, "--out", str(out), "--json", str(data)])
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(data.read_text())["rows"]
    assert {row["part"] for row in rows} == set(parts)
    assert all(row["verdict"] == "ok" for row in rows), rows
    assert out.read_text().count("\n| contract: ") == len(rows)
    assert "Emulated on the processor" in out.read_text()


def test_gpu_check_without_a_gpu_says_one_sentence() -> None:
    """Exit status 0, so that `make bench` goes on; 1 with --check."""
    done = emulated([CHECK], THESEUS_DEVICE="")
    if "GPUs:" in done.stdout:
        pytest.skip("this machine has a GPU")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("No GPU to check: ") and done.stdout.count("\n") == 1
    assert emulated([CHECK, "--check"], THESEUS_DEVICE="").returncode == 1


def write_part(folder: Path, body: str) -> None:
    text = "import os, signal, time\nfrom benchmarks.gpu.row import Row\n\n\ndef rows():\n"
    (folder / "a_part.py").write_text(text + "".join(f"    {line}\n" for line in body.splitlines()))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("yield Row('a', 'first')\ntime.sleep(60)", "killed after 2 s after 1 rows"),
        ("yield Row('a', 'first')\nos.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV after 1 rows"),
        ("yield Row('a', 'first')\nraise ValueError('spoilt')", "ValueError: spoilt"),
    ],
)
def test_a_part_that_fails_costs_a_row(body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hang, a crash, an exception: what came before stays, one row says what happened, and the next part runs."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.gpu.row import BAD, GOOD, Row
    from benchmarks.gpu.runner import Part, run_parts

    write_part(tmp_path, body)
    seconds = 2.0 if "sleep" in body else 60.0
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    part = Part("a", "a_part", "rows", seconds)
    rows: list[Row] = []
    run_parts([part, part], 200.0, rows.append, lambda part, number: None)
    if seconds > 2:  # where Python takes longer to start, the first row does not come
        assert [row.verdict for row in rows] == [GOOD, BAD] * 2
        assert all(said in row.note for row in rows[1::2]), rows
    else:
        bad = [row for row in rows if row.verdict == BAD]
        assert len(bad) == 2 and all("killed after 2 s" in row.note for row in bad), rows


@pytest.mark.parametrize("collective", sorted(set(COLLECTIVES) - {"barrier"}))
def test_gpu_check_expects_what_the_collective_gives(collective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data in windows against perf's, computed whole: where a value comes from is the same."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.gpu import data

    ranks, share = 3, 40
    case = data.Case(collective, ranks, ranks * share, root=1)
    kind = COLLECTIVES[collective]
    problem = Problem(kind, ELEMENT_TYPES["float"], "sum" if kind.reduces else "none", ranks, 1, ranks * share)
    whole = {rank: problem.input(rank) for rank in range(ranks)}
    monkeypatch.setattr(data, "PERIOD", ranks * share * 4)
    monkeypatch.setattr(data, "pattern_of", lambda rank: np.resize(whole[rank], ranks * share * 4))
    for rank in range(ranks):
        expected = problem.expected(rank)
        assert case.receives(rank) == (expected is not None)
        if expected is not None:
            found = case.expected(rank, np.arange(case.shape(rank).receive))
            assert (found == expected.values).all()
