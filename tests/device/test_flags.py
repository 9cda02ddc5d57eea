"""The flags of device code order what they should: ThreadSanitizer is content, and no longer once one is weakened."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
CSRC = REPOSITORY / "csrc"
COMPILER = shutil.which("c++") or shutil.which("g++")
# Of flags.cuh: how a flag is written, and the same without its order.
WEAKENED = {
    "posted": ("{ store_release_system(word, value); }", "{ __atomic_store_n(word, value, __ATOMIC_RELAXED); }"),
    "taken": ("{ store_release_system(counter, value); }", "{ __atomic_store_n(counter, value, __ATOMIC_RELAXED); }"),
    "finished": (
        "{ store_release_device(counter, value); }",
        "{ __atomic_store_n(counter, value, __ATOMIC_RELAXED); }",
    ),
}


# What runs on them, and those that it has.
PROGRAMS = {"flags.cc": list(WEAKENED), "transfers.cc": ["posted", "taken"]}


def build(folder: Path, source: str, flag: str | None) -> Path:
    """Compile `source` under ThreadSanitizer, with `flag` of flags.cuh weakened; return the program."""
    shutil.copytree(CSRC / "device", folder / "device")
    if flag is not None:
        text = (folder / "device" / "flags.cuh").read_text()
        right, wrong = WEAKENED[flag]
        assert text.count(right) == 1, f"flags.cuh no longer has '{right}' once"
        (folder / "device" / "flags.cuh").write_text(text.replace(right, wrong))
    program = folder / "flags"
    options = ["-std=c++20", "-O1", "-g1", "-fsanitize=thread", "-pthread"]
    includes = [f"-I{path}" for path in (folder, CSRC, REPOSITORY / "tests")]
    text = str(REPOSITORY / "tests" / "device" / source)
    command = [COMPILER or "", *options, *includes, text, "-o", str(program)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if "libtsan" in made.stderr or "fsanitize" in made.stderr:
        pytest.skip(f"the compiler has no ThreadSanitizer: {made.stderr.strip().splitlines()[-1]}")
    assert made.returncode == 0, made.stderr
    return program


def run(program: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that ThreadSanitizer watches."""
    environment = {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66"}
    return subprocess.run([program], capture_output=True, text=True, timeout=300, env=environment, check=False)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler as c++ or g++ on PATH")
class TestFlags:
    """Each flag of a connection, and between TBs."""

    @pytest.mark.parametrize("source", PROGRAMS)
    def test_are_enough(self, tmp_path: Path, source: str) -> None:
        """Nothing races, and the result is right."""
        done = run(build(tmp_path, source, None))
        assert done.returncode == 0, done.stdout + done.stderr

    @pytest.mark.parametrize(
        ("source", "flag"), [(source, flag) for source, flags in PROGRAMS.items() for flag in flags]
    )
    def test_are_needed(self, tmp_path: Path, source: str, flag: str) -> None:
        """With one store relaxed the data races."""
        done = run(build(tmp_path, source, flag))
        assert done.returncode == 66, done.stdout + done.stderr
        assert "data race" in done.stderr
