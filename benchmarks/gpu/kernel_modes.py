"""Kernels that are made for one plan against the one that interprets any; and what compute-sanitizer says."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence

from benchmarks.gpu.collectives import cases_of, words_of
from benchmarks.gpu.row import BAD, GOOD, LEFT_OUT, Row, shorten
from benchmarks.gpu.runner import Part, command_of, part_environment, run_part
from benchmarks.gpu.world import Buffers, OurWorld
from benchmarks.harness.report import format_size
from theseus_py import _core, device


def measure_mode(collectives: Sequence[str], sizes: Sequence[int], ranks: int, patience: float) -> Iterator[Row]:
    """As THESEUS_KERNELS says: each case once, until its kernels are there, then timed."""
    room = int(device.describe(0).memory_bytes * 0.5)
    driver = device.driver()
    for collective in collectives:
        world = OurWorld([0] * ranks)
        cases = cases_of(collective, sizes, ranks, room)
        buffers = Buffers(world, cases)
        for case in cases:
            buffers.launch(case)
            buffers.settle()
            start = time.perf_counter()
            kernels = _core.settle_kernels(driver, 0)
            waited = time.perf_counter() - start
            seconds = buffers.seconds(case, patience)
            wrong = buffers.wrong(case)
            values = {"bytes": case.bytes, "seconds": seconds, "wrong": wrong, "waited": waited, **kernels}
            what = f"{collective} {format_size(case.bytes)}"
            yield Row("kernels", what, BAD if wrong else GOOD, words_of(seconds, case), values=values)
        world.close()


def generated_against_interpreted(
    collectives: Sequence[str], sizes: Sequence[int], ranks: int, patience: float, seconds: float
) -> Iterator[Row]:
    """Both modes, each in a process of its own, as the setting is read once a process."""
    arguments = {"collectives": collectives, "sizes": sizes, "ranks": ranks, "patience": patience}
    found: dict[str, dict[str, Row]] = {}
    for mode in ("interpreted", "generated"):
        rows: list[Row] = []
        part = Part(
            "kernels", "benchmarks.gpu.kernel_modes", "measure_mode", seconds, arguments, {"THESEUS_KERNELS": mode}
        )
        run_part(part, seconds, rows.append)
        yield from (Row(f"{mode} kernels", row.what, row.verdict, note=row.note) for row in rows if row.verdict == BAD)
        found[mode] = {row.what: row for row in rows if row.verdict == GOOD}
    made = 0
    for what, row in found["generated"].items():
        made = max(made, int(row.values["generated"]))
        other = found["interpreted"].get(what)
        if other is None:
            continue
        ratio = other.values["seconds"] / row.values["seconds"]
        values = {"generated": row.values, "interpreted": other.values, "ratio": ratio}
        against = f"{ratio:.2f} times interpreted ({other.measured.split(',')[0]})"
        yield Row("generated kernels", what, GOOD, row.measured, against, values=values)
    if found["generated"] and made == 0:
        yield Row("generated kernels", "making them", BAD, note="none was made: the log says why (NCCL_DEBUG=WARN)")


def sanitizer() -> str | None:
    """compute-sanitizer's path, where one is installed."""
    roots = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [f"{root}/bin" for root in (*roots, "/usr/local/cuda") if root]
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join(places))


def sanitize(tools: Sequence[str], collectives: Sequence[str], ranks: int, seconds: float) -> Iterator[Row]:
    """Small collectives under compute-sanitizer."""
    program = sanitizer()
    if program is None:
        note = "compute-sanitizer is not installed: CUDA's toolkit has it"
        yield Row("sanitizer", ", ".join(tools), LEFT_OUT, note=note)
        return
    arguments = {"ranks": ranks, "sizes": [8, 1 << 16], "patience": 0.0}
    for tool in tools:
        for collective in collectives:
            part = Part(
                "sanitizer", "benchmarks.gpu.collectives", "one_gpu", seconds, {**arguments, "collective": collective}
            )
            command = [program, "--tool", tool, "--error-exitcode", "9", *command_of(part)]
            yield _sanitized(f"{tool}: {collective}", command, seconds)


def _sanitized(what: str, command: list[str], seconds: float) -> Row:
    try:
        done = subprocess.run(
            command, env=part_environment({}), capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return Row("sanitizer", what, LEFT_OUT, note=f"not done after {seconds:.0f} s")
    said = (done.stdout + done.stderr).splitlines()
    summary = [line.split("SUMMARY:")[1].strip() for line in said if "SUMMARY:" in line]
    wrong = [row for row in said if row.startswith("{") and Row.from_line(row).verdict == BAD]
    if done.returncode == 0 and not wrong:
        return Row("sanitizer", what, GOOD, summary[-1] if summary else "")
    first = [line.strip("= ") for line in said if line.startswith("=========") and "Error" in line]
    note = Row.from_line(wrong[0]).note if wrong else (first or summary or [f"exit code {done.returncode}"])[0]
    return Row("sanitizer", what, BAD, summary[-1] if summary else "", note=shorten(note))
