"""`theseus info`: what is installed and what this machine offers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import resource
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from theseus_py.cli.console import Failure, core, out
from theseus_py.cli.run import find_library

# Libraries that a user may compare with, or use beside ours: module, distribution.
_PEERS = (
    ("torch", "torch"),
    ("numpy", "numpy"),
    ("cupy", "cupy"),
    ("mpi4py", "mpi4py"),
    ("oneccl_bindings_for_pytorch", "oneccl-bind-pt"),
)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("info")(info)


def info(
    compile_flags: Annotated[
        bool, typer.Option("--compile-flags", help="Only the flags that build a C program with our libnccl.")
    ] = False,
) -> None:
    """Show versions, libraries, this machine's identity, network rails and limits."""
    if compile_flags:
        library = find_library().parent
        include = library.parent / "include"
        print(f"-I{include} -L{library} -Wl,-rpath,{library} -lnccl")
        return
    native = core()
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for section in (_versions(native), _machine(native), _limits(), _peers()):
        for name, value in section:
            table.add_row(name, escape(value))
        table.add_row("", "")
    out.print(table)


def _versions(native: ModuleType) -> list[tuple[str, str]]:
    import theseus_py

    dispositions = Counter(disposition for _, disposition, _ in native.api_functions())
    coverage = ", ".join(f"{count} {name}" for name, count in dispositions.most_common())
    try:
        nccl = str(find_library())
    except Failure as failure:
        nccl = str(failure)
    return [
        ("theseus", f"{theseus_py.__version__}, Python {platform.python_version()}"),
        ("runtime", native.runtime_path()),
        ("libnccl.so.2", nccl),
        ("NCCL functions", f"{sum(dispositions.values())}: {coverage}"),
    ]


def _machine(native: ModuleType) -> list[tuple[str, str]]:
    rows = [
        ("device", _device()),
        ("host", f"{native.host_name()}, identity {native.host_identity()}"),
        ("cores", f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}"),
    ]
    try:
        rails = native.local_rails()
    except Exception as error:
        return [*rows, ("network rails", f"none: {error}")]
    return [*rows, *((f"rail {number}", f"{name} {', '.join(found)}") for number, (name, found) in enumerate(rails))]


def _device() -> str:
    wanted = os.environ.get("THESEUS_DEVICE", "auto")
    if wanted in ("cuda", "cuda-emu"):
        return f"GPUs, {'emulated' if wanted == 'cuda-emu' else 'real'} (THESEUS_DEVICE={wanted})"
    gpu = " (an NVIDIA driver is here: THESEUS_DEVICE=cuda uses it)" if Path("/dev/nvidiactl").exists() else ""
    return f"host memory{gpu}" + ("" if wanted == "auto" else f", THESEUS_DEVICE={wanted}")


def _limits() -> list[tuple[str, str]]:
    shared = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else None
    free = "not there" if shared is None else f"{shared.f_bavail * shared.f_frsize / 2**20:,.0f} MB free"
    return [
        ("/dev/shm", free),
        ("open files", _limit(resource.RLIMIT_NOFILE)),
        ("locked memory", _limit(resource.RLIMIT_MEMLOCK)),
        ("reading peers' memory", _cross_memory()),
    ]


def _limit(kind: int) -> str:
    def text(value: int) -> str:
        return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"

    soft, hard = resource.getrlimit(kind)
    return f"{text(soft)} (hard limit {text(hard)})"


def _cross_memory() -> str:
    file = Path("/proc/sys/kernel/yama/ptrace_scope")
    scope = file.read_text().strip() if file.exists() else "0"
    return (
        "allowed"
        if scope == "0"
        else f"restricted by kernel.yama.ptrace_scope={scope}: copies through shared memory instead"
    )


def _peers() -> list[tuple[str, str]]:
    rows = []
    for module, distribution in _PEERS:
        if importlib.util.find_spec(module) is None:
            rows.append((module, "not installed"))
            continue
        try:
            rows.append((module, importlib.metadata.version(distribution)))
        except importlib.metadata.PackageNotFoundError:
            rows.append((module, "installed"))
    return rows
