"""Small schedules of foreign formats for the tests, and the proof that what was imported is right."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from resccl import _core
from resccl.interpret import Interpreter, setting_for

# (type, source "i0", destination "o1", count, (tb, step) or None)
Step = tuple[str, str, str, int, tuple[int, int] | None]
# (send, recv, chan, steps)
Block = tuple[int, int, int, Sequence[Step]]


def step(kind: str, src: str = "i0", dst: str = "", cnt: int = 1, dep: tuple[int, int] | None = None) -> Step:
    return (kind, src, dst or src, cnt, dep)


def nop(tb: int, s: int) -> Step:
    return ("nop", "i-1", "o-1", 0, (tb, s))


def msccl(coll: str, chunks: int, gpus: Sequence[Sequence[Block]], **attributes: object) -> str:
    """An MSCCL XML document; `attributes` of <algo>, and sizes i, o, s of the buffers."""
    sizes = " ".join(f'{b}_chunks="{attributes.pop(b, chunks)}"' for b in "ios")
    head = {"name": "t", "proto": "Simple", "nchannels": 1, "nchunksperloop": chunks, "ngpus": len(gpus), "coll": coll}
    head.update(attributes)
    lines = ["<algo " + " ".join(f'{k}="{v}"' for k, v in head.items() if v is not None) + ">"]
    for g, blocks in enumerate(gpus):
        lines.append(f'<gpu id="{g}" {sizes}>')
        for t, (send, recv, chan, steps) in enumerate(blocks):
            lines.append(f'<tb id="{t}" send="{send}" recv="{recv}" chan="{chan}">')
            awaited = {dep for _, _, _, b in blocks for *_, dep in b if dep}
            lines.extend(_step_line(s, *each, has=(t, s) in awaited) for s, each in enumerate(steps))
            lines.append("</tb>")
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>"])


def _step_line(s: int, kind: str, src: str, dst: str, cnt: int, dep: tuple[int, int] | None, has: bool) -> str:
    on, at = dep or (-1, -1)
    return (
        f'<step s="{s}" type="{kind}" srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}" dstoff="{dst[1:]}" '
        f'cnt="{cnt}" depid="{on}" deps="{at}" hasdep="{int(has)}"/>'
    )


def ring_allreduce(ranks: int, **attributes: object) -> str:
    """In place: chunk c goes round from rank c, is complete at rank c-1, and goes round again."""
    gpus = []
    for r in range(ranks):
        steps = [step("s", f"i{r}")]
        steps += [step("rrs", f"i{(r - n) % ranks}") for n in range(1, ranks - 1)]
        steps.append(step("rrcs", f"i{(r + 1) % ranks}"))
        steps += [step("rcs", f"i{(r - n) % ranks}") for n in range(ranks - 2)]
        steps.append(step("r", f"i{(r + 2) % ranks}"))
        gpus.append([((r + 1) % ranks, (r - 1) % ranks, 0, steps)])
    return msccl("allreduce", ranks, gpus, **{"inplace": 1, "outofplace": 0, "o": 0, "s": 0, **attributes})


def in_place_only(text: str, collective: str, pieces: int) -> str:
    """The same MSCCL schedule as tools write it that only know in place: input and output are one buffer."""
    lines = []
    gpu = 0
    for line in text.split("\n"):
        if found := re.search(r'<gpu id="(\d+)"', line):
            gpu = int(found.group(1))
            line = re.sub(r'[io]_chunks="\d+" ' if collective != "AllGather" else r'i_chunks="\d+" ', "", line)
        if "<step" in line and "nop" not in line:
            rename = partial(_renamed, collective=collective, shift=gpu * pieces)
            line = re.sub(r'buf="(.)" (...)off="(\d+)"', rename, line)
        lines.append(line.replace('outofplace="1"', 'outofplace="0"'))
    return "\n".join(lines)


def _renamed(match: re.Match[str], collective: str, shift: int) -> str:
    name, side, offset = match.group(1), match.group(2), int(match.group(3))
    if collective == "AllGather" and name == "i":
        name, offset = "o", offset + shift
    elif collective == "ReduceScatter" and name == "o":
        name, offset = "i", offset + shift
    elif collective in ("AllReduce", "Reduce", "Broadcast") and name == "o":
        name = "i"
    return f'buf="{name}" {side}off="{offset}"'


def buffer(kind: str | int, index: int, size: int = 1) -> dict[str, Any]:
    """An entry of src_buff or dst_buff: of the gpu's own buffer, or of a remote one by number."""
    return {"type" if isinstance(kind, str) else "buffer_id": kind, "index": index, "size": size}


def op(name: str, src: Sequence[Any] = (), dst: Sequence[Any] = (), **others: Any) -> dict[str, Any]:
    """An operation of an MSCCL++ plan on memory channels."""
    return {"name": name, "src_buff": list(src), "dst_buff": list(dst), "channel_type": "memory", **others}


def sync(name: str, *channels: int) -> dict[str, Any]:
    return {"name": name, "channel_ids": list(channels), "channel_type": "memory"}


def pair(blocks: Sequence[Sequence[Sequence[dict[str, Any]]]], chunks: int, **head: Any) -> dict[str, Any]:
    """An MSCCL++ plan of two gpus: per gpu thread blocks, per block operations.

    Each thread block has a channel of its own; remote buffers are 0: the peer's input, 1: its scratch, 2: its output.
    """
    gpus = []
    for g, mine in enumerate(blocks):
        gpus.append(
            {
                "id": g,
                "input_chunks": head.get("input_chunks", chunks),
                "output_chunks": head.get("output_chunks", chunks),
                "scratch_chunks": 64,
                "threadblocks": [
                    {
                        "id": t,
                        "ops": list(ops),
                        "channels": [{"channel_type": "memory", "channel_ids": [t]}],
                        "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0, 1, 2]}],
                    }
                    for t, ops in enumerate(mine)
                ],
                "channels": [{"channel_type": "memory", "connected_to": [1 - g] * len(mine)}],
                "remote_buffers": [
                    {"rank": 1 - g, "type": kind, "access_channel_types": ["memory"]} for kind in ("i", "s", "o")
                ],
                "semaphores": [{"init_value": 0}, {"init_value": 1}],
            }
        )
    return {"name": "t", "collective": "allreduce", "protocol": "Simple", "inplace": True, **head, "gpus": gpus}


def encoded(document: Any) -> bytes:
    return json.dumps(document).encode()


def prove(plan: dict[str, Any], slots: int = 2, seeds: int = 3) -> None:
    """The verifier accepts the plan with that many slots, and the reference interpreter gets the right numbers."""
    _core.verify(_core.encode_plan(plan), slots=slots)
    for in_place in (False, True) if plan["collective"] != "AllToAll" else (False,):
        for seed in range(seeds):
            fault = Interpreter(plan, setting_for(plan, 2, slots=slots, in_place=in_place), seed).run()
            assert fault is None, fault


def instructions(plan: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    return [i for block in plan["rank_plans"][rank]["thread_blocks"] for i in block]
