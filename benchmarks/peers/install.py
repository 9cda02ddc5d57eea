"""Unpacks the peers into bench_folder() and compiles the loop against each. Needs no root and changes nothing else."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.catalog import PEERS, SOURCES, Package, Peer


class InstallError(RuntimeError):
    """A step failed; the text names the step and carries its output."""


def run(command: Sequence[str], folder: Path | None = None) -> None:
    """Run a command to its end. Raises InstallError with the tail of its output if it fails or is not there."""
    try:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except FileNotFoundError as error:
        raise InstallError(f"{command[0]} is needed and not installed") from error
    if done.returncode != 0:
        raise InstallError(f"{' '.join(command)}\n{done.stdout[-2000:]}")


def unpack(package: Package) -> None:
    """Download a package and unpack it; nothing is done if that happened before."""
    stamp = package.folder / ".unpacked"
    content = "\n".join((*package.wheels, *package.debs))
    if stamp.exists() and stamp.read_text() == content:
        return
    package.folder.mkdir(parents=True, exist_ok=True)
    if package.wheels:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed"]
        run([*pip, "--prefix", str(package.folder), *package.wheels])
    if package.debs:
        with tempfile.TemporaryDirectory() as downloads:
            run(["apt-get", "download", "-qq", *package.debs], Path(downloads))
            for archive in sorted(Path(downloads).glob("*.deb")):
                run(["dpkg", "-x", str(archive), str(package.folder)])
    stamp.write_text(content)


def compile_loop(target: Path, sources: Sequence[str], header_folder: Path, libraries: Sequence[Path]) -> None:
    """Compile the measured loop against a library, unless the result is newer than its sources and the library."""
    inputs = [*(SOURCES / name for name in (*sources, "loop.h")), *libraries]
    if target.exists() and all(target.stat().st_mtime > path.stat().st_mtime for path in inputs):
        return
    objects = []
    for name in sources:
        compiled = target.with_name(f"{target.name}.{name}.o")
        language = ("c++", "-std=c++17") if name.endswith(".cc") else ("cc", "-std=gnu11")
        run(
            [
                *language,
                "-O3",
                "-march=native",
                "-I",
                str(header_folder),
                "-c",
                str(SOURCES / name),
                "-o",
                str(compiled),
            ]
        )
        objects.append(str(compiled))
    linker = "c++" if any(name.endswith(".cc") for name in sources) else "cc"
    search = [f"-Wl,-rpath,{library.parent}" for library in libraries]
    names = [str(library) for library in libraries]
    run([linker, *objects, "-o", str(target), *names, *search, "-Wl,--allow-shlib-undefined"])


def install(peer: Peer) -> None:
    """Unpack and build one peer. Raises InstallError."""
    if peer.package is None:
        return
    unpack(peer.package)
    libraries = [peer.folder / name for name in (peer.library, *peer.more_libraries)]
    compile_loop(peer.loop, peer.sources, peer.folder / peer.header_folder, libraries)


def install_all(names: Sequence[str]) -> dict[str, str]:
    """Install the named peers, or all; those that failed, with the reason."""
    failed: dict[str, str] = {}
    for peer in PEERS:
        if names and peer.name not in names:
            continue
        try:
            install(peer)
        except InstallError as error:
            failed[peer.name] = str(error)
    return failed
