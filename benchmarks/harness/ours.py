"""Theseus under the same loop as its peers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from benchmarks.harness.server import Launch
from benchmarks.peers.catalog import KEEP_HEAP, SOURCES, bench_folder, oversubscribed, start_ranks
from benchmarks.peers.install import compile_loop

NAME = "theseus"
ZERO_COPY = "theseus_shared"
BOUND = "bound"


class NotBuilt(RuntimeError):
    """Theseus's library was not found; the text says where it was looked for."""


def find(named: Path | None) -> Path:
    """The folder that holds include/nccl.h and lib/libnccl.so.2: the one named, else the installed package's."""
    spec = importlib.util.find_spec("theseus_py")
    folders = list(spec.submodule_search_locations or []) if spec else []
    candidates = [named] if named else [Path(folder) for folder in folders]
    for folder in candidates:
        if (folder / "lib/libnccl.so.2").exists() and (folder / "include/nccl.h").exists():
            return folder.resolve()
    places = ", ".join(str(folder) for folder in candidates) or "the installed packages"
    raise NotBuilt(f"no lib/libnccl.so.2 with include/nccl.h in {places}: run make build, or name one by --theseus")


def build_loop(folder: Path) -> Path:
    """Compile the loop against the library in `folder`; the path of the program. Raises InstallError."""
    program = bench_folder() / "theseus_loop"
    note = bench_folder() / "theseus_loop.from"
    if not note.exists() or note.read_text() != str(folder):
        program.unlink(missing_ok=True)
    program.parent.mkdir(parents=True, exist_ok=True)
    compile_loop(program, ("loop.c", "theseus_loop.c"), folder / "include", [folder / "lib/libnccl.so.2"])
    note.write_text(str(folder))
    return program


def build_bound() -> Path:
    """Compile the loop that needs no library, which shows what the memory allows. Raises InstallError."""
    program = bench_folder() / "bound_loop"
    program.parent.mkdir(parents=True, exist_ok=True)
    compile_loop(program, ("loop.c", "bound_loop.c"), SOURCES, [])
    return program


def launch(program: Path, ranks: int, shared_buffers: bool) -> Launch:
    """All ranks, each on a processor of its own if there are enough, as the MPI launchers do it."""
    environment = {**KEEP_HEAP, "THESEUS_BENCH_ALLOC": "nccl" if shared_buffers else "private"}
    return Launch(start_ranks(ranks, "free" if oversubscribed(ranks) else "bind", str(program)), environment)
