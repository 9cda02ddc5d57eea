"""What a schedule looks like, as data and as text: its tasks, its sub-pipelines, and what its thread blocks do when.

resccl.draw makes pictures of the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from resccl.compiler import Analysis
from resccl.plan import Plan
from resccl.refusal import describe_instruction

MOST_INSTRUCTIONS = 200_000
"""Of a plan whose time line is drawn."""
_SHORT = {
    "Nop": "n",
    "Send": "s",
    "Recv": "r",
    "RecvCopySend": "rs",
    "RecvReduceCopy": "R",
    "RecvReduceSend": "Rs",
    "RecvReduceCopySend": "Rs",
    "Copy": "c",
    "Reduce": "+",
    "Fold": "F",
}


@dataclass(frozen=True)
class Cell:
    """An instruction on the time line of one micro-batch, in units of one instruction each."""

    tb: int
    time: int
    opcode: str
    sub_pipeline: int
    text: str  # "RecvReduceCopy from 3: input[2] -> output[2]"
    chunk: int  # index of the place it writes, else reads; -1 without one

    @property
    def short(self) -> str:
        return _SHORT[self.opcode] + (str(self.chunk) if self.chunk >= 0 else "")


@dataclass(frozen=True)
class Timeline:
    """The cells of one rank, and the length of the whole plan."""

    rank: int
    thread_blocks: int
    length: int
    cells: list[Cell]


def is_small(plan: Plan) -> bool:
    """Return whether a plan may be taken apart to be looked at: at most MOST_INSTRUCTIONS."""
    return sum(part["instructions"] for part in plan.summary["rank_plans"]) <= MOST_INSTRUCTIONS


def timeline(plan: Plan, rank: int) -> Timeline:
    """Return when each instruction of `rank` runs if each takes one unit, and nothing but data makes it wait.

    ValueError: there is no such rank, the plan is too large, or it would not end.
    """
    if not is_small(plan):
        raise ValueError(
            f"plan '{plan.name}' is too large; time lines are drawn up to {MOST_INSTRUCTIONS:,} instructions"
        )
    fields = plan.to_dict()
    parts = {part["rank"]: part for part in fields["rank_plans"]}
    if rank not in parts:
        raise ValueError(f"plan '{plan.name}' has no part for rank {rank}")
    time = _times(fields, parts)
    cells = []
    for tb, instructions in enumerate(parts[rank]["thread_blocks"]):
        for step, instruction in enumerate(instructions):
            place = instruction["dst"] or instruction["src"]
            cells.append(
                Cell(
                    tb,
                    time[rank, tb, step],
                    instruction["opcode"],
                    instruction["sub_pipeline"],
                    describe_instruction(parts[rank], tb, step),
                    -1 if place is None else place[1],
                )
            )
    return Timeline(rank, len(parts[rank]["thread_blocks"]), max(time.values(), default=-1) + 1, cells)


Node = tuple[int, int, int]  # rank, TB, step


def _times(plan: dict[str, Any], parts: dict[int, dict[str, Any]]) -> dict[Node, int]:
    """Return the earliest unit of each instruction: one after all that it waits for."""
    after: dict[Node, list[Node]] = defaultdict(list)
    waits: dict[Node, int] = {}
    for rank, part in parts.items():
        for tb, instructions in enumerate(part["thread_blocks"]):
            for step, instruction in enumerate(instructions):
                before = [(rank, d[0], d[1]) for d in instruction["dependencies"] if d[2] == 0]
                if step > 0:
                    before.append((rank, tb, step - 1))
                waits[rank, tb, step] = len(before)
                for node in before:
                    after[node].append((rank, tb, step))
    for sender, receiver in _messages(parts):
        after[sender].append(receiver)
        waits[receiver] += 1
    time = {node: 0 for node, count in waits.items() if count == 0}
    ready = list(time)
    for node in ready:  # grows
        for later in after[node]:
            time[later] = max(time.get(later, 0), time[node] + 1)
            waits[later] -= 1
            if waits[later] == 0:
                ready.append(later)
    if len(ready) != len(waits):
        raise ValueError(f"plan '{plan['name']}' would wait for ever; resccl verify says why")
    return time


def _messages(parts: dict[int, dict[str, Any]]) -> Iterator[tuple[Node, Node]]:
    """Yield who sends and who receives each message: both ends of a connection count alike."""
    sends: dict[tuple[int, int, int, int], list[Node]] = defaultdict(list)
    receives: dict[tuple[int, int, int, int], list[Node]] = defaultdict(list)
    for rank, part in parts.items():
        for tb, instructions in enumerate(part["thread_blocks"]):
            for step, instruction in enumerate(instructions):
                node = (rank, tb, step)
                arriving = [operand for operand in instruction["fold"] if operand >= 0]
                for index in [*arriving, *([instruction["recv"]] if instruction["recv"] >= 0 else [])]:
                    c = part["connections"][index]
                    receives[c["peer"], rank, c["rail"], c["channel"]].append(node)
                if instruction["send"] >= 0:
                    c = part["connections"][instruction["send"]]
                    sends[rank, c["peer"], c["rail"], c["channel"]].append(node)
    for connection, senders in sends.items():
        yield from zip(senders, receives[connection], strict=False)


def timeline_text(line: Timeline, most: int = 40) -> list[str]:
    """Return a line a thread block, a column a unit of time; `timeline_legend` says what the letters mean."""
    width = min(line.length, most)
    grid = [["·"] * width for _ in range(line.thread_blocks)]
    for cell in line.cells:
        if cell.time < width:
            grid[cell.tb][cell.time] = cell.short
    size = max([len(text) for row in grid for text in row] + [len(str(max(width - 1, 0)))])
    head = "time  " + " ".join(f"{time:>{size}}" for time in range(width))
    rows = [f"TB {tb:<3}" + " ".join(f"{text:>{size}}" for text in row) for tb, row in enumerate(grid)]
    rest = [f"... up to time {line.length - 1} (--most shows more)"] if line.length > width else []
    return [head, *rows, *rest]


def timeline_legend() -> str:
    """Return the line that explains timeline_text."""
    return "s send, r receive, R receive and reduce, F fold several, c copy, + reduce, · wait; the number is the chunk"


def transfers_text(analysis: Analysis, task: int) -> str:
    """Return `0>1` for a task of one transfer, `1,2,3>0` for one that several arrive by."""
    arriving: dict[int, list[int]] = defaultdict(list)
    for src, dst, *_ in analysis.transfers_of(task).tolist():
        arriving[dst].append(src)
    return " ".join(f"{','.join(map(str, sources))}>{dst}" for dst, sources in arriving.items())


def dag_text(analysis: Analysis, most: int = 40) -> list[str]:
    """Return a line a task, by chunk: its transfers, its sub-pipeline, and the tasks whose data it waits for."""
    lines = []
    chunk = -1
    for task in range(min(analysis.tasks, most)):
        _, _, step, number, op, _ = analysis.transfers_of(task)[0].tolist()
        if number != chunk:
            chunk = number
            lines.append(f"chunk {chunk}")
        waits = ", ".join(f"t{each}" for each in analysis.predecessors_of(task).tolist())
        what = "reduce" if op else "copy"
        far = "  between hosts" if analysis.between_hosts[task] else ""
        after = f"  after {waits}" if waits else ""
        lines.append(
            f"  t{task:<4} {transfers_text(analysis, task):<12} {what:<6} step {step:<3} "
            f"sub-pipeline {analysis.sub_pipeline[task]:<3}{after}{far}"
        )
    if analysis.tasks > most:
        lines.append(f"... {analysis.tasks - most} more tasks (--most shows more)")
    return lines


def pipeline_text(analysis: Analysis, most: int = 40) -> list[str]:
    """Return a line a sub-pipeline: its tasks, the share of all links that they use, and the tasks in their order."""
    tasks: dict[int, list[int]] = defaultdict(list)
    for task in analysis.order.tolist():
        tasks[int(analysis.sub_pipeline[task])].append(task)
    lines = []
    for number in range(min(analysis.sub_pipelines, most)):
        inside = tasks[number]
        links = {link for task in inside for link in analysis.links_of(task).tolist()}
        shown = ", ".join(f"c{analysis.transfers_of(t)[0][3]}:{transfers_text(analysis, t)}" for t in inside[:8])
        more = f", and {len(inside) - 8} more" if len(inside) > 8 else ""
        share = len(links) / max(len(analysis.links), 1)
        lines.append(f"  {number:>3}  {len(inside):>4} tasks  {share:>4.0%} of the links  {shown}{more}")
    if analysis.sub_pipelines > most:
        lines.append(f"... {analysis.sub_pipelines - most} more sub-pipelines (--most shows more)")
    return lines
