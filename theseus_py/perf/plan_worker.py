"""One rank of `theseus sched run`: loads the plan, sweeps, and reports; and the parent's side that starts the ranks."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from theseus_py import launch
from theseus_py.perf.launcher import LaunchFailed
from theseus_py.perf.plan_sweep import PlanOptions, PlanRow, forms_of, run_plan_sweep
from theseus_py.perf.report import Timing
from theseus_py.perf.worker import gpu_of
from theseus_py.spawn import Layout, RankFailed, Report, die_with_parent, end_with, python_command, report, spawn


def run_ranks(
    plan: bytes,
    options: PlanOptions,
    layout: Layout,
    *,
    chosen: bool,
    on_start: Callable[[dict[str, Any]], None],
    on_row: Callable[[PlanRow], None],
) -> None:
    """Run the plan on ranks of its own. `chosen`: the user asked for these forms, so that all must be possible.

    `on_start` gets what the ranks found out about the plan, `on_row` each row. LaunchFailed: a rank failed.
    """

    def on_report(rank: int, message: Report) -> None:
        if rank == 0 and message["kind"] == "start":
            on_start(message["plan"])
        elif rank == 0 and message["kind"] == "row":
            row = message["row"]
            on_row(PlanRow(**{**row, "timing": Timing(**row["timing"])}))

    with tempfile.TemporaryDirectory(prefix="theseus-") as folder:
        file = Path(folder) / "schedule.plan"
        file.write_bytes(plan)
        values = json.dumps({"file": str(file), "chosen": chosen, "options": options.to_dict()})
        try:
            spawn(python_command("theseus_py.perf.plan_worker", values), layout, on_report=on_report)
        except RankFailed as failure:
            raise LaunchFailed(str(failure), failure.output) from failure


def run_rank(file: Path, options: PlanOptions, chosen: bool) -> None:
    """Join the launch's ranks, load the plan, and sweep."""
    from theseus_py.communicator import Communicator
    from theseus_py.perf.endpoint import CommunicatorEndpoint

    gpu = gpu_of(launch.discover(os.environ).local_rank)
    with Communicator.from_env(name="theseus sched", device=gpu) as communicator:
        plan = communicator.load_plan(file.read_bytes())
        forms = forms_of(options.forms, plan.in_place, plan.out_of_place, chosen)
        endpoint = CommunicatorEndpoint(communicator, plan)
        collective = plan.collective.name.replace("_", "")
        if endpoint.rank == 0:
            facts = ("name", "root", "chunks_per_block", "in_place", "out_of_place", "any_count")
            report("start", plan={fact: getattr(plan, fact) for fact in facts})
        for row in run_plan_sweep(options, endpoint, collective, plan.root, plan.chunks_per_block, forms):
            if endpoint.rank == 0:
                report("row", row=dataclasses.asdict(row))


def main() -> None:
    """Entry point of a spawned rank."""
    die_with_parent()
    try:
        values = json.loads(sys.argv[1])
        run_rank(Path(values["file"]), PlanOptions.from_dict(values["options"]), values["chosen"])
    except Exception as error:
        end_with(error)
