"""Plans as bytes, JSON and dicts: nothing is lost, and nothing wrong gets in."""

from __future__ import annotations

import ast
import copy
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("resccl._core", reason="the native library is not built")

from resccl import LimitError, Plan, Topology, VerificationError, _core, built_in, built_in_names, compile
from resccl.examples import hm
from resccl.interpret import shows_refusal
from resccl.refusal import describe_instruction, lines_of

SHAPE = "2x2"


def plan_of(loop: str = "micro_batches") -> Plan:
    return compile(hm.all_reduce(2, 2), SHAPE, loop=loop)  # type: ignore[arg-type]


CASES = [(name, collective) for name, _, collectives in built_in_names() for collective in collectives]


@pytest.mark.parametrize(("name", "collective"), CASES)
def test_round_trips(name: str, collective: str) -> None:
    """Bytes, dict and JSON hold the same plan, for every built-in algorithm."""
    algorithm = built_in(name, collective, Topology.parse(SHAPE))
    plan = compile(algorithm, SHAPE)
    assert Plan.from_bytes(plan.to_bytes()) == plan
    assert Plan.from_dict(plan.to_dict()) == plan
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.summary["collective"] == collective and plan.ranks == 4 and plan.name == algorithm.name


def test_the_summary_counts_what_is_there() -> None:
    plan = plan_of("sub_pipelines")
    fields = plan.to_dict()
    assert plan.summary["loop"] == fields["loop"] == "sub_pipelines"
    for row, part in zip(plan.summary["rank_plans"], fields["rank_plans"], strict=True):
        assert row["thread_blocks"] == len(part["thread_blocks"])
        assert row["connections"] == len(part["connections"])
        assert row["instructions"] == sum(map(len, part["thread_blocks"]))
        assert row["scratch_chunks"] == part["scratch_chunks"]
        assert plan.rank_plan(row["rank"]) == part
    most = max(i["sub_pipeline"] for part in fields["rank_plans"] for tb in part["thread_blocks"] for i in tb)
    assert plan.summary["sub_pipelines"] == most + 1 > 1
    assert plan.thread_blocks == max(len(part["thread_blocks"]) for part in fields["rank_plans"])


def test_files(tmp_path: Path) -> None:
    """A plan file and its JSON load as what was saved; what is neither is refused by name."""
    plan = plan_of()
    for name in ("a.plan", "a.json"):
        plan.save(tmp_path / name)
        assert Plan.load(tmp_path / name) == plan
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "a.plan").write_bytes(b"\xff\xfe")
    for name in ("a.plan", "a.json"):
        with pytest.raises(ValueError, match=name):
            Plan.load(tmp_path / name)


def test_defaults_may_be_left_out() -> None:
    """A plan written by hand needs only what has no default."""
    plan = Plan.from_dict(
        {
            "name": "hand",
            "collective": "AllReduce",
            "ranks": 1,
            "chunks_per_block": 1,
            "rank_plans": [
                {"rank": 0, "thread_blocks": [[{"opcode": "Copy", "src": ["input", 0], "dst": ["output", 0]}]]}
            ],
        }
    )
    plan.verify()
    assert plan.to_dict()["rank_plans"][0]["thread_blocks"][0][0]["recv"] == -1


def first(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the first instruction that sends."""
    found: dict[str, Any] = next(
        i for part in fields["rank_plans"] for tb in part["thread_blocks"] for i in tb if i["opcode"] == "Send"
    )
    return found


def set_in(
    place: Callable[[dict[str, Any]], dict[str, Any]], name: str, value: Any
) -> Callable[[dict[str, Any]], None]:
    def change(fields: dict[str, Any]) -> None:
        place(fields)[name] = value

    return change


def part(fields: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = fields["rank_plans"][1]
    return found


def whole(fields: dict[str, Any]) -> dict[str, Any]:
    return fields


WRONG = {
    "collective": (set_in(whole, "collective", "Sum"), "no collective 'Sum'"),
    "ranks": (set_in(whole, "ranks", 0), "no ranks"),
    "ranks type": (set_in(whole, "ranks", "4"), "ranks is '4', no integer"),
    "ranks bool": (set_in(whole, "ranks", True), "ranks is True, no integer"),
    "ranks huge": (set_in(whole, "ranks", 1 << 80), "out of range"),
    "root": (set_in(whole, "root", 4), "root"),
    "loop": (set_in(whole, "loop", "both"), "no loop 'both'"),
    "unknown head": (set_in(whole, "rendezvous", True), "there is no field 'rendezvous'"),
    "parts": (set_in(whole, "rank_plans", None), "rank_plans is None, no list"),
    "part": (set_in(whole, "rank_plans", [7]), "7 is no dict"),
    "order of parts": (lambda f: f["rank_plans"].reverse(), "not in increasing order"),
    "rank": (set_in(part, "rank", 9), "rank 9"),
    "scratch": (set_in(part, "scratch_chunks", 1 << 30), "scratch chunks"),
    "peer": (lambda f: part(f)["connections"][0].update(peer=99), "peer 99"),
    "outgoing": (lambda f: part(f)["connections"][0].update(outgoing=1), "outgoing is 1, not True or False"),
    "opcode": (set_in(first, "opcode", "Jump"), "no opcode 'Jump'"),
    "opcode missing": (lambda f: first(f).pop("opcode"), "'opcode' is missing"),
    "misspelt": (set_in(first, "dependancies", []), "no field 'dependancies'"),
    "send": (set_in(first, "send", 999), "connection 999"),
    "send wraps": (set_in(first, "send", 65536), "out of range"),
    "send float": (set_in(first, "send", 1.0), "no integer"),
    "buffer": (set_in(first, "src", ["heap", 0]), "the buffer 'heap'"),
    "place": (set_in(first, "src", ["input"]), r"not \[buffer, index\]"),
    "index": (set_in(first, "src", ["input", 4]), "outside of its buffer"),
    "dependency": (set_in(first, "dependencies", [[0, 0]]), r"not \[tb, step, distance\]"),
    "dependency there": (set_in(first, "dependencies", [[77, 0, 0]]), "TB 77"),
    "fold": (set_in(first, "fold", [0]), "no Fold"),
    "sub-pipeline": (set_in(first, "sub_pipeline", -1), "sub-pipeline -1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_field_is_named(case: str) -> None:
    """As a ValueError, from a dict and from JSON alike."""
    change, said = WRONG[case]
    fields = copy.deepcopy(plan_of().to_dict())
    change(fields)
    with pytest.raises(ValueError, match=said):
        Plan.from_dict(fields)
    with pytest.raises(ValueError, match=said):
        Plan.from_json(json.dumps(fields))


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["Send", "input"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def paths(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to everything in a plan's dict."""
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


SMALL = compile(hm.all_reduce(1, 2), "1x2").to_dict()
PATHS = list(paths(SMALL))[1:]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PATHS), JUNK), min_size=1, max_size=3))
def test_nothing_but_value_errors(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    """Whatever stands in a plan's dict, it is refused, or is a plan that the verifier gives a verdict on."""
    fields = copy.deepcopy(SMALL)
    for path, junk in changes:
        node: Any = fields
        try:
            for key in path[:-1]:
                node = node[key]
            node[path[-1]] = junk
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took that place away
    try:
        plan = Plan.from_dict(fields)
        assert Plan.from_dict(plan.to_dict()) == plan
        plan.verify()
    except (ValueError, LimitError):
        pass


def test_the_stub_names_what_is_there() -> None:
    """resccl/_core.pyi has each function of the extension, with its parameters, and no other."""
    stub = ast.parse((Path(_core.__file__).parent / "_core.pyi").read_text())
    declared = {
        node.name: [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
        for node in stub.body
        if isinstance(node, ast.FunctionDef)
    }
    there = {name for name in dir(_core) if not name.startswith("_")}
    assert set(declared) == there
    for name, parameters in declared.items():
        signature = getattr(_core, name).__doc__.splitlines()[0]
        assert re.findall(r"(\w+): ", signature) == parameters, name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "no object"),
        ('{"name": "a", "name": "b"}', "'name' is there twice"),
        ("[" * 100_000, "nested too deeply"),
        ('{"format": "other"}', "no 'theseus plan'"),
        ('{"version": 1}', "of version 2"),
    ],
)
def test_bad_json(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Plan.from_json(text)


def test_broken_bytes() -> None:
    """Every byte of a small plan file counts: changed or cut off, it is refused."""
    data = compile(hm.all_gather(1, 2), "1x2").to_bytes()
    for at in range(0, len(data), 3):
        with pytest.raises(ValueError):
            Plan.from_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
    with pytest.raises(ValueError):
        Plan.from_bytes(data[:-1])


@pytest.mark.parametrize(
    ("transfers", "said"),
    [
        ([[0, 1, 0, 0, 0, -1]], "no NumPy array"),
        (np.zeros((2, 5), np.int32), r"shape \(n, 6\)"),
        (np.zeros((1, 6)), "signed integers"),
        (np.zeros((1, 6), np.uint32), "signed integers"),
        (np.array([[1 << 33, 1, 0, 0, 0, -1]]), "32 bits do not hold"),
        (np.array([[0, 1, 0, 0, 2, -1]]), "neither 0"),
        (np.array([[0, 1, 0, 0, 0, 1 << 20]]), "16 bits do not hold"),
        (np.array([[0, 7, 0, 0, 0, -1]]), "0 -> 7"),
    ],
)
def test_the_core_checks_transfers_itself(transfers: Any, said: str) -> None:
    """Numbers are never narrowed to good ones on their way in."""
    algorithm = {"name": "a", "collective": "AllGather", "ranks": 2, "chunks": 2, "transfers": transfers}
    with pytest.raises(ValueError, match=said):
        _core.compile(algorithm, {"host_of_rank": [0, 0]})


def test_arrays_of_any_layout() -> None:
    """Column-major and strided arrays are read as what they hold."""
    algorithm = hm.all_reduce(2, 2).to_dict()
    expected = _core.compile(algorithm, Topology.parse(SHAPE).to_dict())
    strided = np.repeat(algorithm["transfers"], 2, axis=0)[::2]
    for transfers in (np.asfortranarray(algorithm["transfers"]), strided, algorithm["transfers"].astype(np.int64)):
        assert _core.compile({**algorithm, "transfers": transfers}, Topology.parse(SHAPE).to_dict()) == expected


def broken_plan() -> Plan:
    """A plan in which somebody reads what nobody makes him wait for."""
    fields = plan_of().to_dict()
    for each in fields["rank_plans"]:
        for tb in each["thread_blocks"]:
            for instruction in tb:
                instruction["dependencies"] = []
    fields["rendezvous_safe"] = False
    return Plan.from_dict(fields)


def test_a_refusal_says_where_and_shows_it() -> None:
    """It names the instruction; its interleaving, replayed by the reference interpreter, fails; its text reads well."""
    plan = broken_plan()
    with pytest.raises(VerificationError) as caught:
        plan.verify()
    refusal = caught.value
    assert refusal.kind == "race"
    assert None not in (refusal.rank, refusal.tb, refusal.step)
    assert refusal.place is not None and refusal.place[0] in ("input", "output", "scratch")
    assert refusal.rank is not None and refusal.tb is not None and refusal.step is not None
    assert shows_refusal(plan.to_dict(), refusal) is not None
    lines = lines_of(plan, refusal)
    assert len(lines) >= len(refusal.interleaving) + 2
    rank, tb, step, batch = refusal.interleaving[-1]
    last = describe_instruction(plan.rank_plan(rank), tb, step)
    assert f"rank {rank:>3}  TB {tb:>2}  step {step:>3}  micro-batch {batch}  {last}" in lines


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"max_thread_blocks": 1}, VerificationError, "1"),
        ({"work_limit": 1}, LimitError, "work"),
        ({"slots": -1}, ValueError, "slots"),
        ({"in_place": False, "out_of_place": False}, ValueError, "place"),
    ],
)
def test_options_of_verify(options: dict[str, Any], error: type[Exception], said: str) -> None:
    """Limits are kept, and nonsense is refused, not passed."""
    with pytest.raises(error, match=said):
        plan_of().verify(**options)


def test_others_run_meanwhile() -> None:
    """Compiling and proving hold no lock: a thread of Python goes on while another compiles."""
    algorithm, topology = built_in("hierarchical", "AllReduce", "32x8"), Topology.parse("32x8")
    worker = threading.Thread(target=compile, args=(algorithm, topology))
    turns = 0
    worker.start()
    while worker.is_alive():
        turns += 1
        time.sleep(0)  # hands the lock over
    assert turns > 100


def test_equality_and_digest() -> None:
    plan, other = plan_of(), plan_of("sub_pipelines")
    assert plan == plan_of() and hash(plan) == hash(plan_of()) and plan.digest == plan_of().digest
    assert plan != other and plan.digest != other.digest
