"""Collectives on one machine against gloo, Open MPI, Intel MPI and MPICH, in interleaved rounds.

Every library runs the same loop in processes that sleep between batches. Each batch is bracketed by a probe of how far
apart the two processors are, and like is compared with like. The best peer of a cell is picked on the even rounds and
compared on the odd ones; a ratio of 0.95 or more counts as level. Peers: `python -m benchmarks.peers install`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import Probe, describe, format_size, format_time, ours, parse_size, parser, table, write_json
from benchmarks.harness.rounds import HOPELESS, Contender, Rounds, by_cell, from_server
from benchmarks.harness.server import COLLECTIVES, LoopError, LoopServer
from benchmarks.harness.verdict import LEVEL, Batch, Cell, compare, geometric_mean, medians, standing
from benchmarks.peers.catalog import NOT_SCRIPTED, PEERS, bench_folder, oversubscribed
from benchmarks.peers.install import InstallError

SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
QUICK_SIZES = (8, 64 << 10, 1 << 20)
TARGET_MEAN = {2: 1.3}
ZERO_COPY_LIMIT = 1.4
FEWEST = 3


def arguments() -> argparse.Namespace:
    """The command line, with the defaults of --quick filled in."""
    made = parser(__doc__)
    made.add_argument("--ranks", type=int, choices=(2, 4), default=2, help="ranks, all on this machine")
    made.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=list(COLLECTIVES))
    made.add_argument("--sizes", nargs="+", type=parse_size, help="as nccl-tests counts; 8 to 64M if not given")
    made.add_argument("--rounds", type=int, help="20 if not given, and 10 with --quick")
    made.add_argument("--batch-ms", type=float, help="length of a batch; 20 if not given, and 2 with --quick")
    made.add_argument("--alloc", choices=("private", "nccl"), default="private", help="nccl: ncclMemAlloc as well")
    made.add_argument(
        "--peers", nargs="*", metavar="NAME", choices=[peer.name for peer in PEERS], help="all, if not given"
    )
    made.add_argument("--ahead", action="store_true", help="put ranks before other work of a busy machine; needs root")
    made.add_argument("--theseus", type=Path, metavar="FOLDER", help="holds include/nccl.h and lib/libnccl.so.2")
    made.add_argument("--only-peers", action="store_true", help="measure the peers alone")
    given = made.parse_args()
    given.sizes = given.sizes or list(QUICK_SIZES if given.quick else SIZES)
    given.rounds = given.rounds or (10 if given.quick else 20)
    given.batch_ms = given.batch_ms or (2 if given.quick else 20)
    return given


def planned(given: argparse.Namespace, missing: dict[str, str]) -> list[LoopServer]:
    """Servers for ours and for every peer that is installed; those that are not go to `missing` with the reason."""
    launches = {}
    if not given.only_peers:
        program = ours.build_loop(ours.find(given.theseus))
        launches[ours.NAME] = ours.launch(program, given.ranks, shared_buffers=False)
        if given.alloc == "nccl":
            launches[ours.ZERO_COPY] = ours.launch(program, given.ranks, shared_buffers=True)
            launches[ours.BOUND] = ours.launch(ours.build_bound(), given.ranks, shared_buffers=False)
    for peer in PEERS:
        if given.peers is not None and peer.name not in given.peers:
            continue
        reason = peer.missing()
        if reason:
            missing[peer.name] = f"{peer.title}: {reason}"
        else:
            launches[peer.name] = peer.launch(peer, given.ranks)
    largest = max(given.sizes)
    return [LoopServer(name, launch, given.ranks, largest, given.ahead) for name, launch in launches.items()]


def started(servers: Sequence[LoopServer], stack: contextlib.ExitStack, missing: dict[str, str]) -> list[Contender]:
    """Start the servers; one that does not start goes to `missing`."""
    contenders = []
    for server in servers:
        stack.enter_context(server)
        try:
            server.start()
            contenders.append(from_server(server, ["allreduce"] if server.name == ours.BOUND else COLLECTIVES))
        except LoopError as error:
            missing[server.name] = str(error)
    return contenders


def measure(given: argparse.Namespace, missing: dict[str, str]) -> Rounds:
    """Run everything; failures on the way go to `missing`."""
    probe = Probe(bench_folder())
    cells = [(collective, size) for collective in given.collectives for size in given.sizes]
    with contextlib.ExitStack() as stack:
        contenders = started(planned(given, missing), stack, missing)
        rounds = Rounds(contenders, cells, probe, given.batch_ms / 1000, oversubscribed(given.ranks))
        rounds.calibrate()
        rounds.run(given.rounds, progress=sys.stderr.isatty())
    missing.update(rounds.failed)
    return rounds


def show_medians(batches: Sequence[Batch]) -> str:
    """The median time of every library in every cell."""
    names = list(dict.fromkeys(sorted((batch.library for batch in batches), key=_column)))
    rows = []
    for (collective, size), inside in by_cell(batches).items():
        times = medians(inside)
        best = min((times[name] for name in times if name not in (ours.BOUND, ours.ZERO_COPY)), default=0.0)
        marks = [
            format_time(times[name]) + ("*" if times[name] == best else " ") if name in times else "-" for name in names
        ]
        rows.append([f"{collective} {format_size(size)}", *marks])
    return table(["median (* best)", *names], rows)


def _column(name: str) -> int:
    order = [ours.NAME, ours.ZERO_COPY, ours.BOUND, *(peer.name for peer in PEERS)]
    return order.index(name)


def judge(batches: Sequence[Batch]) -> list[Cell]:
    """The verdict of every cell that has one."""
    peers = [peer.name for peer in PEERS]
    return [cell for inside in by_cell(batches).values() if (cell := compare(inside, ours.NAME, peers))]


def show_verdict(cells: Sequence[Cell], ranks: int) -> str:
    """Ratios, cell by cell, and their geometric mean."""
    rows = [
        [
            f"{cell.collective} {format_size(cell.size)}",
            format_time(cell.ours),
            format_time(cell.theirs),
            cell.best_peer,
            f"{cell.ratio:.2f}",
            standing(cell.ratio),
        ]
        for cell in cells
    ]
    mean = geometric_mean([cell.ratio for cell in cells])
    behind = sum(cell.ratio < LEVEL for cell in cells)
    summary = f"{ranks} ranks: geometric mean {mean:.2f}, {len(cells) - behind} of {len(cells)} cells level or ahead"
    return table(["cell", ours.NAME, "best peer", "", "ratio", ""], rows) + "\n" + summary


def show_zero_copy(batches: Sequence[Batch]) -> tuple[str, bool]:
    """All-reduce on buffers of ncclMemAlloc against what memory allows, and whether the limit holds from 1 MB on."""
    rows, kept = [], True
    for (collective, size), inside in by_cell(batches).items():
        times = medians(inside)
        if ours.ZERO_COPY not in times or ours.BOUND not in times:
            continue
        ratio = times[ours.ZERO_COPY] / times[ours.BOUND]
        kept = kept and (size < 1 << 20 or ratio <= ZERO_COPY_LIMIT)
        private = format_time(times[ours.NAME]) if ours.NAME in times else "-"
        shared, bound = format_time(times[ours.ZERO_COPY]), format_time(times[ours.BOUND])
        rows.append([f"{collective} {format_size(size)}", private, shared, bound, f"{ratio:.2f}"])
    return table(["cell", "private", "ncclMemAlloc", "memory bound", "times the bound"], rows), kept


def enough(batches: Sequence[Batch], where: str) -> list[Batch]:
    """The batches under one placement, of the cells in which every library has at least three of them."""
    kept: list[Batch] = []
    for inside in by_cell(batches).values():
        chosen = [batch for batch in inside if batch.placement == where]
        names = {batch.library for batch in inside}
        if all(sum(batch.library == name for batch in chosen) >= FEWEST for name in names):
            kept += chosen
    return kept


def comparable(batches: Sequence[Batch]) -> list[Batch]:
    """The near batches; of a library with too few of those in a cell also its disturbed ones, which is said."""
    kept: list[Batch] = []
    disturbed: Counter[str] = Counter()
    for inside in by_cell(batches).values():
        for name in dict.fromkeys(batch.library for batch in inside):
            mine = [batch for batch in inside if batch.library == name]
            near = [batch for batch in mine if batch.placement == "near"]
            if len(near) < FEWEST:
                near = [batch for batch in mine if batch.placement in ("near", "disturbed")]
                disturbed[name] += len(near) >= FEWEST
            kept += near if len(near) >= FEWEST else []
    if +disturbed:
        cells = ", ".join(f"{name} in {count} cells" for name, count in (+disturbed).items())
        print(f"other work was in the way, so disturbed batches count as well for {cells}")
    lost = len(by_cell(batches)) - len(by_cell(kept))
    if lost:
        print(f"{lost} cells were too seldom near to be judged: give more --rounds")
    return kept


def show_run(rounds: Rounds, batches: Sequence[Batch]) -> str:
    """How many batches there were, by placement, and the latency that counts as near."""
    kinds = [batch.placement for batch in batches]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    return f"batches: {counts}; flag latency {rounds.near_latency * 1e9:.0f} ns one way counts as near"


def met_targets(cells: Sequence[Cell], ranks: int) -> bool:
    """True if no cell is behind and the geometric mean is what is asked for at this number of ranks."""
    mean = geometric_mean([cell.ratio for cell in cells])
    return bool(cells) and all(cell.ratio >= LEVEL for cell in cells) and mean >= TARGET_MEAN.get(ranks, LEVEL)


def report(given: argparse.Namespace, rounds: Rounds, missing: dict[str, str]) -> bool:
    """Print the tables, write the JSON; True if the targets are met."""
    batches = rounds.batches()
    print(show_run(rounds, batches))
    compared, far = comparable(batches), enough(batches, "far")
    cells = judge(compared)
    met = met_targets(cells, given.ranks)
    print(show_medians(compared))
    if cells:
        print("\n" + show_verdict(cells, given.ranks))
    if far:
        print("\nfar placement\n" + show_medians(far))
        if judge(far):
            print("\n" + show_verdict(judge(far), given.ranks))
    if given.alloc == "nccl":
        text, kept = show_zero_copy(compared)
        print("\n" + text)
        met = met and kept
    if rounds.hopeless:
        names = ", ".join(sorted({name for name, _ in rounds.hopeless}))
        print(f"{names}: not measured where a call took over {HOPELESS} times the best library's (-)")
    for reason in (*missing.values(), *NOT_SCRIPTED.values()):
        print(f"missing: {reason}")
    content = {
        "machine": describe(),
        "ranks": given.ranks,
        "flag_latency_seconds": rounds.near_latency,
        "missing": {**NOT_SCRIPTED, **missing},
        "cells": [{**dataclasses.asdict(cell), "ratio": cell.ratio} for cell in cells],
        "batches": [dataclasses.asdict(batch) for batch in batches],
    }
    write_json(given.json, content)
    return met


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if the benchmark could not run."""
    # An orderly end on SIGTERM too, so that no rank outlives the benchmark.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    given = arguments()
    missing: dict[str, str] = {}
    try:
        rounds = measure(given, missing)
    except (ours.NotBuilt, InstallError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    if not rounds.has_batches:
        print("nothing could be measured: " + "; ".join(missing.values()), file=sys.stderr)
        return 2
    met = report(given, rounds, missing)
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
