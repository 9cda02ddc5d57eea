"""NVRTC and ptxas, where they are installed: NVIDIA's compilers need no GPU."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path


def _packaged(pattern: str) -> Path | None:
    """Find a file of NVIDIA's wheels on Python's path: `nvidia/<package>/...`."""
    spec = PathFinder.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec is not None else []
    return next((path for root in roots for path in sorted(Path(root).glob(pattern))), None)


def find_nvrtc() -> str | None:
    """Return NVRTC's library: NVRTC_LIBRARY, a wheel's, or the system's."""
    packaged = _packaged("*/lib/libnvrtc.so.*[0-9]")
    named = os.environ.get("NVRTC_LIBRARY")
    return named or (str(packaged) if packaged is not None else ctypes.util.find_library("nvrtc"))


def find_ptxas() -> str | None:
    """Return ptxas: on PATH, or a wheel's."""
    packaged = _packaged("*/bin/ptxas")
    return shutil.which("ptxas") or (str(packaged) if packaged is not None else None)


class CompileError(Exception):
    """The text is no CUDA; the log says where."""


class Nvrtc:
    """The runtime compiler: text and headers in, PTX out."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)

    def ptx(self, text: str, headers: Mapping[str, str], sm: int) -> str:
        """Compile `text` for one architecture (80: sm_80). CompileError holds the compiler's log."""
        program = ctypes.c_void_p()
        names = (ctypes.c_char_p * len(headers))(*(name.encode() for name in headers))
        texts = (ctypes.c_char_p * len(headers))(*(header.encode() for header in headers.values()))
        source = text.encode()
        made = self._library.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", len(headers), texts, names)
        if made != 0:
            raise CompileError(f"nvrtcCreateProgram: {made}")
        try:
            flags = [f"--gpu-architecture=compute_{sm}".encode(), b"--std=c++17", b"--fmad=false"]
            failed = self._library.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
            if failed:
                raise CompileError(self._output(program, "ProgramLog"))
            return self._output(program, "PTX")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _output(self, program: ctypes.c_void_p, what: str) -> str:
        size = ctypes.c_size_t()
        getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self._library, f"nvrtcGet{what}")(program, buffer)
        return buffer.value.decode()


@dataclass(frozen=True)
class Usage:
    """What a kernel, with all functions that it calls, takes of the hardware."""

    registers: int  # a thread
    stack_bytes: int  # of all functions together, as spills and local arrays are
    spill_bytes: int  # stored


def assemble(ptxas: str, ptx: str, sm: int, folder: Path) -> Usage:
    """Assemble PTX for one architecture, and return what ptxas says that it takes."""
    source = folder / "kernel.ptx"
    source.write_text(ptx)
    command = [ptxas, "-v", f"-arch=sm_{sm}", str(source), "-o", str(folder / "kernel.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise CompileError(done.stderr)
    numbers = {
        what: [int(number) for number in re.findall(pattern, done.stderr)]
        for what, pattern in [
            ("registers", r"Used (\d+) registers"),
            ("stack", r"(\d+) bytes stack frame"),
            ("spills", r"(\d+) bytes spill stores"),
        ]
    }
    return Usage(max(numbers["registers"]), sum(numbers["stack"]), sum(numbers["spills"]))


def has_filecheck() -> bool:
    """Return whether the package filecheck is there: LLVM's FileCheck in Python."""
    return find_spec("filecheck") is not None


def filecheck(text: Path, patterns: Path, prefix: str = "CHECK") -> str:
    """Check a file against the lines of `patterns` that have this prefix; return what is wrong, or nothing."""
    flags = ["--input-file", str(text), "--check-prefix", prefix]
    command = [sys.executable, "-m", "filecheck", *flags, str(patterns)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr
