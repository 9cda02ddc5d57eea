"""Import of MSCCL++ JSON plans: one-sided accesses become messages that move the same values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.resccl.formats_inputs import buffer, encoded, op, pair, prove, sync

from resccl import _core
from resccl.formats import NO_LIMIT, FormatError, Imported, import_mscclpp_json


def load(document: Any) -> Imported:
    found = import_mscclpp_json(encoded(document), "t.json")
    assert found.plan is not None
    return found


def halves(chunks: int, body: Any) -> dict[str, Any]:
    """An all-reduce of two gpus, each of which does `body(its first chunk)` to its half."""
    half = chunks // 2
    return pair([[[o for c in range(half) for o in body(g * half + c)]] for g in range(2)], chunks)


def exchange(chunks: int) -> dict[str, Any]:
    """Both read the peer's half, add their own, and write the sum to both; signals around."""
    document = halves(chunks, lambda c: [op("rres", [buffer("i", c), buffer(0, c)], [buffer("i", c), buffer(0, c)])])
    for gpu in document["gpus"]:
        ops = gpu["threadblocks"][0]["ops"]
        gpu["threadblocks"][0]["ops"] = [sync("signal", 0), sync("wait", 0), *ops, sync("signal", 0), sync("wait", 0)]
    return document


def test_reads_and_writes_of_the_peers_memory_become_messages() -> None:
    found = load(exchange(2))
    prove(found.plan)
    assert [len(part["thread_blocks"]) for part in found.plan["rank_plans"]] == [1, 1]
    opcodes = [i["opcode"] for i in found.plan["rank_plans"][0]["thread_blocks"][0]]
    assert opcodes == ["Send", "RecvReduceCopySend", "Recv"]


def test_reduce_scatter_in_place_and_all_reduce_out_of_place() -> None:
    around = [sync("signal", 0), sync("wait", 0)]
    blocks = [[[*around, op("rre", [buffer("i", g), buffer(0, g)], [buffer("o", 0)]), *around]] for g in range(2)]
    prove(load(pair(blocks, 2, collective="reducescatter", output_chunks=1)).plan)
    sums = [op("rres", [buffer("i", g), buffer(0, g)], [buffer("o", g), buffer(2, g)]) for g in range(2)]
    prove(load(pair([[[*around, sums[g], *around]] for g in range(2)], 2, inplace=False)).plan)


def test_many_accesses_between_two_signals_do_not_fill_the_slots() -> None:
    found = load(exchange(64))
    assert any("slots" in note for note in found.notes)
    prove(found.plan, slots=2, seeds=1)


def test_packets_are_received_by_who_reads_them() -> None:
    first = [
        [op("ppkt", [buffer("i", 1)], [buffer(1, 0)])],
        [op("respkt", [buffer("i", 0), buffer("s", 0)], [buffer("i", 0), buffer(1, 1)])],
        [op("upkt", [buffer("s", 1)], [buffer("i", 1)])],
    ]
    second = [
        [op("ppkt", [buffer("i", 0)], [buffer(1, 0)])],
        [op("respkt", [buffer("i", 1), buffer("s", 0)], [buffer("i", 1), buffer(1, 1)])],
        [op("upkt", [buffer("s", 1)], [buffer("i", 0)])],
    ]
    found = load(pair([first, second], 2))
    prove(found.plan)
    assert all(part["scratch_chunks"] == 0 for part in found.plan["rank_plans"])


@pytest.mark.parametrize("ranks", [3, 4])
def test_everybody_adds_up_what_everybody_sent_in_one_order(ranks: int) -> None:
    gpus = []
    for r in range(ranks):
        peers = [p for p in range(ranks) if p != r]
        puts = [op("ppkt", [buffer("i", 0)], [buffer(n, r)]) for n in range(len(peers))]
        sums = op("repkt", [buffer("i", 0), *(buffer("s", p) for p in peers)], [buffer("o", 0)])
        gpus.append(
            {
                "id": r,
                "input_chunks": 1,
                "output_chunks": 1,
                "scratch_chunks": ranks,
                "threadblocks": [
                    {
                        "id": 0,
                        "ops": [*puts, sums],
                        "channels": [],
                        "remote_buffer_refs": [
                            {"access_channel_type": "memory", "remote_buffer_ids": list(range(len(peers)))}
                        ],
                    }
                ],
                "channels": [],
                "remote_buffers": [{"rank": p, "type": "s", "access_channel_types": ["memory"]} for p in peers],
            }
        )
    prove(load({"name": "t", "collective": "allreduce", "inplace": True, "gpus": gpus}).plan)


def test_packets_that_are_read_twice_are_stored() -> None:
    gather = {"collective": "allgather", "input_chunks": 1, "output_chunks": 2}
    blocks = [
        [
            [op("ppkt", [buffer("o", g)], [buffer(1, 0)])],
            [op("upkt", [buffer("s", 0)], [buffer("o", 1 - g)]), op("upkt", [buffer("s", 0)], [buffer("s", 5)])],
        ]
        for g in range(2)
    ]
    prove(load(pair(blocks, 2, **gather)).plan)


def test_put_with_signal_get_copy_and_flush() -> None:
    # Gpu 0 stages its input where gpu 1 gets it; gpu 1 adds and puts the sum back, with a signal of its own.
    first = [op("copy", [buffer("i", 0, 2)], [buffer("s", 0, 2)]), sync("signal", 0), sync("wait", 0)]
    second = [sync("wait", 0), op("get", [buffer(1, 0, 2)], [buffer("s", 0, 2)], channel_ids=[0]), {"name": "nop"}]
    second += [op("re", [buffer("i", 0, 2), buffer("s", 0, 2)], [buffer("i", 0, 2)])]
    second += [op("pwsf", [buffer("i", 0, 2)], [buffer(0, 0, 2)], channel_ids=[0]), sync("flush", 0)]
    prove(load(pair([[first], [second]], 2)).plan)


@pytest.mark.parametrize("how", ["barrier", "semaphore"])
def test_what_thread_blocks_of_a_gpu_tell_each_other_orders_them(how: str) -> None:
    if how == "barrier":
        told = heard = {"name": "barrier", "barrier_id": 3, "num_threadblocks": 2}
    else:
        told, heard = ({"name": f"sem_{what}", "semaphore_ids": [0]} for what in ("release", "acquire"))
    blocks = [
        [
            [op("copy", [buffer("i", 1 - g)], [buffer("s", 0)]), told],
            [
                heard,
                sync("signal", 0),
                sync("wait", 0),
                op("rre", [buffer("i", g), buffer(1, 0)], [buffer("i", g)]),
                op("put", [buffer("i", g)], [buffer(0, g)]),
                sync("signal", 0),
                sync("wait", 0),
            ],
        ]
        for g in range(2)
    ]
    found = load(pair(blocks, 2))
    prove(found.plan)
    assert not any("not ordered" in note for note in found.notes)
    for gpu in blocks:
        del gpu[0][1]
        del gpu[1][0]
    assert any("not ordered" in note for note in load(pair(blocks, 2)).notes)


def test_groups_of_thread_blocks_share_an_operation() -> None:
    def body(g: int, t: int) -> list[dict[str, Any]]:
        mine = op(
            "rres", [buffer("i", g), buffer(0, g)], [buffer("i", g), buffer(0, g)], tbg_info={"tb_id": t, "tbg_size": 2}
        )
        return [sync("signal", 0), sync("wait", 0), mine, sync("signal", 0), sync("wait", 0)]

    found = load(pair([[body(g, t) for t in range(2)] for g in range(2)], 2))
    assert found.plan["chunks_per_block"] == 4
    prove(found.plan)


def test_switch_memory_is_emulated_and_says_so() -> None:
    blocks = [
        [
            [
                sync("signal", 0),
                sync("wait", 0),
                {
                    "name": "pipeline",
                    "iter_context": {"unit_size": 1, "num_chunks": 1},
                    "ops": [
                        op(
                            "glres",
                            [{"switch_channel_id": 0, "index": g, "size": 1}],
                            [{"switch_channel_id": 0, "index": g, "size": 1}],
                        )
                    ],
                },
                sync("signal", 0),
                sync("wait", 0),
            ]
        ]
        for g in range(2)
    ]
    document = pair(blocks, 2)
    for gpu in document["gpus"]:
        gpu["channels"].append(
            {"channel_type": "switch", "buffer_type": "i", "rank_groups": [{"size": 2, "ranks": [0, 1]}]}
        )
        gpu["threadblocks"][0]["channels"].append({"channel_type": "switch", "channel_ids": [0]})
    found = load(document)
    assert any("glres" in note for note in found.notes)
    prove(found.plan)


def test_signals_that_nothing_waits_for_are_noted() -> None:
    found = load(damaged(lambda d, g, t: t["ops"].pop()))
    assert any("1 signals" in note for note in found.notes)
    prove(found.plan)


def test_bounds_and_defaults() -> None:
    found = load({**exchange(2), "max_message_size": NO_LIMIT})
    assert (found.meta["min_bytes"], found.meta["max_bytes"], found.meta["buffer_alignment"]) == (0, NO_LIMIT, 16)
    with pytest.raises(FormatError, match="max_message_size"):
        load({**exchange(2), "max_message_size": NO_LIMIT + 1})


def damaged(change: Any) -> dict[str, Any]:
    document = exchange(2)
    change(document, document["gpus"][1], document["gpus"][1]["threadblocks"][0])
    return document


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d, g, t: t["ops"].append({"name": "teleport"}), "gpu 1, threadblock 0, op 5 .*'teleport' is not known"),
        (lambda d, g, t: t["ops"].insert(0, sync("wait", 0)), "wait for ever at t.json: gpu"),
        (lambda d, g, t: t["ops"][0].update(channel_ids=[1]), "op 0 .*no memory channel 1"),
        (lambda d, g, t: t["ops"][2]["src_buff"][0].update(index=2), "op 2 .*has 2 chunks"),
        (lambda d, g, t: t["ops"][2]["src_buff"][1].update(buffer_id=3), "no remote buffer 3"),
        (lambda d, g, t: t["ops"][2]["src_buff"][0].update(size=2, index=0), "different sizes"),
        (lambda d, g, t: t["ops"][2]["src_buff"][0].update(type="x"), "'x' is none of the buffers"),
        (lambda d, g, t: t["ops"][2].update(src_buff=[]), "no src_buff"),
        (lambda d, g, t: g.update(id=0), "numbered from 0"),
        (lambda d, g, t: g.update(threadblocks=[t, t]), "threadblock 0 twice"),
        (lambda d, g, t: d.update(collective="broadcast"), "collective 'broadcast'"),
        (lambda d, g, t: d.update(gpus=[]), "0 gpus"),
        (lambda d, g, t: d.update(gpus=7), "'gpus' is no list"),
        (lambda d, g, t: g.update(input_chunks=-1), "input_chunks"),
        (lambda d, g, t: [x.update(input_chunks=1 << 20) for x in d["gpus"]], "more chunks than its operations"),
        (lambda d, g, t: g.update(input_chunks=True), "input_chunks"),
        (lambda d, g, t: g["channels"][0].update(connected_to=[5]), "connected_to"),
    ],
)
def test_what_is_wrong_is_named(change: Any, said: str) -> None:
    with pytest.raises(FormatError, match=said) as refusal:
        plan = load(damaged(change)).plan
        _core.verify(_core.encode_plan(plan))
    assert "t.json" in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"gpus": NaN}', "NaN"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b"[" * 100_000, "deeper"),
        (b'{"gpus": [}', "no JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "no JSON"),
        (b'{"a": "\xff"}', "no JSON"),
        (b"[]", "no object"),
    ],
)
def test_what_is_no_json_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        import_mscclpp_json(text)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_plan_is_refused_or_imported_and_nothing_else(data: st.DataObject) -> None:
    text = json.dumps(exchange(2))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text = (
            text[:at]
            + data.draw(st.sampled_from(["", "9", '"', "[]", "null", "-1", "{}"]))
            + text[at + data.draw(st.integers(0, 9)) :]
        )
    try:
        plan = import_mscclpp_json(text.encode()).plan
    except FormatError:
        return
    assert plan is not None
    _core.encode_plan(plan)
