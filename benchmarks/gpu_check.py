"""Everything about GPUs that a machine with one or more of them can tell, in one table and at most 6 minutes.

The contract of the seam to CUDA on the real driver; all collectives at 8 B to 1 GB, several ranks on one GPU and one
rank each, against the real NCCL; generated against interpreted kernels; thread blocks against bandwidth; ceilings;
compute-sanitizer. Each part has a process and a time of its own: a hang or a crash costs a row, not the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.gpu.parts import Plan, parts_of
from benchmarks.gpu.row import BAD, GOOD, LEFT_OUT, Row, markdown, text
from benchmarks.gpu.runner import ROOT, Part, part_environment, run_parts
from benchmarks.harness import describe, in_words, parser, write_json

BUDGET = 350.0
QUICK_BUDGET = 100.0


def arguments() -> argparse.Namespace:
    """The command line."""
    made = parser(None)
    made.description = (__doc__ or "").split("\n")[0]
    made.add_argument("--out", type=Path, metavar="FILE", help="also write the table to FILE, as Markdown")
    made.add_argument("--emulated", action="store_true", help="on emulated GPUs, small: checks this script, not a GPU")
    made.add_argument("--parts", nargs="+", metavar="NAME", help="only the parts whose names begin so")
    made.add_argument("--list", action="store_true", help="name the parts, and run none")
    made.add_argument(
        "--seconds", type=float, help=f"for all parts: {BUDGET:.0f} if not given, {QUICK_BUDGET:.0f} quick"
    )
    given = made.parse_args()
    given.emulated = given.emulated or os.environ.get("THESEUS_DEVICE") == "cuda-emu"
    given.seconds = given.seconds or (QUICK_BUDGET if given.quick else BUDGET)
    return given


def look(kind: str) -> dict[str, Any]:
    """What GPUs there are, asked in a process of its own; or {"missing": one sentence}."""
    command = [sys.executable, "-m", "benchmarks.gpu.look"]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=part_environment({"THESEUS_DEVICE": kind}),
            capture_output=True,
            text=True,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        return {"missing": "the CUDA driver did not answer in a minute"}
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        return {"missing": lines[-1]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def header(found: dict[str, Any], emulated: bool) -> list[str]:
    """What this ran on."""
    lines = [f"{in_words(describe())}."]
    kinds: dict[str, int] = {}
    for gpu in found["gpus"]:
        words = f"{gpu['name']} ({gpu['memory_bytes'] / 2**30:.0f} GiB, sm_{gpu['sm']})"
        kinds[words] = kinds.get(words, 0) + 1
    lines.append(f"GPUs: {', '.join(f'{count} x {words}' for words, count in kinds.items())}. {found['compiler']}")
    if emulated:
        lines.append("Emulated on the processor: this shows that the checks run, not how fast a GPU is.")
    return lines


def summary(rows: list[Row], seconds: float) -> str:
    """The last line."""
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in (GOOD, BAD, LEFT_OUT)}
    return f"{counts[GOOD]} ok, {counts[BAD]} failed, {counts[LEFT_OUT]} left out, in {seconds:.0f} s"


def main() -> int:
    """Run the parts and print the table."""
    given = arguments()
    kind = "cuda-emu" if given.emulated else "cuda"
    os.environ["THESEUS_DEVICE"] = kind
    found = look(kind)
    if "missing" in found:
        print(f"No GPU to check: {found['missing']} (--emulated runs the same on emulated ones.)")
        return 1 if given.check else 0
    plan = Plan(given.emulated, given.quick, len(found["gpus"]), ROOT / "build")
    wanted = tuple(given.parts) if given.parts else ("",)
    parts = [part for part in parts_of(plan) if part.name.startswith(wanted)]
    if given.list:
        print("\n".join(f"{part.name}: {part.seconds:.0f} s at most" for part in parts))
        return 0
    said = header(found, given.emulated)
    print("\n".join(said), flush=True)
    rows: list[Row] = []

    def on_start(part: Part, number: int) -> None:
        print(f"[{number + 1}/{len(parts)}] {part.name}", file=sys.stderr, flush=True)

    start = time.monotonic()
    run_parts(parts, given.seconds, rows.append, on_start)
    end = summary(rows, time.monotonic() - start)
    if given.out is not None:
        given.out.write_text("\n\n".join([*said, markdown(rows), end]) + "\n")
    write_json(given.json, {"machine": describe(), **found, "rows": [json.loads(row.to_line()) for row in rows]})
    print(text(rows))
    print(end)
    return 1 if given.check and any(row.verdict == BAD for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
