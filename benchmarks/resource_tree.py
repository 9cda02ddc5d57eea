"""What 500 schedules that replace one another cost: memory, and the time and connections of each switch, in C++.

Four ranks, one a host, run an all-reduce over rings on 4 rails, in one thread over TCP connections of the loopback
network. From one schedule to the next the health of one NIC changes, and so do the rails of some pieces. Compared are:
the resource tree with delta migration; the same schedules built from scratch and kept, each with a program, states of
thread blocks and an arena of its own; and a normal set-up, where the communicator has nothing yet. Compiling the plans
is part of none: they are prepared before a switch. Every result is checked.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import Result, describe, finish, format_time, in_words, ours, parser, table
from benchmarks.harness.native import SOURCES, NativeFailed, output_of
from benchmarks.peers.catalog import bench_folder
from benchmarks.peers.install import InstallError, run

HEADERS = SOURCES.parent.parent / "csrc"
KIB = 1 << 10


def build_program(folder: Path) -> Path:
    """Compile the C++ part against libtheseus.so.0 in `folder`; its path. Raises InstallError."""
    library = folder / "lib/libtheseus.so.0"
    target = bench_folder() / "resource_tree"
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-std=c++20", "-O3", "-DNDEBUG", "-Wall", f"-I{HEADERS}", "-pthread"]
    links = [str(library), f"-Wl,-rpath,{library.parent}"]
    run(["c++", *flags, str(SOURCES / "resource_tree.cc"), "-o", str(target), *links])
    return target


def measure(program: Path, schedules: int, set_ups: int) -> dict[str, float]:
    """Run the C++ part: what it names and the values. Raises NativeFailed."""
    return {name: float(value) for name, value in output_of([str(program), str(schedules), str(set_ups)])}


def overview(found: dict[str, float]) -> str:
    """The three ways beside each other."""
    rows = []
    ways = {"normal": "normal set-up", "scratch": "from scratch, connected", "delta": "delta migration"}
    for name, title in ways.items():
        times = [format_time(found[f"{name}_{part}"]) for part in ("set_up", "first", "first_p99")]
        counts = [f"{found[f'{name}_{part}']:.2f}" if f"{name}_{part}" in found else "" for part in ("opened", "made")]
        rows.append([title, *times, *counts])
    rows.append(["no switch", format_time(found["walk"]), format_time(found["again_first"]), "", "0.00", "0.00"])
    headers = [
        "a rank and schedule",
        "resources",
        "first request",
        "its p99",
        "connections opened",
        "thread blocks made",
    ]
    return table(headers, rows)


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if the benchmark could not run."""
    made = parser(__doc__)
    made.add_argument("--schedules", type=int, default=500, help="that replace one another")
    made.add_argument("--set-ups", type=int, default=50, help="of new communicators")
    made.add_argument("--theseus", type=Path, metavar="FOLDER", help="holds lib/libtheseus.so.0")
    given = made.parse_args()
    set_ups = min(given.set_ups, 10) if given.quick else given.set_ups
    machine = describe()
    print(in_words(machine))
    try:
        found = measure(build_program(ours.find(given.theseus)), given.schedules, set_ups)
    except (ours.NotBuilt, InstallError, NativeFailed, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{given.schedules} schedules, heap a rank: from scratch {found['scratch_heap'] / KIB:.0f} KiB", end="; ")
    print(f"tree {found['tree_heap'] / KIB:.0f} KiB (it counts {found['tree_bytes'] / KIB:.0f})", end="; ")
    print(f"as many unrelated ones under {found['budget'] / KIB:.0f} KiB: {found['unrelated_heap'] / KIB:.0f} KiB")
    print(overview(found), end="\n\n")

    def ratio(over: str, under: str) -> float:
        return found[over] / found[under]

    results = [
        Result("memory, from scratch over tree", ratio("scratch_heap", "tree_heap"), 10, "x", at_least=True),
        Result("memory, what the tree counts over heap", ratio("tree_bytes", "tree_heap"), 0.8, "x", at_least=True),
        Result("unrelated schedules, heap over budget", ratio("unrelated_heap", "budget"), 1.25, "x"),
        Result("set-up, normal over delta", ratio("normal_set_up", "delta_set_up"), 10, "x", at_least=True),
        Result("set-up, from scratch over delta", ratio("scratch_set_up", "delta_set_up"), 1, "x", at_least=True),
        Result("connections opened, delta over normal", ratio("delta_opened", "normal_opened"), 0.1, "x"),
        Result("thread blocks made, delta over normal", ratio("delta_made", "normal_made"), 0.75, "x"),
        Result("a walk that finds everything", found["walk"] * 1e9, 500, "ns"),
        Result("a path that is remembered", found["recall"] * 1e9, 50, "ns"),
    ]
    return finish(given, machine, results, schedules=given.schedules, set_ups=set_ups, found=found)


if __name__ == "__main__":
    sys.exit(main())
