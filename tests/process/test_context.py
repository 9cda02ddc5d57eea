"""The job's context on real processes: while schedules, values and removals rain, all run the same, and right.

The same schedule for each request on all ranks, and every result exact.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from process.processes import Ranks, one_host, two_hosts

from theseus_py import _core

ALGORITHMS = {
    "AllReduce": ("ring", "direct", "halving_doubling", "recursive_doubling", "hierarchical", "tree"),
    "AllGather": ("ring", "direct", "hierarchical"),
    "ReduceScatter": ("ring", "direct", "hierarchical"),
    "Broadcast": ("ring", "direct", "tree"),
}


class Log:
    """The job's log, written here in the agents' place."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log"
        self._writer = _core.SharedLogWriter(str(self.path), 77)
        self._context = _core.ContextLog(77)
        self.position = 0

    def append(self, **record: Any) -> None:
        """Raises for what agents would refuse."""
        data = _core.encode_record(record)
        self._context.apply(data)
        self._writer.append(self.position, data)
        self.position += 1

    def append_plan(self, plan: bytes, **record: Any) -> None:
        """A schedule whose plan lies beside the log, as agents keep it."""
        bodies = self.path.with_name("log.bodies")
        bodies.mkdir(exist_ok=True)
        digest = _core.hash_plan(plan)
        (bodies / f"{digest:016x}").write_bytes(plan)
        self.append(kind="schedule", plan_hash=digest, plan_bytes=len(plan), **record)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def environment(log: Log) -> dict[str, str]:
    return {"THESEUS_JOB_LOG": str(log.path), "THESEUS_ADAPT": "on", "THESEUS_TRACE": f"{log.path}.trace.%p"}


def traces(log: Log) -> list[dict[str, Any]]:
    """What each rank recorded."""
    return [json.loads(path.read_text()) for path in sorted(log.path.parent.glob("log.trace.*"))]


def schedules_run(trace: dict[str, Any]) -> list[tuple[int, str, str]]:
    """Request, collective and schedule of every request of a rank, in order."""
    bars = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    return [(event["args"]["request"], event["name"], event["args"]["schedule"]) for event in bars]


def rain(log: Log, draw: random.Random, names: Iterator[str], alive: list[tuple[str, str]]) -> None:
    """One random record."""
    match draw.randrange(4):
        case 0 | 1:
            collective = draw.choice(list(ALGORITHMS))
            name = next(names)
            usable = draw.choice(["", "mode == 1", "bytes >= 1000", "mode + bytes / 1000 > 3", "1 / mode > 0"])
            replaces = draw.choice(["", *(other for other, its in alive[-5:] if its == collective)])
            log.append(
                kind="schedule",
                name=name,
                collective=collective,
                algorithm=draw.choice([*ALGORITHMS[collective], "unknown"]),
                usable=usable,
                score=draw.choice(["", "mode", "-bytes", "count % 7"]),
                replaces=replaces,
            )
            alive.append((name, collective))
        case 2:
            log.append(kind="update", name="mode", elements=[(0, draw.randrange(5))])
        case 3 if alive:
            log.append(kind="removal", name=alive.pop(draw.randrange(len(alive)))[0])


@pytest.mark.parametrize(("place", "seed"), [(one_host, 1), (one_host, 2), (two_hosts, 3), (two_hosts, 4)])
def test_all_ranks_run_the_same_schedules_while_the_context_changes(log: Log, place: Any, seed: int) -> None:
    draw = random.Random(seed)
    names = (f"s{number}" for number in range(10**6))
    alive: list[tuple[str, str]] = []
    log.append(kind="attribute", name="mode")
    with Ranks("follow_context", 4, place, environment(log), seed=seed, requests=1500) as ranks:
        ranks.wait_for("ready")
        for _ in range(150):
            rain(log, draw, names, alive)
        ranks.wait_for("ran")
        for _ in range(20):
            rain(log, draw, names, alive)
        ranks.tell(position=log.position)
        states = [report["state"] for report in ranks.wait_for("done")]
        assert [each.wait_for_end() for each in ranks.all] == [0] * 4
    assert len({(state["installed"], state["epoch"], state["agreements"]) for state in states}) == 1
    assert states[0]["installed"] == log.position
    runs = [schedules_run(trace) for trace in traces(log)]
    assert len(runs) == 4
    assert runs[1:] == runs[:1] * 3
    # Vacuous unless the rain was felt: several schedules took part, and the context changed while requests ran.
    assert len({schedule for _, _, schedule in runs[0] if schedule.startswith("s")}) >= 3
    assert states[0]["epoch"] >= 3


def test_a_compiled_plan_is_switched_in_and_out_by_its_policy(log: Log) -> None:
    resccl = pytest.importorskip("resccl", reason="the compiler's extension is not built")
    topology = resccl.Topology((0, 0, 0), 1)
    plan = resccl.compile(resccl.built_in("ring", "AllReduce", topology), topology, scheduling="hpds").to_bytes()
    log.append(kind="attribute", name="mode")
    log.append_plan(plan, name="compiled", collective="AllReduce", usable="mode == 1 and count == 5000")
    log.append(kind="update", name="mode", elements=[(0, 1)])
    with Ranks("follow_context", 3, one_host, environment(log), seed=5, requests=300) as ranks:
        ranks.wait_for("ran")
        ranks.tell(position=log.position)
        ranks.wait_for("done")
        assert [each.wait_for_end() for each in ranks.all] == [0] * 3
    runs = [schedules_run(trace) for trace in traces(log)]
    assert runs[1:] == runs[:1] * 2
    assert any(schedule == "compiled" for _, _, schedule in runs[0])
    marks = [event for event in traces(log)[0]["traceEvents"] if event["ph"] == "i"]
    assert marks, "a trace marks where the context changed"


def test_a_plan_that_does_not_verify_is_never_run(log: Log) -> None:
    resccl = pytest.importorskip("resccl", reason="the compiler's extension is not built")
    topology = resccl.Topology((0, 0), 1)
    good = resccl.compile(resccl.built_in("ring", "AllReduce", topology), topology, scheduling="hpds").to_bytes()
    log.append_plan(good[: len(good) // 2], name="cut", collective="AllReduce")
    other = resccl.Topology((0, 0, 0), 1)
    for_three = resccl.compile(resccl.built_in("ring", "AllReduce", other), other, scheduling="hpds").to_bytes()
    log.append_plan(for_three, name="for-three", collective="AllReduce")
    with Ranks("follow_context", 2, one_host, environment(log), seed=6, requests=100) as ranks:
        ranks.wait_for("ran")
        ranks.tell(position=log.position)
        ranks.wait_for("done")
    assert not {schedule for _, _, schedule in schedules_run(traces(log)[0])} & {"cut", "for-three"}
