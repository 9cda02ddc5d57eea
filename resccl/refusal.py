"""A refusal of the verifier as text: the interleaving, instruction by instruction."""

from __future__ import annotations

from typing import Any

from resccl.errors import VerificationError
from resccl.plan import Plan

_ENDINGS = {
    "deadlock": "and now nothing can go on",
    "rendezvous": "and now nothing can go on",
    "race": "the last two touch the same place, and nothing orders them",
    "value": "and the result is wrong",
    "structure": "and the ends of a connection disagree",
}


def lines_of(plan: Plan, refusal: VerificationError) -> list[str]:
    """Return the interleaving that shows the refusal: a heading, a line an instruction, and how it ends.

    Empty where the refusal is no matter of a run.
    """
    if not refusal.interleaving:
        return []
    parts = {part["rank"]: part for part in plan.to_dict()["rank_plans"]}
    place = "in place" if refusal.in_place else "out of place"
    slots = f"{refusal.slots} slots a connection" if refusal.slots else "rendezvous"
    batches = f"{refusal.micro_batches} micro-batch{'es' if refusal.micro_batches > 1 else ''}"
    lines = [f"a run that shows it ({slots}, {batches}, {place}):"]
    lines += [_line(parts[rank], tb, step, batch) for rank, tb, step, batch in refusal.interleaving]
    if refusal.reference is not None:
        rank, tb, step, batch = refusal.reference
        lines.append(f"what it overwrites is still being read by {_line(parts[rank], tb, step, batch).strip()}")
    ending = _ENDINGS.get(str(refusal.kind))
    return [*lines, ending] if ending else lines


def describe_instruction(part: dict[str, Any], tb: int, step: int) -> str:
    """Return `RecvReduceCopy from 3: input[2] -> output[2]` for an instruction of a rank's part."""
    instruction = part["thread_blocks"][tb][step]
    connections = part["connections"]
    text = str(instruction["opcode"])
    senders = [operand for operand in instruction["fold"] if operand >= 0]
    if instruction["recv"] >= 0:
        senders.append(instruction["recv"])
    if senders:
        text += " from " + ", ".join(str(connections[each]["peer"]) for each in senders)
    if instruction["send"] >= 0:
        text += f" to {connections[instruction['send']]['peer']}"
    places = [f"{place[0]}[{place[1]}]" for place in (instruction["src"], instruction["dst"]) if place is not None]
    return f"{text}: {' -> '.join(places)}" if places else text


def _line(part: dict[str, Any], tb: int, step: int, batch: int) -> str:
    what = describe_instruction(part, tb, step)
    return f"rank {part['rank']:>3}  TB {tb:>2}  step {step:>3}  micro-batch {batch}  {what}"
