"""Sub-pipelines in Python, the compiler's, and exact answers, against each other."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from resccl import Algorithm, Analysis, Topology, analyse, synth
from resccl.examples import hm
from resccl.study import Graph, Hardware, makespan, schedule, solve
from resccl.study.schedule import Priority, improved_algorithm, link_loads, longest_ways, seconds_of

Maker = Callable[[int, int, int], Algorithm]
needs_solver = pytest.mark.skipif(not solve.has_solver(), reason="OR-tools is not installed (extra solve)")
PRIORITIES: tuple[Priority, ...] = ("paper", "critical", "best")

# The paper's Figure 3: three chunks of two steps; links L1 and L2. Chunks 0 and 2 use L1 then L2, chunk 1 L2 then L1.
# Second steps never join their first steps' sub-pipelines.
FIGURE_3 = Graph(
    chunks=[0, 0, 1, 1, 2, 2],
    predecessors=[[], [0], [], [2], [], [4]],
    links=[[1], [2], [2], [1], [1], [2]],
    leaves_host=[True, False, True, False, True, False],
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Up to five chunks, each a chain or tree of tasks on up to four links."""
    chunks: list[int] = []
    predecessors: list[list[int]] = []
    for chunk in range(draw(st.integers(1, 5))):
        first = len(chunks)
        for task in range(draw(st.integers(1, 4))):
            chunks.append(chunk)
            known = st.integers(first, first + task - 1)
            predecessors.append(sorted(set(draw(st.lists(known, max_size=2)))) if task else [])
    size = len(chunks)
    links = draw(
        st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True), min_size=size, max_size=size)
    )
    return Graph(chunks, predecessors, links, draw(st.lists(st.booleans(), min_size=size, max_size=size)))


@given(graphs(), st.sampled_from(PRIORITIES), st.integers(1, 5))
@settings(deadline=None, max_examples=150)
def test_sub_pipelines_keep_the_rules(graph: Graph, priority: Priority, n: int) -> None:
    """All tasks, none before what it depends on, no link twice in a sub-pipeline, no faster than the busiest link."""
    seconds = np.where(graph.between_hosts, 2.5, 1.0)
    found = schedule(graph, priority, seconds, n)
    assert sorted(found.order) == list(range(graph.tasks))
    places = [found.sub_pipeline[task] for task in found.order]
    assert places == sorted(places)
    at = {task: index for index, task in enumerate(found.order)}
    seen: set[tuple[int, int]] = set()
    for task in range(graph.tasks):
        for before in graph.predecessors[task]:
            assert at[before] < at[task]
            if graph.between_hosts[before] and not graph.between_hosts[task]:
                assert found.sub_pipeline[before] < found.sub_pipeline[task]
        for link in graph.links[task]:
            assert (link, found.sub_pipeline[task]) not in seen
            seen.add((link, found.sub_pipeline[task]))
    assert makespan(graph, found.order, seconds, n) >= n * max(link_loads(graph, seconds).values()) - 1e-9


@pytest.mark.parametrize("make", [hm.all_gather, hm.reduce_scatter, hm.all_reduce, synth.all_gather, synth.all_reduce])
@pytest.mark.parametrize(("hosts", "gpus", "rails"), [(1, 4, 1), (2, 4, 2), (3, 4, 1)])
def test_python_and_the_compiler_form_the_same_sub_pipelines(make: Maker, hosts: int, gpus: int, rails: int) -> None:
    """Two implementations of HPDS, one of them plain, agree on every task."""
    analysis = analyse(make(hosts, gpus, rails), Topology.uniform(hosts, gpus, rails), fold=False)
    found = schedule(Graph.of(analysis))
    assert list(found.sub_pipeline) == analysis.sub_pipeline.tolist()
    assert list(found.order) == analysis.order.tolist()


def test_the_papers_figure_3() -> None:
    """Three sub-pipelines: 0·s1 with 1·s1, then 2·s1, the less used chunk, with 0·s2, then 1·s2 with 2·s2."""
    found = schedule(FIGURE_3)
    assert found.sub_pipeline == (0, 1, 0, 2, 1, 2)


def test_the_longest_way_goes_first() -> None:
    """HPDS lets a short chunk go before a long one that needs the same link; the critical path does not."""
    graph = Graph(chunks=[0, 1, 1, 1], predecessors=[[], [], [1], [2]], links=[[0], [0], [1], [2]])
    seconds = np.ones(4)
    assert longest_ways(graph, seconds).tolist() == [1, 3, 2, 1]
    assert makespan(graph, schedule(graph, "paper").order, seconds) == 4
    assert makespan(graph, schedule(graph, "critical").order, seconds) == 3


@pytest.mark.parametrize("make", [hm.all_gather, hm.reduce_scatter, hm.all_reduce, synth.all_gather, synth.all_reduce])
@pytest.mark.parametrize(("hosts", "gpus", "rails"), [(2, 4, 2), (2, 8, 4), (4, 4, 2)])
def test_critical_paths_are_never_behind_for_one_micro_batch(make: Maker, hosts: int, gpus: int, rails: int) -> None:
    """What the priority was made for: few micro-batches, in the model of the task graph."""
    graph = Graph.of(analyse(make(hosts, gpus, rails), Topology.uniform(hosts, gpus, rails), fold=False))
    seconds = seconds_of(graph, Hardware())
    paper, critical, best = (makespan(graph, schedule(graph, each, seconds).order, seconds) for each in PRIORITIES)
    assert best <= critical * (1 + 1e-9)
    assert critical <= paper * (1 + 1e-9)
    many = [makespan(graph, schedule(graph, each, seconds, 32).order, seconds, 32) for each in PRIORITIES]
    assert many[2] == min(many)


def test_the_improved_algorithm_is_the_schedule() -> None:
    """Compiled by its steps, it has the sub-pipelines that the priority formed."""
    topology = Topology.uniform(2, 4, 2)
    algorithm, hardware = hm.all_reduce(2, 4, 2), Hardware()
    before = analyse(algorithm, topology, fold=False)
    graph = Graph.of(before)
    expected = schedule(graph, "best", seconds_of(graph, hardware))
    improved = improved_algorithm(algorithm, topology, hardware)
    assert improved is not None
    after = analyse(improved, topology, scheduling="algorithm_level", fold=False)
    assert after.sub_pipelines == expected.count

    def rows(analysis: Analysis, places: Sequence[int] | NDArray[np.int32]) -> list[tuple[int, ...]]:
        return sorted((*analysis.transfers[t, [0, 1, 3, 4]].tolist(), int(places[t])) for t in range(analysis.tasks))

    assert rows(after, after.sub_pipeline) == rows(before, expected.sub_pipeline)


def test_wrong_orders_and_graphs_are_refused() -> None:
    """An order that breaks a dependency, a priority that does not exist, no micro-batch."""
    with pytest.raises(ValueError, match="comes before"):
        makespan(FIGURE_3, [1, 0, 2, 3, 4, 5], np.ones(6))
    with pytest.raises(ValueError, match="no priority"):
        schedule(FIGURE_3, "fastest")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one micro-batch"):
        makespan(FIGURE_3, range(6), np.ones(6), 0)


@needs_solver
def test_hpds_is_optimal_on_the_worked_example() -> None:
    """The paper's Figure 3 cannot be done in fewer sub-pipelines: each link has three tasks."""
    found = solve.fewest_sub_pipelines(FIGURE_3)
    assert found.optimal
    assert found.value == found.bound == found.pipeline.count == schedule(FIGURE_3).count == 3


@needs_solver
@given(graphs(), st.integers(1, 4))
@settings(deadline=None, max_examples=20, derandomize=True)
def test_nothing_beats_the_solver(graph: Graph, n: int) -> None:
    """Its answers are possible, and no schedule of ours is better."""
    seconds = np.where(graph.between_hosts, 2.5, 1.0)
    ours = [schedule(graph, each, seconds, n) for each in PRIORITIES]
    fewest = solve.fewest_sub_pipelines(graph)
    assert fewest.optimal
    assert fewest.value <= min(each.count for each in ours)
    least = solve.shortest_makespan(graph, seconds, n, seconds_limit=0.5)
    assert makespan(graph, least.pipeline.order, seconds, n) <= least.value * (1 + 1e-9)
    assert least.bound <= least.value * (1 + 1e-9)
    for each in ours:
        assert least.bound <= makespan(graph, each.order, seconds, n) * (1 + 1e-9)


def test_without_ortools_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert not solve.has_solver()
    with pytest.raises(solve.NoSolver, match=r"theseus-ccl\[solve\]"):
        solve.fewest_sub_pipelines(FIGURE_3)
