"""Lets pytest collect and count the C++ tests, so that one closing line covers everything.

`tests/unit/<folder>/*_test.cc` are compiled into one GoogleTest program a folder, `build/tests/test_<folder>`.
Each test of a file becomes a pytest item; a file's selected tests run in one process, when the first of them is due.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

# Tests of the agent start theirs; no other test's communicators do, however long they live.
os.environ["THESEUS_AGENT"] = "off"

REPOSITORY = Path(__file__).resolve().parent.parent
UNIT = REPOSITORY / "tests" / "unit"
# A hanging program must end, and say in which test it hung; this bounds one file's tests, in seconds.
PROGRAM_LIMIT = 600

_DECLARATION = re.compile(
    r"^\s*(?:TYPED_)?TEST(?:_[FP])?\(\s*(\w+)\s*,|^\s*TYPED_TEST_SUITE(?:_P)?\(\s*(\w+)", re.MULTILINE
)
_VERDICT = re.compile(r"^\[\s+(OK|FAILED|SKIPPED)\s+\] (\S+?),?(?: \(\d+ ms\)|, where .*)?$")


def program_of(folder: Path) -> Path:
    """Return where the test program of a folder lies once built; THESEUS_BUILD_DIR names another build folder."""
    build = Path(os.environ.get("THESEUS_BUILD_DIR", REPOSITORY / "build"))
    return build / "tests" / f"test_{folder.name}"


def list_tests(program: Path) -> list[str]:
    """Return the full names of a program's tests, in its order."""
    listing = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, timeout=60, check=True)
    names: list[str] = []
    suite = ""
    for line in listing.stdout.splitlines():
        text = line.split("#")[0].rstrip()
        if text.startswith("  "):
            # Disabled ones are no tests but programs that tests start.
            if "DISABLED_" not in suite + text:
                names.append(suite + text.strip())
        elif text.endswith("."):
            suite = text
    return names


def suites_in(source: Path) -> set[str]:
    """Return the suites that a source file declares."""
    return {first or second for first, second in _DECLARATION.findall(source.read_text())}


def suite_of(test: str) -> str:
    """Return a test's declared suite: 'Sizes/RingTest.Sums/3' and 'RingTest/0.Sums' both belong to RingTest."""
    parts = test.split(".")[0].split("/")
    return parts[1] if len(parts) > 1 and not parts[1].isdigit() else parts[0]


def tests_of(source: Path) -> list[str]:
    """Return the tests of one file; the folder's first file gets those whose suite no file declares: none is lost."""
    tests = list_tests(program_of(source.parent))
    files = sorted(source.parent.glob("*_test.cc"))
    mine = suites_in(source)
    if source == files[0]:
        elsewhere = set().union(*(suites_in(file) for file in files[1:])) - mine
        return [test for test in tests if suite_of(test) not in elsewhere]
    earlier = set().union(*(suites_in(file) for file in files[: files.index(source)]))
    return [test for test in tests if suite_of(test) in mine - earlier]


def run_program(program: Path, tests: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Run some tests of a program; return each one's verdict (OK, FAILED or SKIPPED) and output, even if it crashes."""
    command = [str(program), "--gtest_color=no", f"--gtest_filter={':'.join(tests)}"]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PROGRAM_LIMIT,
            env=settings_free(os.environ),
        )
        text, ending = done.stdout, describe_exit(done.returncode)
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
        text = output.decode(errors="replace") if isinstance(output, bytes) else output
        ending = f"the program was killed after {PROGRAM_LIMIT} s"
    return parse_output(text, ending)


def settings_free(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the library's settings, which Python tests may have changed for themselves."""
    return {name: value for name, value in environment.items() if not name.startswith(("THESEUS_", "NCCL_"))}


def describe_exit(code: int) -> str:
    """Return how a program ended, in words."""
    return f"the program died of {signal.Signals(-code).name}" if code < 0 else f"the program ended with status {code}"


def parse_output(text: str, ending: str) -> dict[str, tuple[str, str]]:
    """Return verdict and output by test; a test that began and never ended FAILED, with `ending` as the reason."""
    results: dict[str, tuple[str, str]] = {}
    running: str | None = None
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("[ RUN      ] "):
            running, lines = line.removeprefix("[ RUN      ] "), []
            continue
        verdict = _VERDICT.match(line)
        if running is not None and verdict is not None and verdict[2] == running:
            results[running] = (verdict[1], "\n".join(lines))
            running = None
        else:
            lines.append(line)
    if running is not None:
        results[running] = ("FAILED", "\n".join([*lines, f"{running}: {ending}"]))
    return results


class CppFile(pytest.File):
    """One *_test.cc file."""

    results: dict[str, tuple[str, str]] | None = None

    def collect(self) -> Iterable[pytest.Item]:
        """Yield an item a test, or one skipped item where the program was not built."""
        if not program_of(self.path.parent).exists():
            yield CppMissing.from_parent(self, name="not_built")
            return
        for test in tests_of(self.path):
            yield CppTest.from_parent(self, name=test)

    def result_of(self, name: str) -> tuple[str, str]:
        """Return one test's result; the first call runs all selected tests of the file."""
        if self.results is None:
            selected = [item.name for item in self.session.items if item.parent is self]
            self.results = run_program(program_of(self.path.parent), selected or [name])
        return self.results.get(name, ("FAILED", "the program ended before it came to this test"))


class CppFailure(Exception):
    """A C++ test failed; its text is the program's output."""


class CppTest(pytest.Item):
    """One GoogleTest test."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        # run_program has its own limit, which also says where the program hung.
        self.add_marker(pytest.mark.timeout(0))

    def runtest(self) -> None:
        """Report what the program said of this test."""
        assert isinstance(self.parent, CppFile)
        verdict, output = self.parent.result_of(self.name)
        if verdict == "SKIPPED":
            pytest.skip(output.strip() or "skipped by the test")
        if verdict == "FAILED":
            raise CppFailure(output)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the program's output alone: a Python traceback would say nothing."""
        if isinstance(excinfo.value, CppFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Name the test in reports."""
        return self.path, None, self.name


class CppMissing(pytest.Item):
    """Stands for a file's tests where their program was not built, so that the closing summary names them."""

    def runtest(self) -> None:
        """Skip, saying what to do."""
        pytest.skip(
            f"{program_of(self.path.parent)} is not built: install GoogleTest (libgtest-dev), then run make test"
        )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the C++ test files of tests/unit and tests/emu."""
    if file_path.name.endswith("_test.cc") and (
        file_path.parent.parent == UNIT or file_path.parent == UNIT.parent / "emu"
    ):
        return CppFile.from_parent(parent, path=file_path)
    return None
