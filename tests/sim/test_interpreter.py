"""The reference interpreter itself: what is right runs through, and each kind of fault is seen and named."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from resccl.interpret import Interpreter, ReplayError, Setting, setting_for, structure_faults

Plan = dict[str, Any]


def end(peer: int, outgoing: bool, channel: int = 0) -> dict[str, Any]:
    return {"peer": peer, "outgoing": outgoing, "rail": 0, "channel": channel}


def part(rank: int, connections: list[Plan], blocks: list[list[Plan]], scratch: int = 0) -> Plan:
    return {"rank": rank, "scratch_chunks": scratch, "connections": connections, "thread_blocks": blocks}


def plan_of(collective: str, parts: list[Plan], **others: Any) -> Plan:
    head = {"name": "mine", "collective": collective, "ranks": len(parts), "root": 0, "chunks_per_block": 1}
    return {**head, "rendezvous_safe": False, "loop": "micro_batches", "rank_plans": parts, **others}


def exchange() -> Plan:
    """Two ranks send each other what they have, and add; a receiver waits until its own send is over."""
    parts = []
    for rank in range(2):
        send = {"opcode": "Send", "send": 0, "src": ["input", 0]}
        add = {"opcode": "RecvReduceCopy", "recv": 1, "src": ["input", 0], "dst": ["output", 0]}
        add |= {"recv_is_left": rank == 1, "dependencies": [[0, 0, 0]]}
        parts.append(part(rank, [end(1 - rank, True), end(1 - rank, False)], [[send], [add]]))
    return plan_of("AllReduce", parts)


def relay() -> Plan:
    """Rank 0's data goes through scratch memory of rank 1 to rank 2."""
    send = {"opcode": "Send", "send": 0, "src": ["input", 0]}
    own = {"opcode": "Copy", "src": ["input", 0], "dst": ["output", 0]}
    park = {"opcode": "Recv", "recv": 0, "dst": ["scratch", 0], "dependencies": [[1, 1, 1]]}
    keep = {"opcode": "Copy", "src": ["scratch", 0], "dst": ["output", 0], "dependencies": [[0, 0, 0]]}
    on = {"opcode": "Send", "send": 1, "src": ["scratch", 0]}
    recv = {"opcode": "Recv", "recv": 0, "dst": ["output", 0]}
    parts = [
        part(0, [end(1, True)], [[send], [own]]),
        part(1, [end(0, False), end(2, True)], [[park], [keep, on]], 1),
        part(2, [end(1, False)], [[recv]]),
    ]
    return plan_of("Broadcast", parts)


def outcomes(plan: Plan, **settings: Any) -> set[str]:
    """Run many interleavings; return the kinds of what went wrong, and "right"."""
    seen = set()
    for seed in range(30):
        fault = Interpreter(plan, Setting(**{"count": 6, "slot": 2, **settings}), seed).run()
        seen.add(fault.kind if fault else "right")
    return seen


@pytest.mark.parametrize("loop", ["micro_batches", "sub_pipelines"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("make", [exchange, relay])
def test_right_plans_run(make: Any, in_place: bool, loop: str) -> None:
    plan = {**make(), "loop": loop}
    for slots in (1, 2, 8):
        for count in (0, 1, 5, 6):
            assert outcomes(plan, slots=slots, count=count, in_place=in_place, scaled=True) == {"right"}


def test_lost_wait_is_a_race_in_place_only() -> None:
    plan = exchange()
    plan["rank_plans"][1]["thread_blocks"][1][0]["dependencies"] = []
    assert outcomes(plan) == {"right"}
    assert "race" in outcomes(plan, in_place=True)


def test_scratch_reused_too_early_is_a_race_over_micro_batches() -> None:
    plan = relay()
    plan["rank_plans"][1]["thread_blocks"][0][0]["dependencies"] = []
    assert "race" in outcomes(plan)
    assert outcomes(plan, count=2) == {"right"}  # one micro-batch
    plan["loop"] = "sub_pipelines"  # there scratch holds whole chunks
    assert outcomes(plan) == {"right"}


def test_reference_is_read_late() -> None:
    # The next micro-batch overwrites what the Send of the same TB still refers to, unless it waits for that Send.
    plan = relay()
    middle = plan["rank_plans"][1]
    park, keep, on = middle["thread_blocks"][0][0], *middle["thread_blocks"][1]
    middle["thread_blocks"] = [[{**park, "dependencies": []}, {**keep, "dependencies": []}, on]]
    assert outcomes(plan, references=0.0) == {"right"}
    assert "race" in outcomes(plan, references=1.0)
    middle["thread_blocks"][0][0]["dependencies"] = [[0, 2, 1]]
    assert outcomes(plan, references=1.0) == {"right"}


def test_deadlock_depends_on_slots() -> None:
    # Both send twice before they receive.
    parts = []
    for rank in range(2):
        program = [{"opcode": "Send", "send": 0, "src": ["input", c]} for c in range(2)]
        program += [{"opcode": "Recv", "recv": 1, "dst": ["output", 2 * (1 - rank) + c]} for c in range(2)]
        program += [{"opcode": "Copy", "src": ["input", c], "dst": ["output", 2 * rank + c]} for c in range(2)]
        parts.append(part(rank, [end(1 - rank, True), end(1 - rank, False)], [program]))
    plan = plan_of("AllGather", parts, chunks_per_block=2)
    assert outcomes(plan, slots=2) == {"right"}
    assert outcomes(plan, slots=1) == {"deadlock"}
    assert outcomes(plan, slots=0) == {"deadlock"}


def test_wrong_results_are_seen() -> None:
    twice = exchange()
    waits = {"dependencies": [[1, 0, 0]]}
    more = {"opcode": "Reduce", "src": ["input", 0], "dst": ["output", 0], **waits}
    twice["rank_plans"][0]["thread_blocks"].append([more])
    assert outcomes(twice) == {"value"}
    silent = exchange()
    silent["rank_plans"][0]["thread_blocks"][1][0] |= {"opcode": "Recv", "src": None}
    assert outcomes(silent) == {"value"}
    other_order = exchange()
    other_order["rank_plans"][0]["thread_blocks"][1][0]["recv_is_left"] = True
    assert outcomes(other_order) == {"value"}
    assert outcomes(other_order, equal_bits=False) == {"right"}
    unwritten = exchange()
    unwritten["rank_plans"][0]["thread_blocks"][0][0]["src"] = ["output", 0]
    assert outcomes(unwritten) == {"value"}
    empty = relay()
    empty["rank_plans"][2]["thread_blocks"] = [[]]
    assert outcomes(empty, count=2) == {"left_over"}


def test_scaling_twice_is_seen() -> None:
    # In place, Input is read after the result is there: right for plain sums of one term, wrong where input is scaled.
    plan = plan_of("AllReduce", [part(0, [], [[{"opcode": "Copy", "src": ["input", 0], "dst": ["output", 0]}] * 2])])
    assert outcomes(plan, in_place=True) == {"right"}
    assert outcomes(plan, scaled=True) == {"right"}
    assert outcomes(plan, in_place=True, scaled=True) == {"value"}


def test_replay_follows_to_the_letter() -> None:
    plan = exchange()
    order = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (1, 1, 0, 0)]
    assert Interpreter(plan, setting_for(plan, 1)).replay(order) is None
    with pytest.raises(ReplayError, match="cannot be issued"):
        Interpreter(plan, setting_for(plan, 1)).replay([order[2]])
    with pytest.raises(ReplayError, match="not the next"):
        Interpreter(plan, setting_for(plan, 2)).replay([order[0], order[0]])
    # Half a run of a right plan shows nothing.
    assert Interpreter(plan, setting_for(plan, 1)).replay(order[:2]) is None
    plan["rank_plans"][1]["thread_blocks"][1][0]["dependencies"] = []
    race = Interpreter(plan, setting_for(plan, 1, in_place=True)).replay([order[0], order[3]])
    assert race is not None
    assert race.kind == "race"


def test_structure() -> None:
    assert structure_faults(exchange()) == []
    lonely = exchange()
    lonely["rank_plans"][0]["connections"][0]["channel"] = 1
    assert "has one end" in structure_faults(lonely)[0]
    shared = exchange()
    shared["rank_plans"][0]["thread_blocks"].append(copy.deepcopy(shared["rank_plans"][0]["thread_blocks"][0]))
    assert "belongs to two TBs" in structure_faults(shared)[0]
    crossing = {**exchange(), "loop": "sub_pipelines"}
    crossing["rank_plans"][0]["thread_blocks"][1][0]["sub_pipeline"] = 1
    assert "cross sub-pipelines" in structure_faults(crossing)[0]
    early = {**exchange(), "loop": "sub_pipelines"}
    for rank in (0, 1):
        early["rank_plans"][rank]["thread_blocks"][0][0]["sub_pipeline"] = rank + 1
        early["rank_plans"][1 - rank]["thread_blocks"][1][0]["sub_pipeline"] = rank + 1
    assert any("waits for a later" in text for text in structure_faults(early))
