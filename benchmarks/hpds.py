"""What ResCCL's scheduling gains, on simulated servers: HPDS over round-robin, and over algorithm and stage level.

The machine is the paper's: A100 servers, a NIC of 200 Gb/s for two GPUs, NVSwitch of 300 GB/s a GPU, messages of 1 MB.
Algorithms are the expert ones (hierarchical mesh, HM) and those of our greedy synthesiser. Nothing is timed: plans run
on flowsim, so every run gives the same numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import Result, describe, finish, format_size, format_time, in_words, parser, table
from resccl import Topology, analyse, synth
from resccl.examples import hm
from resccl.study import (
    Graph,
    Level,
    LevelModel,
    Study,
    calibrate,
    choose_level,
    closed_forms,
    idle_shares,
    makespan,
    solve,
)
from resccl.study.schedule import link_loads, schedule, seconds_of

EXPERT = {"HM AllGather": hm.all_gather, "HM ReduceScatter": hm.reduce_scatter, "HM AllReduce": hm.all_reduce}
SYNTHESISED = {"synthesised AllGather": synth.all_gather, "synthesised AllReduce": synth.all_reduce}
SHOWN: tuple[Level, ...] = ("algorithm", "stage", "task", "wide", "few", "many")
CHOICE: tuple[Level, ...] = ("algorithm", "task", "wide", "few", "many")
PAPER_GAIN = 2.87  # "up to 187% faster" than round-robin (section 4.3)
EIGHT_GPUS = (2, 4)
LARGE = 256 << 20
MANY = 32


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed."""
    made = parser(__doc__)
    made.add_argument("--solver-seconds", type=float, help="for each question; 10 if not given, and 2 with --quick")
    given = made.parse_args()
    machine = describe()
    print(in_words(machine) + "; simulated")
    shapes = (EIGHT_GPUS,) if given.quick else (EIGHT_GPUS, (2, 8), (4, 4))
    sizes = [1 << power for power in range(16, 31, 2)]
    studies = [
        Study(make(hosts, gpus, gpus // 2), Topology.uniform(hosts, gpus, gpus // 2))
        for hosts, gpus in shapes
        for make in (*EXPERT.values(), *SYNTHESISED.values())
    ]
    names = [f"{hosts}x{gpus} {name}" for hosts, gpus in shapes for name in (*EXPERT, *SYNTHESISED)]
    named = dict(zip(names, studies, strict=True))
    details: dict[str, Any] = {}
    results = _over_round_robin(named, sizes, details)
    results += _over_levels(named, sizes, details)
    _utilisation(named, details)
    _idle(named, details)
    _contention(named, details)
    _distance(named, given, details)
    return finish(given, machine, results, **details)


def _over_round_robin(named: dict[str, Study], sizes: list[int], details: dict[str, Any]) -> list[Result]:
    """How many times faster HPDS is than turns of the chunks."""
    gains = {
        name: {size: study.seconds("round_robin", size) / study.seconds("task", size) for size in sizes}
        for name, study in named.items()
    }
    rows = [[name, *(f"{gain:.2f}" for gain in of.values())] for name, of in gains.items()]
    print("\nHPDS over round-robin, times faster")
    print(table(["", *map(format_size, sizes)], rows))
    details["over_round_robin"] = gains
    mine = [gain for name, of in gains.items() if name.startswith("2x4") for gain in of.values()]
    large = min(gain for name, of in gains.items() if " HM " in name for size, gain in of.items() if size >= 8 << 20)
    return [
        Result("HPDS over round-robin, 8 GPUs on 2 servers, at most", max(mine), PAPER_GAIN, "x", at_least=True),
        Result("HPDS over round-robin, HM of 8M and more, at least", large, 1.0, "x", at_least=True),
    ]


def _over_levels(named: dict[str, Study], sizes: list[int], details: dict[str, Any]) -> list[Result]:
    worst = {
        "choice": 0.0,
        "all": 0.0,
        "algorithm": 1e9,
        "stage": 1e9,
        "wide": 1e9,
        "improved": 1e9,
        "small": 1e9,
        "between": 0.0,
    }
    details["levels"] = {}
    print(
        "\nLevels. task: HPDS, connections share TBs; wide: HPDS, a TB a connection; few, many: a TB a connection, with"
    )
    print("our own priority for 1 and for 32 micro-batches. Chosen of A, P: algorithm or task, by the cost model.")
    for name, study in named.items():
        models = {level: calibrate(study, level) for level in CHOICE}
        worst["between"] = max(worst["between"], _regret(study, models))
        rows = [_level_row(study, size, models, worst, " HM " in f"{name} ") for size in sizes]
        headers = ["", *(f"{level} level" if level in ("algorithm", "stage") else level for level in SHOWN)]
        print(f"\n{name}: time by level, and T_A, T_S, T_P by formula")
        print(table([*headers, "task/algorithm", "chosen of A, P", "of all five", "T_A", "T_S", "T_P"], rows))
        details["levels"][name] = [
            {"size": size, **{level: study.seconds(level, size) for level in SHOWN}} for size in sizes
        ]
    print(
        f"\nSmall messages: HPDS takes up to {1 / worst['small']:.2f} x algorithm level; the chosen level avoids that."
    )
    return [
        Result("HPDS over algorithm level, HM of 1G, at least", worst["algorithm"], 1.0, "x", at_least=True),
        Result("HPDS over stage level, HM of 1G, at least", worst["stage"], 1.0, "x", at_least=True),
        Result("HPDS, a TB a connection, over stage level, HM of 1G, at least", worst["wide"], 1.0, "x", at_least=True),
        Result("the best of ours over stage level, HM of 1G, at least", worst["improved"], 1.0, "x", at_least=True),
        Result("chosen level / the better of algorithm and task, at most", worst["choice"], 1.0, "x"),
        Result("the same at sizes between those of calibration", worst["between"], 1.02, "x"),
        Result("chosen of five levels / the best of them, at most", worst["all"], 1.0, "x"),
    ]


def _regret(study: Study, models: dict[Level, LevelModel]) -> float:
    """Return the worst that choosing between algorithm and task level costs, at sizes that no model was made from."""
    pair: dict[Level, LevelModel] = {"algorithm": models["algorithm"], "task": models["task"]}
    worst = 1.0
    for power in range(16, 28):
        size = 1.37 * (1 << power)
        seconds = {level: study.seconds(level, size) for level in pair}
        worst = max(worst, seconds[choose_level(size, pair)] / min(seconds.values()))
    return worst


def _level_row(
    study: Study, size: int, models: dict[Level, LevelModel], worst: dict[str, float], expert: bool
) -> list[str]:
    seconds = {level: study.seconds(level, size) for level in SHOWN}
    pair: dict[Level, LevelModel] = {"algorithm": models["algorithm"], "task": models["task"]}
    of_two, of_all = choose_level(size, pair), choose_level(size, models)
    worst["choice"] = max(worst["choice"], seconds[of_two] / min(seconds[level] for level in pair))
    worst["all"] = max(worst["all"], seconds[of_all] / min(seconds[level] for level in models))
    gain = seconds["algorithm"] / seconds["task"]
    worst["small"] = min(worst["small"], gain)
    if expert and size == 1 << 30:
        worst["algorithm"] = min(worst["algorithm"], gain)
        worst["stage"] = min(worst["stage"], seconds["stage"] / seconds["task"])
        ours = min(seconds[level] for level in ("task", "wide", "few", "many"))
        worst["improved"] = min(worst["improved"], seconds["stage"] / ours)
        worst["wide"] = min(worst["wide"], seconds["stage"] / seconds["wide"])
    forms = closed_forms(study.algorithm, study.topology, size, study.hardware)
    times = [format_time(seconds[level]) for level in SHOWN]
    return [
        format_size(size),
        *times,
        f"{1 / gain:.2f}",
        of_two,
        of_all,
        *map(format_time, (forms.algorithm, forms.stage, forms.task)),
    ]


def _utilisation(named: dict[str, Study], details: dict[str, Any]) -> None:
    rows = []
    for name, study in named.items():
        cells = [study.outcome(level, LARGE) for level in SHOWN]
        rows.append([name, *(f"{each.network_use:.0%} {each.local_use:.0%} {each.idle_share:.0%}" for each in cells)])
        rows[-1] += [str(study.plan(level).thread_blocks) for level in SHOWN]
    print(f"\nUse of NICs, use of links inside hosts, idle share of TBs at {format_size(LARGE)} (paper, Table 1); TBs")
    print(table(["", *SHOWN, *(f"TBs {level}" for level in SHOWN)], rows))
    details["utilisation"] = rows


def _idle(named: dict[str, Study], details: dict[str, Any]) -> None:
    """How the idle shares of the paper's Table 3 depend on what a TB moves in a second, which it does not give.

    A TB that is faster than a NIC is done with its messages inside the host, and waits for those from other hosts: with
    TBs of 60 GB/s no allocation of as many can be busy. With TBs of a NIC's speed HPDS waits less than MSCCL.
    """
    levels: tuple[Level, ...] = ("stage", "task", "few")
    speeds = (60e9, 25e9)
    rows = []
    for name, study in named.items():
        row = [name]
        for speed in speeds:
            hardware = replace(study.hardware, thread_block_bandwidth=speed)
            shares = (idle_shares(study.plan(level), study.topology, LARGE / 2, hardware).mean() for level in levels)
            row += [f"{share:.1%}" for share in shares]
        rows.append(row)
    print(f"\nIdle shares of TBs at {format_size(LARGE // 2)} (paper, Table 3), by the speed of a TB; stage: MSCCL")
    print(table(["", *(f"{level}, {speed / 1e9:g} GB/s" for speed in speeds for level in levels)], rows))
    details["idle"] = rows


def _contention(named: dict[str, Study], details: dict[str, Any]) -> None:
    """The paper names gamma L(z) but gives no value: what stage level loses by it."""
    gammas = (0.0, 0.05, 0.1, 0.2, 0.5)
    rows = []
    for name, study in named.items():
        if not name.startswith("2x4"):
            continue
        cells = []
        for gamma in gammas:
            other = Study(study.algorithm, study.topology, replace(study.hardware, contention=gamma))
            task = other.seconds("task", LARGE)
            cells.append(f"{other.seconds('stage', LARGE) / task:.2f} {other.seconds('algorithm', LARGE) / task:.2f}")
        rows.append([name, *cells])
    print(
        f"\nHPDS over stage level and over algorithm level at {format_size(LARGE)}, by what a message more costs a NIC"
    )
    print(table(["", *(f"{gamma:.0%}" for gamma in gammas)], rows))
    details["contention"] = rows


def _distance(named: dict[str, Study], given: argparse.Namespace, details: dict[str, Any]) -> None:
    """How far HPDS and our own priority are from exact answers."""
    limit = given.solver_seconds or (2.0 if given.quick else 10.0)
    found = solve.has_solver()
    rows = [_distance_row(name, study, limit if found else 0.0) for name, study in named.items()]
    print("\nSub-pipelines, and makespan of the task graph with links to itself, by exact solver")
    if not found:
        print("OR-tools is not installed (pip install 'theseus-ccl[solve]'): bounds by the busiest link only")
    print("Makespans are for 1 and for 32 micro-batches, over the least possible (~: over what is proven so far).")
    headers = ["", "tasks", "sub-pipelines", "fewest"]
    print(table([*headers, *(f"{who}, {n}" for n in (1, MANY) for who in ("HPDS", "ours", "least"))], rows))
    print()
    details["distance"] = rows


def _distance_row(name: str, study: Study, limit: float) -> list[str]:
    analysis = analyse(study.algorithm, study.topology, fold=False)
    graph = Graph.of(analysis)
    seconds = seconds_of(graph, study.hardware)
    paper = schedule(graph)
    row = [name, str(graph.tasks), str(paper.count), ""]
    if limit > 0:
        fewest = solve.fewest_sub_pipelines(graph, limit, paper)
        row[-1] = f"{fewest.value:.0f}" if fewest.optimal else f"{fewest.bound:.0f} to {fewest.value:.0f}"
    for n in (1, MANY):
        best = schedule(graph, "best", seconds, n)
        times = [makespan(graph, each.order, seconds, n) for each in (paper, best)]
        least, mark = _least(graph, seconds, n, limit, times)
        row += [*(f"{mark}{each / least:.2f}" for each in times), format_time(least)]
    return row


def _least(graph: Graph, seconds: Any, n: int, limit: float, known: Iterable[float]) -> tuple[float, str]:
    bound = n * max(link_loads(graph, seconds).values())
    if limit <= 0:
        return bound, "~"
    try:
        solution = solve.shortest_makespan(graph, seconds, n, limit, min(known))
    except ValueError:  # nothing found in time
        return bound, "~"
    return solution.bound, "" if solution.optimal else "~"


if __name__ == "__main__":
    sys.exit(main())
