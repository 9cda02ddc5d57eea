"""Theseus under the same loop as its peers."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from benchmarks.harness.server import Launch
from benchmarks.peers.catalog import KEEP_HEAP, bench_folder, oversubscribed
from benchmarks.peers.install import compile_loop

NAME = "theseus"
ZERO_COPY = "theseus_shared"


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


def launch(program: Path, ranks: int, shared_buffers: bool) -> Launch:
    """One process a rank, each on a processor of its own if there are enough, as the MPI launchers do it."""
    processors = sorted(os.sched_getaffinity(0))
    commands, environments = [], []
    for rank in range(ranks):
        bind = [] if oversubscribed(ranks) else ["taskset", "-c", str(processors[rank])]
        commands.append([*bind, str(program)])
        environments.append(
            {
                **KEEP_HEAP,
                "THESEUS_BENCH_RANK": str(rank),
                "THESEUS_BENCH_RANKS": str(ranks),
                "THESEUS_BENCH_ALLOC": "nccl" if shared_buffers else "private",
            }
        )
    return Launch(commands, environments)
