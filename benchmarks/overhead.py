"""What Python adds to one all-reduce of 8 bytes: theseus_py on NumPy, and torch.distributed on our backend, over C.

All run in the same processes, in turns, on communicators of the same ranks; the overhead is the difference of medians.
Calls of the Python loops are counted as users make them, the loop's own step included.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
from pathlib import Path
from statistics import median

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import Result, describe, finish, format_time, in_words, ours, parser
from benchmarks.harness.native import build
from benchmarks.peers.install import InstallError

TARGETS = {"numpy": 2e-6, "torch": 8e-6}
TITLES = {"numpy": "theseus_py on NumPy", "torch": "torch.distributed"}


def measure(ranks: int, rounds: int, calls: int, library: Path, with_torch: bool) -> dict[str, list[float]]:
    """Seconds a call as rank 0 sees it, a value a round, by loop. Raises RankFailed."""
    from theseus_py import spawn

    samples: dict[str, list[float]] = {"c": [], "numpy": [], **({"torch": []} if with_torch else {})}

    def keep(rank: int, report: spawn.Report) -> None:
        samples[report["loop"]].append(report["seconds"])

    arguments = [str(library), "--rounds", str(rounds), "--calls", str(calls), *(["--torch"] if with_torch else [])]
    command = spawn.python_command("benchmarks.harness.overhead_rank", *arguments)
    spawn.spawn(command, spawn.Layout(ranks), on_report=keep, timeout=300)
    return samples


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed, 2 if the benchmark could not run."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    made = parser(__doc__)
    made.add_argument("--ranks", nargs="+", type=int, default=[1, 2], help="all on this machine")
    made.add_argument("--rounds", type=int, help="501 if not given, and 101 with --quick")
    made.add_argument("--calls", type=int, default=200, help="calls in a row: few, as other work disturbs long runs")
    given = made.parse_args()
    rounds = given.rounds or (101 if given.quick else 501)
    with_torch = importlib.util.find_spec("torch") is not None
    machine = describe()
    print(in_words(machine) + f"; medians of {rounds} x {given.calls} calls")
    results, samples = [], {}
    try:
        library = build("overhead", ("overhead.c",), ours.find(None), shared=True)
        for ranks in given.ranks:
            samples[ranks] = measure(ranks, rounds, given.calls, library, with_torch)
            in_c = median(samples[ranks]["c"])
            for loop, target in TARGETS.items():
                if loop not in samples[ranks]:
                    print("torch is not installed, so its backend is not measured")
                    continue
                added = median(samples[ranks][loop]) - in_c
                name = f"{ranks} rank{'s' * (ranks > 1)}, {TITLES[loop]} over C's {format_time(in_c)}"
                results.append(Result(name, added * 1e6, target * 1e6, "us"))
    except (ours.NotBuilt, InstallError, RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return finish(given, machine, results, samples=samples)


if __name__ == "__main__":
    sys.exit(main())
