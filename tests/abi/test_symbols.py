"""The library's outside: which names it defines, what it needs, and that it loads from wherever it lies."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from abi.binding import HEADERS, VERSION
from abi.table import TABLE, read_table

RECORDED = Path(__file__).with_name("nccl_symbols_2.32.3.txt")

needs_binutils = pytest.mark.skipif(
    shutil.which("nm") is None or shutil.which("readelf") is None, reason="nm and readelf (binutils) are not installed"
)
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed")


def recorded_symbols() -> dict[str, str]:
    """Return name and type of what the real library defines."""
    lines = [line.split() for line in RECORDED.read_text().splitlines() if not line.startswith("#")]
    return {name: kind for kind, name in lines}


def test_table_is_complete() -> None:
    """The table lists each of NCCL's functions once, twin or not as NCCL has it, with arguments for its parameters."""
    functions = read_table()
    entries = re.findall(r"^NCCL_FUNCTION", TABLE.read_text(), re.MULTILINE)
    assert len(functions) == len(entries), "an entry is malformed"
    names = [function.name for function in functions]
    assert len(set(names)) == len(names) == 97
    exported = set(names) | {"p" + function.name for function in functions if function.has_twin}
    assert exported == set(recorded_symbols())
    for function in functions:
        assert function.disposition in ("native", "either", "forward", "unsupported"), function
        assert 21602 <= function.version <= VERSION, function
        ends = tuple(re.findall(r"\w+$", parameter)[0] for parameter in function.parameters)
        assert ends == function.arguments, function


def test_headers_declare_the_table() -> None:
    """Everything in the table can be called by a program that includes our headers, internals apart."""
    declared = set()
    for header in ("nccl.h", "nccl_device.h"):
        declared |= set(re.findall(r"THESEUS_NCCL_DECLARE\([^,]+,\s*(nccl\w+)", (HEADERS / header).read_text()))
    assert declared == {function.name for function in read_table() if function.has_twin}


@needs_binutils
def test_exports(folder: Path) -> None:
    """Exactly NCCL's names are defined: weak ncclX, strong pncclX; nothing of ours leaks into the process."""
    library = str(folder / "libnccl.so.2")
    listing = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    found = {name: kind for _, kind, name in (line.split() for line in listing.splitlines())}
    assert found == recorded_symbols()


@needs_binutils
def test_needs(folder: Path) -> None:
    """The SONAME is what programs ask for; the runtime is found beside the library; no CUDA and no MPI is needed."""
    library = str(folder / "libnccl.so.2")
    listing = subprocess.run(["readelf", "-d", "-W", library], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"\(SONAME\).*\[(.*)\]", listing) == ["libnccl.so.2"]
    assert re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", listing) == ["$ORIGIN"]
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", listing))
    assert "libtheseus.so.0" in needed
    system = r"lib(theseus|stdc\+\+|gcc_s|c|m|dl|rt|pthread|asan|ubsan|tsan)\.so.*|ld-linux.*"
    assert {name for name in needed if not re.fullmatch(system, name)} == set()


def test_loads_from_anywhere(folder: Path, tmp_path: Path) -> None:
    """The two libraries, copied to another folder, load with every symbol bound (RTLD_NOW)."""
    for name in ("libnccl.so.2", "libtheseus.so.0"):
        shutil.copy(folder / name, tmp_path / name)
    program = "import ctypes, os, sys; print(ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW).ncclGetVersion(None))"
    command = [sys.executable, "-c", program, str(tmp_path / "libnccl.so.2")]
    done = subprocess.run(command, capture_output=True, text=True, env={}, timeout=60)
    assert done.stdout.strip() == "4", done.stderr


WRAPPER = """
#include <nccl.h>
#include <stdio.h>
ncclResult_t ncclGetVersion(int* version) {
  ncclResult_t result = pncclGetVersion(version);
  *version += 100000;
  return result;
}
int main(void) {
  int wrapped = 0, real = 0;
  ncclGetVersion(&wrapped);
  pncclGetVersion(&real);
  printf("%d %d %s", wrapped, real, ncclGetErrorString(ncclSuccess));
  return 0;
}
"""


@needs_compiler
def test_programs_link_and_wrap(folder: Path, tmp_path: Path) -> None:
    """A C program links against the library with our header, and may put its own ncclX in front of pncclX."""
    source = tmp_path / "wrapper.c"
    source.write_text(WRAPPER)
    program = tmp_path / "wrapper"
    link = [str(folder / "libnccl.so.2"), f"-Wl,-rpath,{folder}"]
    command = ["cc", str(source), f"-I{HEADERS}", *link, "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{VERSION + 100000} {VERSION} no error", done.stderr
