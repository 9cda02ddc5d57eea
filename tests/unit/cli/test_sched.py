"""`theseus sched`: schedules run and are checked, wrong ones end with a sentence; what a sweep consists of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from unit.cli.test_commands import theseus

from theseus_py.perf.plan_sweep import PlanOptions, counts_of, forms_of, kind_of

resccl = pytest.importorskip("resccl", reason="the compiler's extension is not built")
pytest.importorskip("theseus_py._core", reason="the native library is not built")

MSCCL = """<algo name="exchange" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allgather" inplace="0">
  <gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"""
PROGRAM = """
from resccl import Algorithm

def mesh(ranks):
    algorithm = Algorithm("mesh", "AllGather", ranks=ranks)
    with algorithm.phase("exchange") as phase:
        for src in range(ranks):
            for dst in range(ranks):
                if src != dst:
                    phase.send(src, dst, step=0, chunk=src)
    return algorithm
"""


def plan(collective: str = "AllReduce", ranks: int = 2) -> Any:
    topology = resccl.Topology.uniform(1, ranks)
    return resccl.compile(resccl.built_in("ring", collective, topology), topology)


@pytest.mark.parametrize(
    "arguments",
    ["", "--dtype int8 --op max", "--in-place", "--hosts 2 --rails 2", "--op avg --dtype half"],
)
def test_a_plan_file_runs(tmp_path: Path, arguments: str) -> None:
    """Every size with a count that divides and one that does not, both forms, all of them checked."""
    plan().save(tmp_path / "ring.plan")
    done = theseus(f"sched run {tmp_path}/ring.plan -b 8,1000 -n 1 {arguments}")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.endswith("yes")]
    assert len(rows) == (4 if "--in-place" in arguments else 8), done.stdout
    assert "all results are right" in done.stdout


def test_a_file_of_another_tool_runs(tmp_path: Path) -> None:
    (tmp_path / "exchange.xml").write_text(MSCCL)
    done = theseus(f"sched run {tmp_path}/exchange.xml -b 1000 -n 1")
    assert done.returncode == 0, done.stderr
    assert "AllGather by 'exchange'" in done.stdout and "all results are right" in done.stdout


@pytest.mark.parametrize("how", ["hpds", "none"])
def test_a_program_is_compiled_and_runs(tmp_path: Path, how: str) -> None:
    (tmp_path / "mesh.py").write_text(PROGRAM)
    done = theseus(f"sched run {tmp_path}/mesh.py:mesh --ranks 3 --compile {how} -b 1000 -n 1")
    assert done.returncode == 0, done.stderr
    assert "AllGather by 'mesh'" in done.stdout


def test_a_wrong_plan_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """The rank that would be wrong is named, nothing runs, and the command fails."""
    fields = plan().to_dict()
    for part in fields["rank_plans"]:
        for block in part["thread_blocks"]:
            for instruction in block:
                if instruction["opcode"] == "RecvReduceCopy":
                    instruction.update(opcode="Recv", src=None, recv_is_left=False)
    resccl.Plan.from_dict(fields).save(tmp_path / "wrong.plan")
    done = theseus(f"sched run {tmp_path}/wrong.plan -b 1000 -n 1")
    assert done.returncode == 1 and "yes" not in done.stdout
    assert "plan 'ring'" in done.stderr and "contribution" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("nothing.plan", "nothing.plan"),
        ("{folder}", "is a folder"),
        ("{file} --ranks 3", "is for 2 ranks, not 3"),
        ("{file} -b 8X", "'8X' is no size"),
        ("{file} -d fp32", "unknown data type 'fp32'"),
        ("{file} -o mean", "unknown operation 'mean'"),
        ("{file} --compile fast", "unknown --compile 'fast'"),
        ("{file} --hosts 3", "3 hosts"),
        ("ring --ranks 2", "--collective"),
    ],
)
def test_bad_arguments_get_a_sentence(tmp_path: Path, arguments: str, said: str) -> None:
    plan().save(tmp_path / "ring.plan")
    done = theseus(f"sched run {arguments.format(folder=tmp_path, file=tmp_path / 'ring.plan')}")
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert said in done.stderr


def test_sched_lists_its_commands() -> None:
    done = theseus("sched")
    assert "run" in done.stdout + done.stderr


def test_counts_divide_and_do_not() -> None:
    """Of each size a count of equal chunks, and the next; never none; no count twice."""
    assert counts_of((4, 1000, 1001), 4, 1, 8) == [1, 2, 248, 249]
    assert counts_of((64,), 1, 4, 4) == [16, 17]


def test_forms_are_those_that_the_plan_is_right_for() -> None:
    both = ("out of place", "in place")
    assert forms_of(both, in_place=True, out_of_place=False, chosen=False) == ["in place"]
    with pytest.raises(ValueError, match="out of place"):
        forms_of(("out of place",), in_place=True, out_of_place=False, chosen=True)


def test_kinds_have_the_plans_names() -> None:
    assert kind_of("AllToAll").name == "alltoall" and kind_of("AllReduce").name == "all_reduce"
    with pytest.raises(ValueError, match="Barter"):
        kind_of("Barter")


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="-n"):
        PlanOptions((8,), iterations=0)
    options = PlanOptions((8, 9), forms=("in place",))
    assert PlanOptions.from_dict(options.to_dict()) == options
