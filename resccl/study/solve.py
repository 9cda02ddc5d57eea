"""How good a schedule could be: exact answers for small graphs by OR-tools' CP-SAT (extra `solve`).

Scheduling tasks on links is NP-hard, so a solver may stop at its time limit; it then says what it can prove.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resccl.study.schedule import Pipeline, TaskGraph, link_loads

_MOST_TASKS = 2000
_UNITS = 1000  # the solver counts in whole numbers: the longest task is this many; more make proofs slow


class NoSolver(ImportError):
    """OR-tools is not installed."""


@dataclass(frozen=True)
class Solution:
    """`value` was found, nothing below `bound` is possible; they are equal if `optimal`."""

    value: float
    bound: float
    optimal: bool
    pipeline: Pipeline


def has_solver() -> bool:
    """Return whether OR-tools can be imported."""
    try:
        _cp_model()
    except NoSolver:
        return False
    return True


def fewest_sub_pipelines(graph: TaskGraph, seconds_limit: float = 10.0, hint: Pipeline | None = None) -> Solution:
    """Return the fewest sub-pipelines under HPDS's own rules (ResCCL, section 3.2).

    At most one task of each link in a sub-pipeline; no task before what it depends on, and one that stays inside a host
    after what it depends on that leaves it. NoSolver; ValueError: the graph is too large.
    """
    cp, model = _model(graph)
    most = max(graph.tasks - 1, 0)
    places = [model.new_int_var(0, most, f"sub-pipeline of {t}") for t in range(graph.tasks)]
    last = model.new_int_var(0, most, "last")
    for task, place in enumerate(places):
        model.add(place <= last)
        for before in graph.predecessors_of(task).tolist():
            barred = bool(graph.between_hosts[before]) and not bool(graph.between_hosts[task])
            model.add(place >= places[before] + int(barred))
        if hint is not None:
            model.add_hint(place, hint.sub_pipeline[task])
    for tasks in _tasks_by_link(graph).values():
        if len(tasks) > 1:
            model.add_all_different([places[task] for task in tasks])
            model.add(last >= len(tasks) - 1)
    model.minimize(last)
    solver, optimal = _solve(cp, model, seconds_limit)
    found = [int(solver.value(place)) for place in places]
    order = sorted(range(graph.tasks), key=lambda task: (found[task], task))
    return Solution(
        max(found, default=-1) + 1, solver.best_objective_bound + 1, optimal, Pipeline(tuple(found), tuple(order))
    )


def shortest_makespan(
    graph: TaskGraph, seconds: NDArray[np.float64], n: int = 1, seconds_limit: float = 10.0, hint: float | None = None
) -> Solution:
    """Return the least that `resccl.study.schedule.makespan` can be, in any order of the tasks.

    `hint`: a makespan that is known to be possible. Tasks are rounded to a thousandth of the longest. NoSolver;
    ValueError: nonsense, or nothing found in time.
    """
    if n < 1 or len(seconds) != graph.tasks:
        raise ValueError(f"{n} micro-batches and {len(seconds)} durations for {graph.tasks} tasks")
    cp, model = _model(graph)
    unit = float(seconds.max()) / _UNITS
    length = np.maximum(1, np.rint(seconds / unit)).astype(np.int64).tolist()
    horizon = n * sum(length) + sum(length)
    if hint is not None:
        horizon = min(horizon, int(hint / unit * 1.001) + n * graph.tasks + 1)
    starts = [model.new_int_var(0, horizon, f"start of {t}") for t in range(graph.tasks)]
    ends = [model.new_int_var(0, horizon, f"end of {t}") for t in range(graph.tasks)]
    spans = []
    for task, own in enumerate(length):
        size = model.new_int_var(n * own, horizon, f"span of {task}")
        spans.append(model.new_interval_var(starts[task], size, ends[task], f"task {task}"))
        for before in graph.predecessors_of(task).tolist():
            model.add(starts[task] >= starts[before] + length[before])
            model.add(ends[task] >= ends[before] + own)
    for tasks in _tasks_by_link(graph).values():
        model.add_no_overlap([spans[task] for task in tasks])
    end = model.new_int_var(0, horizon, "end")
    model.add_max_equality(end, ends)
    loads = link_loads(graph, np.array(length, dtype=np.float64))
    model.add(end >= n * int(max(loads.values())))
    model.minimize(end)
    solver, optimal = _solve(cp, model, seconds_limit)
    order = _topological(graph, [(int(solver.value(starts[t])), t) for t in range(graph.tasks)])
    bound = float(solver.best_objective_bound) * unit
    places = {task: place for place, task in enumerate(order)}
    pipeline = Pipeline(tuple(places[t] for t in range(graph.tasks)), tuple(order))
    return Solution(float(solver.objective_value) * unit, bound, optimal, pipeline)


def _topological(graph: TaskGraph, starts: list[tuple[int, int]]) -> list[int]:
    """Return tasks by start, but none before what it depends on: numbers do that among equals."""
    return [task for _, task in sorted(starts)]


def _tasks_by_link(graph: TaskGraph) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for task in range(graph.tasks):
        for link in graph.links_of(task).tolist():
            found.setdefault(link, []).append(task)
    return found


def _cp_model() -> ModuleType:
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError as error:
        raise NoSolver("the exact solver needs OR-tools: pip install 'theseus-ccl[solve]'") from error


def _model(graph: TaskGraph) -> tuple[ModuleType, Any]:
    cp = _cp_model()
    if not 1 <= graph.tasks <= _MOST_TASKS:
        raise ValueError(f"the exact solver takes 1 to {_MOST_TASKS} tasks, not {graph.tasks}")
    return cp, cp.CpModel()


def _solve(cp: ModuleType, model: Any, seconds_limit: float) -> tuple[Any, bool]:
    solver = cp.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.max_time_in_seconds = seconds_limit
    status = solver.solve(model)
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        raise ValueError(f"the exact solver found nothing in {seconds_limit:g} s; give it more, or a smaller graph")
    return solver, status == cp.OPTIMAL
