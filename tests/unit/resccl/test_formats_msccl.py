"""Import of MSCCL XML: what the file means, in place and out of place; what is refused, and how that is named."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.resccl.formats_inputs import instructions, msccl, nop, prove, ring_allreduce, step

from resccl import VerificationError, _core
from resccl.formats import NO_LIMIT, FormatError, import_msccl_xml


def load(text: str) -> dict:
    plan = import_msccl_xml(text.encode(), "t.xml").plan
    assert plan is not None
    return plan


@pytest.mark.parametrize("ranks", [3, 5])
def test_an_in_place_ring_is_right_out_of_place_as_well(ranks: int) -> None:
    prove(load(ring_allreduce(ranks)))


def test_the_input_is_never_written() -> None:
    plan = load(ring_allreduce(4))
    written = {i["dst"][0] for r in range(4) for i in instructions(plan, r) if i["dst"]}
    assert written == {"output"}


@pytest.mark.parametrize("coll", ["reducescatter", "reduce_scatter", "Reduce-Scatter"])
def test_reduce_scatter_has_several_spellings_and_spares_the_other_blocks_of_its_input(coll: str) -> None:
    gpus = []
    for r in range(3):
        there, back = (r + 1) % 3, (r - 1) % 3
        steps = [step("s", f"i{back}"), step("rrcs", f"i{(r - 2) % 3}"), step("rrc", f"i{r}")]
        gpus.append([(there, back, 0, steps)])
    plan = load(msccl(coll, 3, gpus, inplace=1, outofplace=0, o=1, s=0))
    assert plan["collective"] == "ReduceScatter"
    prove(plan)


def test_bounds_default_and_saturate() -> None:
    text = ring_allreduce(3, minBytes=4096, maxBytes=1 << 70)
    assert import_msccl_xml(text.encode()).meta["max_bytes"] == NO_LIMIT
    assert import_msccl_xml(text.encode()).meta["min_bytes"] == 4096
    meta = import_msccl_xml(ring_allreduce(3, maxBytes=1152921504606846976).encode()).meta
    assert (meta["min_bytes"], meta["max_bytes"]) == (0, 1152921504606846976)
    bare = import_msccl_xml(ring_allreduce(3, maxBytes=0).encode())
    assert bare.meta["max_bytes"] == NO_LIMIT
    assert any("bound" in note for note in bare.notes)


def test_what_is_missing_gets_a_default_and_what_is_unknown_a_note() -> None:
    found = import_msccl_xml(
        ring_allreduce(
            3, nchannels=None, proto=None, nchunksperloop=None, outofplace=None, ngpus=None, colour="red"
        ).encode()
    )
    assert found.meta["protocol"] == "Simple"
    assert any("algo.colour" in note for note in found.notes)
    assert found.plan is not None
    prove(found.plan)


def all_gather(steps_of: dict[int, list], **attributes: object) -> str:
    gpus = [[(1 - r, 1 - r, 0, steps_of[r])] for r in range(2)]
    return msccl("allgather", 4, gpus, **{"inplace": 1, "outofplace": 0, "i": 0, "s": 0, **attributes})


def test_an_in_place_all_gather_gets_the_copies_that_it_needs_out_of_place() -> None:
    text = all_gather(
        {0: [step("s", "o0", cnt=2), step("r", "o2", cnt=2)], 1: [step("s", "o2", cnt=2), step("r", "o0", cnt=2)]}
    )
    found = import_msccl_xml(text.encode())
    assert found.plan is not None
    assert sum(i["opcode"] == "Copy" for i in instructions(found.plan, 0)) == 2
    assert any("4 copies" in note for note in found.notes)
    prove(found.plan)


def test_copy_elements_come_before_everything() -> None:
    steps = {0: [step("s", "o0"), step("r", "o1")], 1: [step("s", "o1"), step("r", "o0")]}
    text = all_gather(steps, nchunksperloop=2, inplace=0, outofplace=1, i=1, o=2)
    text = text.replace('<gpu id="0" ', '<gpu id="0" ', 1)
    text = re.sub(r'(<gpu id="(\d)"[^>]*>)', r'\1<copy i_off="0" o_off="\2"/>', text)
    prove(load(text))


def test_steps_that_move_many_chunks_need_no_more_slots_for_it() -> None:
    # Both send 16 chunks, then receive 16: as 16 messages that would fill 2 slots from both sides.
    first = [step("s", "i16", cnt=16), step("r", "s0", cnt=16)]
    second = [step("s", "i0", cnt=16), step("r", "s0", cnt=16)]
    back = [(1, 1, 1, [step("s", "i0", cnt=16, dep=(2, 15)), step("r", "i16", cnt=16)])]
    forth = [(0, 0, 1, [step("s", "i16", cnt=16, dep=(2, 15)), step("r", "i0", cnt=16)])]
    adds = [(-1, -1, 0, [step("re", f"s{n}", f"i{n}", dep=(0, 1)) for n in range(16)])]
    adds_too = [(-1, -1, 0, [step("re", f"s{n}", f"i{n + 16}", dep=(0, 1)) for n in range(16)])]
    text = msccl(
        "allreduce",
        32,
        [[(1, 1, 0, first), *back, *adds], [(0, 0, 0, second), *forth, *adds_too]],
        inplace=1,
        outofplace=0,
        o=0,
    )
    prove(load(text), seeds=1)


def one_shot(ranks: int, nops: bool = True, **attributes: object) -> str:
    """Everybody sends its chunk to everybody and adds up what comes, its own value first."""
    gpus = []
    for r in range(ranks):
        peers = [p for p in range(ranks) if p != r]
        blocks: list = [(p, p, 0, [step("s", "i0"), step("r", f"s{n}")]) for n, p in enumerate(peers)]
        waits = [nop(n, s) for n in range(len(peers)) for s in (0, 1)]
        sums = [step("re", f"s{n}", "i0", dep=None if nops else (n, 1)) for n in range(len(peers))]
        waits = waits if nops else [nop(n, 0) for n in range(len(peers))]
        blocks.append((-1, -1, 0, [*waits, *sums]))
        gpus.append(blocks)
    return msccl("allreduce", 1, gpus, **{"inplace": 1, "outofplace": 0, "o": 0, "s": ranks - 1, **attributes})


def test_ranks_that_reduce_the_same_chunk_do_so_in_one_order() -> None:
    found = import_msccl_xml(one_shot(4).encode())
    assert found.plan is not None
    assert any("order" in note for note in found.notes)
    prove(found.plan)  # its equal_bits would refuse it otherwise


def test_scratch_waits_for_the_micro_batch_before() -> None:
    plan = load(one_shot(3))
    prove(plan)
    for rank in range(3):
        for i in instructions(plan, rank):
            i["dependencies"] = [d for d in i["dependencies"] if d[2] == 0]
    with pytest.raises(VerificationError, match="micro-batch"):
        _core.verify(_core.encode_plan(plan))


def test_dependencies_count_nops_and_steps_run_in_the_order_of_s() -> None:
    # Chained reductions into one place that wait for different thread blocks; step numbers fall in the file.
    text = one_shot(3)
    lines = text.split("\n")
    begin = next(n for n, line in enumerate(lines) if 'send="-1"' in line) + 1
    end = next(n for n in range(begin, len(lines)) if lines[n] == "</tb>")
    lines[begin:end] = reversed(lines[begin:end])
    found = import_msccl_xml("\n".join(lines).encode())
    assert found.plan == import_msccl_xml(text.encode()).plan
    assert any("out of order" in note for note in found.notes)
    late = text.replace('depid="1" deps="1"', 'depid="1" deps="0"')
    with pytest.raises(ValueError, match=r"race|nothing has written"):
        _core.verify(_core.encode_plan(load(late)))


def test_chained_reductions_keep_what_each_waits_for() -> None:
    plan = load(one_shot(4, nops=False))
    prove(plan)


def test_receives_before_sends_on_all_sides_are_taken_apart() -> None:
    steps = {0: [step("r", "o1"), step("s", "o0")], 1: [step("r", "o0"), step("s", "o1")]}
    found = import_msccl_xml(all_gather(steps, nchunksperloop=2, o=2).encode())
    assert any("wait for each other" in note for note in found.notes)
    assert found.plan is not None
    prove(found.plan)


def test_a_file_for_both_that_writes_its_input_only_is_taken_as_in_place() -> None:
    found = import_msccl_xml(ring_allreduce(3, outofplace=1).encode())
    assert any("in place" in note for note in found.notes)
    assert found.plan is not None
    prove(found.plan)


def test_an_in_place_reduce_spares_the_input_of_all() -> None:
    # A chain towards gpu 0, the root; the others have no output.
    gpus = [
        [(-1, 1, 0, [step("rrc", "i0")])],
        [(0, 2, 0, [step("rrc", "i0"), step("s", "i0")])],
        [(1, -1, 0, [step("s", "i0")])],
    ]
    plan = load(msccl("reduce", 1, gpus, inplace=1, outofplace=0, o=0, s=0))
    assert {i["dst"][0] for i in instructions(plan, 1) if i["dst"]} == {"scratch"}
    prove(plan)


def test_small_files_cannot_ask_for_much() -> None:
    bomb = "".join('<copy i_off="0" o_off="0" cnt="1000000"/>' for _ in range(2))
    with pytest.raises(FormatError, match="chunk moves in all"):
        load(ring_allreduce(3).replace("<tb", bomb + "<tb", 1))
    with pytest.raises(FormatError, match="nchunksperloop=1000000 are more chunks"):
        load(ring_allreduce(3, nchunksperloop=1000000))


def test_comments_may_be_anywhere() -> None:
    text = ring_allreduce(3)
    assert load("<!-- a -->" + text.replace("<step", "<!-- b --><step")) == load(text)


def test_a_circle_of_data_is_refused_by_name() -> None:
    gpus = [[((r + 1) % 3, (r - 1) % 3, 0, [step("rcs", "o0")])] for r in range(3)]
    text = msccl("allgather", 3, gpus, inplace=1, outofplace=0, i=0, s=0)
    with pytest.raises(
        FormatError,
        match=r"t\.xml would wait for ever: t\.xml, gpu 0, tb 0, step 0 \(rcs\) waits for a message from rank 2",
    ):
        load(text)


def test_an_all_reduce_that_only_swaps_is_left_to_the_verifier() -> None:
    gpus = [[(1 - r, 1 - r, 0, [step("s", f"i{r}"), step("r", f"i{1 - r}")])] for r in range(2)]
    plan = load(msccl("allreduce", 2, gpus, inplace=1, outofplace=0, o=0, s=0))
    with pytest.raises(VerificationError):
        _core.verify(_core.encode_plan(plan))


def test_out_of_place_files_are_right_in_place() -> None:
    # Nothing orders the copy to the output and the send of the input, as out of place nothing has to; in place they
    # are one memory, and the copy scales it where the request has a factor.
    gather = [
        [
            (-1, -1, 0, [step("cpy", "i0", f"o{r}")]),
            (1 - r, -1, 0, [step("s", "i0")]),
            (-1, 1 - r, 0, [step("r", "i0", f"o{1 - r}")]),
        ]
        for r in range(2)
    ]
    prove(load(msccl("allgather", 2, gather, inplace=0, outofplace=1, i=1)))
    one_gpu_sums = [
        [
            (-1, -1, 0, [step("cpy", "i0", "o0")]),
            (1, -1, 1, [step("s", "o0", dep=(2, 0))]),
            (-1, 1, 0, [step("rrc", "o0", dep=(0, 0))]),
        ],
        [
            (-1, -1, 0, [step("cpy", "i0", "o0")]),
            (0, -1, 0, [step("s", "i0")]),
            (-1, 0, 1, [step("r", "o0", dep=(0, 0))]),
        ],
    ]
    prove(load(msccl("allreduce", 1, one_gpu_sums, inplace=0, outofplace=1)))


GOOD = ring_allreduce(3)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("<algo", "<algorithm", "XML"),
        ('id="2"', 'id="1"', "gpu 1"),
        ('id="2"', 'id="7"', "gpu 2 is missing"),
        ('ngpus="3"', 'ngpus="4"', "cut off"),
        ('ngpus="3"', 'ngpus="three"', "ngpus='three'"),
        ('coll="allreduce"', 'coll="custom"', "coll='custom'"),
        ('coll="allreduce"', 'coll="allgather"', "gpu 1, tb 0, step 0 .* nothing has written"),
        ('nchunksperloop="3"', 'nchunksperloop="0"', "nchunksperloop=0"),
        ('send="1"', 'send="3"', "peer 3"),
        ('send="1"', 'send="0"', "gpu 0, tb 0"),
        ('send="1"', 'send="-1"', "nobody to send to"),
        ('<step s="1"', '<step s="0"', "step 0.*twice"),
        ('s="4"', 's="9"', "step 4 is missing"),
        ('type="rrcs"', 'type="rrcx"', "type='rrcx'"),
        ('srcbuf="i"', 'srcbuf="q"', "srcbuf='q'"),
        ('srcoff="0"', 'srcoff="3"', "outside of buffer 'i'"),
        ('srcoff="0"', 'srcoff="-1"', "srcoff=-1"),
        ('cnt="1"', 'cnt="0"', "moves nothing"),
        ('cnt="1"', 'cnt="2000000"', "cnt=2000000"),
        ('depid="-1" deps="-1"', 'depid="5" deps="0"', "tb 5, step 0, which does not exist"),
        ('depid="-1" deps="-1"', 'depid="0" deps="5"', "tb 0, step 5, which does not exist"),
        ('chan="0"', 'chan="40000"', "chan=40000"),
        ("<tb", "<block", "XML"),
        ("</gpu>", "<extra/></gpu>", "<extra>"),
        ("</gpu>", "hello</gpu>", "text between"),
        ("<algo", '<!DOCTYPE algo [<!ENTITY a "b">]><algo', "DOCTYPE"),
        ("<algo", '<!DOCTYPE algo SYSTEM "file:///etc/passwd"><algo', "DOCTYPE"),
        ("</algo>", "", "XML"),
        ("</gpu>", "<a><a><a><a><a><a><a><a/></a></a></a></a></a></a></a></gpu>", "nest deeper"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(FormatError, match=said) as refusal:
        load(GOOD.replace(old, new, 1))
    assert "t.xml" in str(refusal.value)


def test_two_thread_blocks_on_one_connection_are_refused() -> None:
    gpus = [
        [(1, -1, 0, [step("s", "i0")]), (1, -1, 0, [step("s", "i0")])],
        [(-1, 0, 0, [step("r", "i0"), step("r", "i0")])],
    ]
    with pytest.raises(FormatError, match="gpu 0, tb 1: it and tb 0 both send to gpu 1 on channel 0"):
        load(msccl("broadcast", 1, gpus, inplace=1, outofplace=0, o=0, s=0))


def test_a_message_that_nobody_takes_is_refused() -> None:
    gpus = [[(1, -1, 0, [step("s", "i0"), step("s", "i0")])], [(-1, 0, 0, [step("r", "i0")])]]
    with pytest.raises(FormatError, match="nothing receives"):
        load(msccl("broadcast", 1, gpus, inplace=1, outofplace=0, o=0, s=0))


def test_what_nothing_has_written_is_not_read() -> None:
    gpus = [[(1, -1, 0, [step("s", "s0")])], [(-1, 0, 0, [step("r", "i0")])]]
    with pytest.raises(FormatError, match=r"step 0 \(s\) reads chunk 0 of buffer 's', which nothing has written"):
        load(msccl("broadcast", 1, gpus, inplace=1, outofplace=0, o=0))


def test_one_gpu_needs_no_messages() -> None:
    prove(
        load('<algo coll="allreduce" nchunksperloop="2" inplace="1" outofplace="0"><gpu id="0" i_chunks="2"/></algo>')
    )


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_file_is_refused_or_imported_and_nothing_else(data: st.DataObject) -> None:
    text = bytearray(one_shot(3).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 20))] = data.draw(
            st.sampled_from([b"", b"9", b'"', b"<", b"-1", b"\x00", b"\xff", b"nop"])
        )
    try:
        plan = import_msccl_xml(bytes(text)).plan
    except FormatError:
        return
    assert plan is not None
    _core.encode_plan(plan)  # what comes out is at least well-formed
