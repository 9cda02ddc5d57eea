"""Runs PyTorch's own distributed suite on the backend: run_foreign.py [--pattern REGEX] [--json FILE].

Not part of `make test`: the suite belongs to the installed torch, and takes minutes. docs/reference/pytorch-suite.md
holds the last results.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# This folder is called torch: it must not be found in PyTorch's place.
sys.path.remove(str(HERE))


# What is known of the cases that fail, for the page.
REASONS = {
    "any_source": "not supported, as with NCCL: a receive names its source (with two ranks it need not)",
    "sparse": "sparse tensors are refused; convert with to_dense()",
    "mixed_backend_err": "needs a torch that is built with NCCL",
    "op_err": "builds its tensors on a GPU",
    "logging_data": "compares the backend's name with gloo",
}


def list_tests() -> list[str]:
    program = f"import runpy, sys; runpy.run_path({str(HERE / 'cases_foreign.py')!r}, run_name='__main__')"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, cwd=HERE.anchor)
    return [line for line in done.stdout.splitlines() if line.startswith("test_")]


def make_pool(ranks: int) -> Any:
    import runpy

    os.environ["WORLD_SIZE"] = str(ranks)
    pool = runpy.run_path(str(HERE / "pool.py"))["Pool"](ranks)
    pool.run("cases_foreign", "case_load", timeout=300.0)
    return pool


def run_one(pool: Any, name: str, timeout: float) -> tuple[str, str]:
    """Return ("passed" | "skipped" | "failed", why)."""
    # Some of these lack the suite's own guard.
    if re.search("cuda|gpu|nccl", name):
        return "skipped", "CUDA is not available."
    with tempfile.TemporaryDirectory() as folder:
        for part in ("barrier", "test_dir", "init_dir"):
            (Path(folder) / part).mkdir()
        try:
            answers = pool.run_each(
                "cases_foreign", "case_run", [(name, folder, rank) for rank in range(pool.ranks)], timeout
            )
        except AssertionError as error:
            return "failed", str(error)
    reasons = [answer for answer in answers if answer]
    return ("skipped", reasons[0].removeprefix("skipped: ")) if reasons else ("passed", "")


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line) or "no answer" in line]
    return (errors or lines or [""])[0][:200]


def explain(name: str, error: str) -> str:
    """Return what is known of a failure, else its error."""
    return next((text for part, text in REASONS.items() if part in name), error)


def markdown(results: dict[str, dict[str, str]], ranks: int) -> str:
    """The page docs/reference/pytorch-suite.md."""
    import torch

    by_outcome: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    for name, result in results.items():
        by_outcome[result["outcome"]].append(name)
    verbs = ("pass", "fail", "do not apply")
    reasons: dict[str, list[str]] = {}
    for name in by_outcome["skipped"]:
        reasons.setdefault(results[name]["why"], []).append(name)
    lines = [
        "# PyTorch's own distributed suite on the backend",
        "",
        f"`DistributedTest` of torch {torch.__version__}, {ranks} ranks, CPU tensors. `tests/torch/run_foreign.py",
        "--markdown` writes this page. The suite picks its CPU cases by the name gloo, so it is told that it drives",
        "gloo and is given groups of ours. What it asks of the profiler's events is left out: torch's C++ backends",
        "mark theirs with a flag that Python cannot set.",
        "",
        "**"
        + ", ".join(f"{len(names)} {words}" for names, words in zip(by_outcome.values(), verbs, strict=True))
        + ".**",
        "",
        "## Fails",
        "",
        *(f"- `{name}`: {explain(name, results[name]['why'])}" for name in by_outcome["failed"]),
        "",
        "## Passes",
        "",
        ", ".join(f"`{name}`" for name in by_outcome["passed"]),
        "",
        "## Does not apply",
        "",
        "| why | tests |",
        "|---|---|",
        *(f"| {why} | {len(names)} |" for why, names in sorted(reasons.items(), key=lambda item: -len(item[1]))),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pattern", default="", help="only tests whose name matches")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one test")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--markdown", type=Path, help="write the page for the documentation there")
    options = parser.parse_args()
    results: dict[str, dict[str, str]] = {}
    pool: Any = None
    for name in [name for name in list_tests() if re.search(options.pattern, name)]:
        if pool is None:
            pool = make_pool(options.ranks)
        begun = time.monotonic()
        outcome, why = run_one(pool, name, options.timeout)
        results[name] = {"outcome": outcome, "why": last_line(why) if outcome == "failed" else why}
        print(f"{outcome:8} {time.monotonic() - begun:6.1f} s  {name}  {results[name]['why']}", flush=True)
        # A skip may have left some ranks inside the test; a failure always may have.
        if outcome == "failed":
            pool.close(kill=True)
            pool = None
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    if pool is not None:
        pool.close()
    if options.markdown:
        options.markdown.write_text(markdown(results, options.ranks))
    counts = {
        kind: sum(1 for each in results.values() if each["outcome"] == kind) for kind in ("passed", "failed", "skipped")
    }
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
