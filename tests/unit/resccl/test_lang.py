"""ResCCLang: what is written is what is compiled, and a mistake is reported with the line that made it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("resccl._core", reason="the native library is not built")

from resccl import Algorithm, AlgorithmError, Op, Topology, Transfer, analyse, built_in, compile, synth
from resccl.examples import hm

SHAPES = [(1, 1), (1, 4), (2, 1), (2, 4), (3, 2), (4, 3)]


def mesh(ranks: int = 3) -> Algorithm:
    algorithm = Algorithm("mesh", "AllGather", ranks)
    for src, dst in itertools.permutations(range(ranks), 2):
        algorithm.send(src, dst, 0, src)
    return algorithm


def test_three_ways_to_write_the_same() -> None:
    """Methods, Transfer objects and arrays give equal transfers."""
    objects, rows = Algorithm("mesh", "AllGather", 3), Algorithm("mesh", "AllGather", 3)
    pairs = list(itertools.permutations(range(3), 2))
    objects.add(*(Transfer(src, dst, 0, src, "send") for src, dst in pairs))
    rows.add_array(np.array([(src, dst, 0, src) for src, dst in pairs]))
    expected = mesh().transfers
    assert expected.dtype == np.int32 and expected.shape == (6, 6)
    assert (objects.transfers == expected).all() and (rows.transfers == expected).all()
    assert (Algorithm.from_dict(mesh().to_dict()).transfers == expected).all()


def test_phases_follow_each_other() -> None:
    """A phase begins after the steps before it, or where it is told to; its own steps count from 0."""
    algorithm = Algorithm("phases", "AllReduce", 4, chunks=1)
    with algorithm.phase("first") as phase:
        phase.recv_reduce_copy(1, 0, 2, 0)
    with algorithm.phase("second") as phase:
        phase.send(0, 1, 0, 0)
        phase.add(Transfer(0, 2, 1, 0))
    with algorithm.phase("beside", at=1) as phase:
        phase.add_array([(0, 3, 0, 0, 1, -1)])
    assert algorithm.transfers[:, 2].tolist() == [2, 3, 4, 1]
    assert [(phase.name, phase.first_step, phase.steps) for phase in algorithm.phases] == [
        ("first", 0, 3),
        ("second", 3, 2),
        ("beside", 1, 1),
    ]
    assert algorithm.steps == 5


@pytest.mark.parametrize("name", ["copy", "send", "recv", Op.COPY, 0])
def test_names_of_copy(name: str | int) -> None:
    """The paper's send and recv are the two ends of one copy."""
    assert Transfer(0, 1, 0, 0, name).op == Op.COPY


@pytest.mark.parametrize("name", ["reduce", "recvReduceCopy", "recv_reduce_copy", "rrc", Op.REDUCE, 1])
def test_names_of_reduce(name: str | int) -> None:
    assert Transfer(0, 1, 0, 0, name).op == Op.REDUCE


# Each program goes wrong in the line marked with <-, and the message holds the text.
MISTAKES = {
    "rank": ("a.send(0, 3, 0, 0)  # <-", "there are ranks 0 to 2"),
    "negative rank": ("a.send(-1, 1, 0, 0)  # <-", "there are ranks 0 to 2"),
    "to itself": ("a.send(1, 1, 0, 1)  # <-", "cannot send to itself"),
    "chunk": ("a.send(0, 1, 0, 3)  # <-", "there are chunks 0 to 2"),
    "step": ("a.send(0, 1, -1, 0)  # <-", "steps count from 0"),
    "rail": ("a.send(0, 1, 0, 0, rail=-2)  # <-", "rail -2"),
    "op": ("a.reduce(0, 1, 0, 0)  # <-", "AllGather does not reduce"),
    "object": ("t = Transfer(0, 9, 0, 0)  # <-\na.add(t)", "there are ranks 0 to 2"),
    "array": ("rows = [[0, 1, 0, 0], [0, 7, 0, 0]]\na.add_array(rows)  # <-", "row 1 of the array"),
    "columns": ("a.add_array([[0, 1, 0]])  # <-", "columns src, dst, step"),
    "floats": ("a.add_array([[0.5, 1, 0, 0]])  # <-", "holds integers"),
    "not held": ("a.send(0, 1, 0, 2)  # <-", "rank 0 does not hold that chunk then"),
    "held later": ("a.send(0, 1, 1, 0)\na.send(1, 2, 1, 0)  # <-", "it arrives there at step 1"),
    "twice": ("a.send(0, 1, 0, 0)\na.send(0, 1, 0, 0)  # <-", "occurs twice"),
    "two copies": ("mesh(a)\na.send(0, 2, 1, 0)\na.send(1, 2, 1, 0)  # <-", "which one stays is undefined"),
    "overwritten": ("mesh(b)\nb.reduce(0, 1, 0, 0)\nb.reduce(0, 1, 1, 0)  # <-", "would reduce it twice"),
    "incomplete": (
        "b.reduce(0, 1, 0, 0)\nb.send(1, 0, 1, 0)  # <-\nb.send(1, 2, 1, 0)",
        "at the end rank 0 lacks the contribution of rank 2",
    ),
    "phase before the first": ("with a.phase('x', at=-1): pass", "begins at step -1"),
    "open phase": ("with a.phase('x') as p:\n    a.send(0, 1, 0, 0)  # <-", "phase 'x' is open"),
}
PROGRAM = """
from resccl import Algorithm, Transfer
def mesh(x):
    if x.collective == "AllGather":
        for s in x.all_ranks:
            for d in x.all_ranks:
                if s != d:
                    x.send(s, d, 0, s)
a = Algorithm("wrong", "AllGather", 3)
b = Algorithm("wrong", "AllReduce", 3, chunks=1)
{body}
(b if len(b) else a).check()
"""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_names_its_line(mistake: str, tmp_path: Path) -> None:
    """Of the transfer, wherever it was found out."""
    body, said = MISTAKES[mistake]
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(body=body))
    line = next((n for n, text in enumerate(program.read_text().splitlines(), 1) if "# <-" in text), None)
    with pytest.raises(AlgorithmError) as caught:
        exec(__builtins__["compile"](program.read_text(), str(program), "exec"), {})  # type: ignore[index]
    assert said in str(caught.value)
    assert caught.value.line == line
    if line is not None:
        assert str(caught.value).startswith(f"{program}:{line}: ")


def test_compile_names_the_line() -> None:
    """The compiler's refusal comes back with the line, too."""
    algorithm = mesh()
    algorithm.send(0, 1, 0, 2)
    line = sys._getframe().f_lineno - 1
    with pytest.raises(AlgorithmError) as caught:
        compile(algorithm, "1x3")
    assert caught.value.file == __file__ and caught.value.line == line


def test_a_rail_that_no_host_has_names_its_line() -> None:
    """What only the topology makes wrong."""
    algorithm = Algorithm("rail", "Broadcast", 2)
    algorithm.send(0, 1, 0, 0, rail=3)
    with pytest.raises(AlgorithmError, match=r"test_lang.py:\d+: .*rail 3 is none of the 2 rails"):
        compile(algorithm, "2x1x2")


@pytest.mark.parametrize(
    ("collective", "ranks", "chunks", "root"),
    [("AllGather", 3, 4, 0), ("AllToAll", 3, 6, 0), ("Sum", 2, 1, 0), ("Broadcast", 2, 1, 2), ("AllReduce", 0, 1, 0)],
)
def test_an_impossible_frame(collective: str, ranks: int, chunks: int, root: int) -> None:
    """Chunks that cannot be cut, an unknown collective, a root that is no rank, no ranks."""
    with pytest.raises(ValueError):
        Algorithm("bad", collective, ranks, chunks, root)


RANKS = 3
TRANSFERS = st.lists(
    st.tuples(
        st.integers(0, RANKS - 1), st.integers(1, RANKS - 1), st.integers(0, 3), st.integers(0, 2), st.integers(0, 1)
    ),
    max_size=14,
)
ROWS = TRANSFERS.map(lambda rows: [(src, (src + d) % RANKS, step, chunk, op) for src, d, step, chunk, op in rows])
COLLECTIVES = st.sampled_from(["AllReduce", "ReduceScatter", "AllGather", "Reduce", "Broadcast"])


@settings(max_examples=300, deadline=None)
@given(ROWS, COLLECTIVES)
def test_check_agrees_with_the_compiler(rows: list[tuple[int, int, int, int, int]], collective: str) -> None:
    """An algorithm passes its own check exactly if its plan compiles and the verifier accepts it.

    Right algorithms are rare among random ones: each starts from a right one that the rows are added to.
    """
    frame = Algorithm("base", collective, RANKS, RANKS)
    steps = 4
    if rows and rows[0][0] > 0:
        base = built_in("direct", collective, "1x3")
        if base.chunks == RANKS:
            frame.add_array(base.transfers)
            steps = 2
    frame.add_array(
        [row if frame.space.reducing else (*row[:4], 0) for row in rows[: steps * 2]] or np.empty((0, 6), int)
    )
    try:
        frame.check()
        fault = None
    except AlgorithmError as error:
        fault = error
    try:
        compile(frame, "1x3", verify=False).verify(equal_bits=False)
        refusal = None
    except ValueError as error:
        refusal = error
    assert (fault is None) == (refusal is None), (fault, refusal)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
@pytest.mark.parametrize("build", [hm.all_gather, hm.reduce_scatter, hm.all_reduce], ids=lambda build: build.__name__)
def test_hm(build, shape: tuple[int, int]) -> None:  # type: ignore[no-untyped-def]
    """The examples are right for any count, and need at most the 2g thread blocks of the paper."""
    hosts, gpus = shape
    algorithm = build(hosts, gpus)
    algorithm.check()
    plan = compile(algorithm, Topology.uniform(hosts, gpus))
    plan.verify(any_count=True)
    assert plan.thread_blocks <= max(2 * gpus, 2)
    assert [phase.name for phase in algorithm.phases] != []


@pytest.mark.parametrize(
    "scheduling", ["hpds", "hpds_improved", "round_robin", "algorithm_level", "stage_level", "per_connection"]
)
@pytest.mark.parametrize("loop", ["micro_batches", "sub_pipelines"])
@pytest.mark.parametrize("fold", [True, False])
def test_every_option_gives_a_right_plan(scheduling: str, loop: str, fold: bool) -> None:
    compile(hm.all_reduce(2, 3), "2x3", scheduling=scheduling, loop=loop, fold=fold)  # type: ignore[arg-type]


@pytest.mark.parametrize("allocation", ["state_based_even", "state_based_apart"])
@pytest.mark.parametrize("loop", ["micro_batches", "sub_pipelines"])
def test_other_allocations_need_no_more_thread_blocks_than_connections(allocation: str, loop: str) -> None:
    """Proven, staggered or not; and never more TBs than one a connection."""
    for make in (hm.all_gather, hm.all_reduce, synth.all_gather):
        algorithm = make(2, 4, 2)
        most = compile(algorithm, "2x4x2", allocation="per_connection").thread_blocks
        for stagger in (False, True):
            plan = compile(algorithm, "2x4x2", allocation=allocation, loop=loop, stagger=stagger)  # type: ignore[arg-type]
            assert plan.thread_blocks <= most


@pytest.mark.parametrize("option", ["scheduling", "allocation", "loop"])
def test_an_unknown_option_is_named(option: str) -> None:
    with pytest.raises(ValueError, match=r"there is no .* 'best'"):
        compile(mesh(), "1x3", **{option: "best"})  # type: ignore[arg-type]


@pytest.mark.parametrize("scheduling", ["hpds", "hpds_improved"])
def test_analysis(scheduling: Any) -> None:
    """Tasks cover the transfers; predecessors come before; no sub-pipeline of HPDS uses a link twice."""
    analysis = analyse(hm.all_reduce(2, 4), "2x4", scheduling=scheduling)
    assert sum(len(analysis.transfers_of(task)) for task in range(analysis.tasks)) == len(hm.all_reduce(2, 4))
    place = {task: at for at, task in enumerate(analysis.order.tolist())}
    assert sorted(place) == list(range(analysis.tasks))
    used: set[tuple[int, int]] = set()
    for task in range(analysis.tasks):
        for before in analysis.predecessors_of(task).tolist():
            assert place[before] < place[task]
            assert analysis.sub_pipeline[before] <= analysis.sub_pipeline[task]
        for link in analysis.links_of(task).tolist():
            key = (int(analysis.sub_pipeline[task]), link)
            assert key not in used
            used.add(key)
    assert analysis.between_hosts.any() and not analysis.between_hosts.all()


@pytest.mark.parametrize("text", ["2", "0x4", "2x", "2x4x0", "axb", "2x4x1x1", "999999x999999"])
def test_a_bad_topology_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Topology.parse(text)


def test_topology_of_another_size() -> None:
    with pytest.raises(ValueError, match="the topology has 4 ranks, the algorithm 3"):
        compile(mesh(), "2x2")


def test_the_same_bytes_in_every_process() -> None:
    """Nothing depends on the hash seed."""
    code = """
import resccl, sys
from resccl import synth
from resccl.examples import hm
for algorithm in (hm.all_reduce(2, 4), synth.all_reduce(2, 4)):
    sys.stdout.write(resccl.compile(algorithm, "2x4").to_json())
"""
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            timeout=120,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] and len(runs[0]) > 1000
