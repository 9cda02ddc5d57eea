"""Compiles the C parts of benchmarks against our own library."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.catalog import bench_folder
from benchmarks.peers.install import run

SOURCES = Path(__file__).resolve().parent.parent / "native"


class NativeFailed(RuntimeError):
    """A program ended with an error; the text carries what it said."""


def build(name: str, sources: Sequence[str], folder: Path, *, shared: bool = False) -> Path:
    """Compile `sources` of benchmarks/native into a program, or a shared library, of this name; its path.

    `folder` holds include/nccl.h and lib/libnccl.so.2. Raises InstallError with the compiler's words.
    """
    target = bench_folder() / (f"{name}.so" if shared else name)
    note = target.with_name(f"{name}.from")
    inputs = [*SOURCES.iterdir(), folder / "lib/libnccl.so.2"]
    same_library = target.exists() and note.exists() and note.read_text() == str(folder)
    if same_library and all(target.stat().st_mtime > path.stat().st_mtime for path in inputs):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Under a name of its own first: another benchmark may run the old one just now.
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    library = folder / "lib/libnccl.so.2"
    kind = ["-shared", "-fPIC"] if shared else []
    flags = ["-std=gnu11", "-O3", "-Wall", f"-I{folder / 'include'}", *kind]
    links = [str(library), f"-Wl,-rpath,{library.parent}", "-Wl,--allow-shlib-undefined"]
    run(["cc", *flags, *(str(SOURCES / source) for source in sources), "-o", str(fresh), *links])
    fresh.replace(target)
    note.write_text(str(folder))
    return target


def output_of(command: Sequence[str]) -> list[list[str]]:
    """Run a program to its end; the words of each line that it printed. Raises NativeFailed if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise NativeFailed(f"{Path(command[0]).name}: {(done.stderr or done.stdout).strip() or done.returncode}")
    return [line.split() for line in done.stdout.splitlines() if line.strip()]
