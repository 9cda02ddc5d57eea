"""Every command that README.md and docs/ tell people to type works: the `$ ` lines of ```console blocks are run.

A block of code whose first line is a comment with a file's name (`# train.py`, `// sum.c`) is that file, there for the
page's commands. `python` blocks without a name are compiled only.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import theseus_py

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What cannot run inside the tests runs as what checks the most of it.
REPLACED = {
    "make demo": "make -n -C {root} demo",
    "make test": "make -n -C {root} test",
    "leveller controller --secret cluster.secret": "leveller controller --help",
    "leveller agent --secret cluster.secret --controller head-node": "leveller agent --help",
    "leveller status --secret cluster.secret --controller head-node": "leveller status --help",
    "leveller explain llama --secret cluster.secret --controller head-node": "leveller explain --help",
}


def blocks(page: Path, language: str) -> list[str]:
    return [code for found, code in BLOCK.findall(page.read_text()) if found == language]


def commands(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


CASES = [(page, command) for page in PAGES for command in commands(page)]


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment in which `theseus`, `resccl`, `python` and `torchrun` are those of this interpreter."""
    programs = tmp_path / "bin"
    programs.mkdir()
    calls = {
        "python": "",
        "theseus": "-c 'from theseus_py.cli import main; main()'",
        "resccl": "-c 'from resccl.cli import main; main()'",
        "leveller": "-m leveller",
        "torchrun": "-m torch.distributed.run",
    }
    for name, call in calls.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {call} "$@"\n')
        (programs / name).chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MAKEFLAGS")}
    path = os.pathsep.join([str(programs), inherited.get("PATH", os.defpath)])
    package = Path(theseus_py.__path__[0]).parent
    python_path = os.pathsep.join(filter(None, [str(package), inherited.get("PYTHONPATH")]))
    return {**inherited, "PATH": path, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"}


def write_files(page: Path, folder: Path) -> None:
    for language in ("python", "c"):
        for code in blocks(page, language):
            named = re.match(r"(?:#|//) (\w[\w.-]*\.\w+)\n", code)
            if named is not None:
                (folder / named[1]).write_text(code)
    (folder / "my-program").write_text("#!/bin/sh\nexit 0\n")
    (folder / "my-program").chmod(0o755)


@pytest.mark.parametrize(("page", "command"), CASES, ids=[f"{page.name}: {command}" for page, command in CASES])
def test_command_works(page: Path, command: str, tmp_path: Path, shell: dict[str, str]) -> None:
    """It exits with 0, in a folder that holds the page's files."""
    pytest.importorskip("theseus_py._core", reason="the native library is not built")
    if "torchrun" in command:
        pytest.importorskip("torch")
    if "train.py" in command and not entry_points(group="torch.backends", name="theseus"):
        pytest.skip("torch finds the backend by the entry points of an installation: pip install -e .")
    write_files(page, tmp_path)
    before = commands(page)[: commands(page).index(command)] if command.startswith("./") else []
    line = " && ".join([*(each for each in before if each.startswith("cc ")), command])
    line = REPLACED.get(command, line).format(root=ROOT) if command in REPLACED else line
    done = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, env=shell, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_compile(page: Path) -> None:
    """Code that people copy is at least Python."""
    for code in blocks(page, "python"):
        compile(code, page.name, "exec")


def test_the_two_commands_are_there() -> None:
    """The README leads with the two commands that everything starts from."""
    assert commands(ROOT / "README.md")[:2] == ["make demo", "make test"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that exists."""
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_main_path_names_real_functions() -> None:
    """Each hop of the README's table is a function in the file it names."""
    rows = re.findall(r"^\| [^|]+ \| `(csrc/[^`]+)` \| `([^`]+)` \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(rows) >= 6
    for file, function in rows:
        name = re.escape(function.rsplit("::", 1)[-1])
        assert re.search(rf"\b{name}\(", (ROOT / file).read_text()), f"{file} has no {function}"
