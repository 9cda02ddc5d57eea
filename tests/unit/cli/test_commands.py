"""The commands as a user meets them: right answers, and one helpful sentence with exit code 2 for bad values."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import theseus_py
from theseus_py.cli import main
from theseus_py.cli.names import collective_of
from theseus_py.cli.run import settings_for
from theseus_py.perf.launcher import JsonFile


def theseus(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own, as a user does."""
    code = "from theseus_py.cli import main; main()"
    variables = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.run(
        [sys.executable, "-c", code, *shlex.split(line)],
        capture_output=True,
        text=True,
        timeout=250,
        env={**variables, "COLUMNS": "200", **environment},
        cwd=Path(theseus_py.__path__[0]).parent,  # `python -c` looks there first
        check=False,
    )


@pytest.fixture(scope="module")
def native() -> None:
    pytest.importorskip("theseus_py._core", reason="the native library is not built")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("perf allreduc", "did you mean all_reduce?"),
        ("perf all_reduce -b 8X", "'8X' is no size"),
        ("perf all_reduce -b 1M -e 1K", "-e 1024"),
        ("perf all_reduce -d fp32", "unknown data type 'fp32'"),
        ("perf all_reduce -o mean", "unknown operation 'mean'"),
        ("perf all_reduce -n 0", "(-n) must be at least 1"),
        ("perf all_reduce -n many", "--iters"),
        ("perf all_reduce --ranks 0", "ranks must be between 1 and 1024"),
        ("perf all_reduce --ranks 2 --hosts 3", "3 hosts"),
        ("perf broadcast -r 2", "root 2"),
        ("perf broadcast -r first", "'first' is no root"),
        ("perf all_reduce -J no/such/folder/x.json", "no/such/folder/x.json"),
        ("perf", "collective"),
        ("perf all_reduce --bogus", "--bogus"),
        ("explain sum", "unknown collective 'sum'"),
        ("explain all_reduce --bytes x", "'x' is no size"),
        ("explain all_reduce --ranks 2 --hosts 9", "9 hosts"),
        ("demo --out /proc/nowhere", "/proc/nowhere"),
        ("nonsense", "nonsense"),
    ],
)
def test_bad_values_get_one_sentence(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, one line on standard error that names the value, nothing on standard output, no traceback."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as exit_info:
        main(arguments.split())
    captured = capsys.readouterr()
    assert exit_info.value.code == 2
    assert said in captured.err
    assert captured.err.startswith("theseus: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_json_files_are_not_overwritten(tmp_path: Path) -> None:
    """A second run with the same -J writes beside the first; a failed run leaves nothing."""
    first = JsonFile.create(str(tmp_path / "x.json"))
    first.write("{}")
    second = JsonFile.create(str(tmp_path / "x.json"))
    second.write("[]")
    third = JsonFile.create(str(tmp_path / "x.json"))
    third.discard()
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"x.json": "{}\n", "x.json.0": "[]\n"}


def test_collectives_by_their_many_names() -> None:
    for text in ("all_reduce", "AllReduce", "all-reduce", "all_reduce_perf", "allreduce"):
        assert collective_of(text) == "all_reduce"
    assert collective_of("all_to_all") == "alltoall"


def test_run_keeps_other_preloads_and_the_job() -> None:
    """Ours comes first and once; what the user preloads or has named stays."""
    library = Path("/x/libnccl.so.2")
    before = {"LD_PRELOAD": "/a.so /x/libnccl.so.2", "THESEUS_JOB_ID": "night", "THESEUS_AGENT": "off"}
    assert settings_for(before, library, None) == {**before, "LD_PRELOAD": "/x/libnccl.so.2:/a.so"}
    assert "theseus_py.agent" in settings_for({}, library, None)["THESEUS_AGENT"]
    assert settings_for({}, library, "mine")["THESEUS_JOB_ID"] == "mine"
    assert settings_for({}, library, None)["THESEUS_JOB_ID"] != settings_for({}, library, None)["THESEUS_JOB_ID"]


def test_run_says_what_is_missing() -> None:
    """Exit codes as a shell's: 127 for a program that does not exist."""
    done = theseus("run -- no-such-program")
    assert done.returncode == 127
    assert "no-such-program" in done.stderr


@pytest.mark.usefixtures("native")
def test_run_preloads_our_library() -> None:
    """The program finds our ncclGetVersion without linking anything, and keeps its own exit code and options."""
    code = (
        "import ctypes, sys; version = ctypes.c_int(); ctypes.CDLL(None).ncclGetVersion(ctypes.byref(version));"
        "print(version.value, sys.argv[1:]); sys.exit(7)"
    )
    done = theseus(f"run --job unit -- {sys.executable} -c '{code}' --version")
    assert done.returncode == 7, done.stderr
    version, _, rest = done.stdout.partition(" ")
    assert int(version) > 22000
    assert rest.strip() == "['--version']"


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "alltoall", "sendrecv", "gather", "barrier"])
def test_perf_starts_its_ranks_and_checks_data(collective: str, tmp_path: Path) -> None:
    """3 ranks, odd sizes: nccl-tests' table with no wrong element, and the same numbers in the JSON."""
    file = tmp_path / "out.json"
    done = theseus(f"perf {collective} --ranks 3 -b 12 -e 12000 -f 10 -n 2 -w 1 -J {file}")
    assert done.returncode == 0, done.stderr
    assert "# Out of bounds values : 0 OK" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if line and not line.startswith("#")]
    data = json.loads(file.read_text())
    assert len(rows) == len(data["results"]) == (1 if collective == "barrier" else 4)
    assert all(len(row) == 13 for row in rows)
    assert [row[0] for row in rows] == [str(result["size"]) for result in data["results"]]
    assert len({device["pid"] for device in data["config"]["devices"]}) == 3


@pytest.mark.usefixtures("native")
def test_perf_on_virtual_hosts_with_every_type() -> None:
    """Two hosts of two ranks over TCP: every element type is reduced right."""
    done = theseus("perf all_reduce --ranks 4 --hosts 2 --rails 2 -b 4K -e 4K -d all -n 1 -w 0")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line and not line.startswith("#")]
    assert len({row[2] for row in rows}) == 12
    assert {row[8] for row in rows} == {row[12] for row in rows} == {"0"}
    assert "host0" in done.stdout
    assert "host1" in done.stdout


@pytest.mark.usefixtures("native")
def test_perf_as_a_rank_of_a_launcher() -> None:
    """With RANK and WORLD_SIZE set it starts nothing: one process is the only rank; --ranks is refused."""
    launched = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555"}
    done = theseus("perf all_reduce -b 8 -e 8 -n 1", **launched)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("#  Rank") == 1
    refused = theseus("perf all_reduce --ranks 2 -b 8 -e 8", **launched)
    assert refused.returncode == 2
    assert "torchrun" in refused.stderr


@pytest.mark.usefixtures("native")
def test_env_shows_values_and_where_they_come_from() -> None:
    done = theseus("env --changed", THESEUS_SLOTS="16")
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if "THESEUS_SLOTS" in line)
    assert "16" in line
    assert "environment" in line
    assert "NCCL_DEBUG_FILE" not in done.stdout


@pytest.mark.usefixtures("native")
def test_env_writes_the_page() -> None:
    """One row of Markdown for every setting."""
    done = theseus("env --markdown")
    assert done.stdout.startswith("# Settings")
    assert "| `THESEUS_TIMEOUT` | `0` |" in done.stdout


@pytest.mark.usefixtures("native")
def test_info_names_the_libraries_and_the_coverage() -> None:
    done = theseus("info")
    assert done.returncode == 0, done.stderr
    assert "libnccl.so.2" in done.stdout
    assert "native" in done.stdout
    assert "host memory" in done.stdout


@pytest.mark.usefixtures("native")
def test_explain_names_the_choice_and_the_others() -> None:
    """What was chosen is usable and has the lowest predicted time; --algo changes it, and a wrong name is refused."""
    done = theseus("explain all_reduce --bytes 64M --ranks 4 --hosts 2 --rails 2")
    assert done.returncode == 0, done.stderr
    assert "chosen: " in done.stdout
    assert "ring" in done.stdout
    forced = theseus("explain all_reduce --bytes 8 --ranks 4 --algo ring")
    assert "chosen: ring" in forced.stdout
    wrong = theseus("explain all_reduce --algo rong")
    assert wrong.returncode == 2
    assert "rong" in wrong.stderr
