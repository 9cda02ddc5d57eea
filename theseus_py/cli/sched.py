"""`theseus sched run FILE`: runs a schedule of anybody's on host memory, and checks its results.

The other commands of the group, about the schedules of a running job, are in `sched_job`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from theseus_py.cli import sched_job
from theseus_py.cli.console import Failure

if TYPE_CHECKING:
    from resccl import Plan, Topology
    from theseus_py.perf.plan_sweep import PlanOptions, PlanRow
    from theseus_py.spawn import Layout

_DEFAULT_BYTES = "4,1000,64K,1M,8M"
_DEFAULT_RANKS = 4
_COMPILE = {"hpds": "hpds", "none": "per_connection"}

app = typer.Typer(name="sched", help="Run schedules, and publish them to running jobs.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    """Adds the command group."""
    app.command("run")(run)
    app.command("add")(sched_job.add)
    app.command("remove")(sched_job.remove)
    app.command("list")(sched_job.list_)
    parent.add_typer(app)


@app.callback()
def _group() -> None:
    """Run schedules, and publish them to running jobs."""


def run(  # lizard forgives: its parameters are the command's options
    source: Annotated[
        str,
        typer.Argument(
            help="A plan file, MSCCL XML, MSCCL++ or TE-CCL JSON; FILE.py:function or MODULE:function of ResCCLang; "
            "a built-in algorithm.",
            metavar="FILE",
        ),
    ],
    ranks: Annotated[int | None, typer.Option("--ranks", help="Ranks to start (the file's, else 4).")] = None,
    hosts: Annotated[int, typer.Option("--hosts", help="Virtual hosts to spread them over; hosts talk by TCP.")] = 1,
    rails: Annotated[int, typer.Option("--rails", help="Network rails per virtual host.")] = 1,
    sizes: Annotated[
        str, typer.Option("--bytes", "-b", help="Sizes, comma-separated; each with a count that divides and the next.")
    ] = _DEFAULT_BYTES,
    element_type: Annotated[str, typer.Option("--dtype", "-d", help="float, half, bfloat16, int32, ...")] = "float",
    operation: Annotated[str, typer.Option("--op", "-o", help="sum, prod, min, max or avg.")] = "sum",
    in_place: Annotated[
        bool | None, typer.Option("--in-place/--out-of-place", help="Only this form (what the plan is right for).")
    ] = None,
    compilation: Annotated[
        str, typer.Option("--compile", help="How an algorithm becomes a plan: hpds, or none (a TB per connection).")
    ] = "hpds",
    collective: Annotated[
        str | None, typer.Option("--collective", help="Of a built-in algorithm: AllReduce, AllGather, ...")
    ] = None,
    iterations: Annotated[int, typer.Option("-n", "--iters", help="Timed iterations of each row.")] = 5,
) -> None:
    """Run a schedule on ranks of this machine, and check every result against NumPy.

    Exits with 1 when anything is wrong.
    """
    from theseus_py.perf.options import parse_size
    from theseus_py.perf.plan_sweep import FORMS, PlanOptions

    if compilation not in _COMPILE:
        raise ValueError(f"unknown --compile '{compilation}': choose hpds or none")
    options = PlanOptions(
        sizes=tuple(parse_size(size) for size in sizes.split(",")),
        element_type=element_type,
        operation=operation,
        forms=FORMS if in_place is None else (FORMS[int(in_place)],),
        iterations=iterations,
    )
    plan, layout = load_source(source, ranks, (hosts, rails), collective, _COMPILE[compilation])
    print(f"# {plan.collective} by '{plan.name}', at most {plan.thread_blocks} TBs a rank; {layout.describe()}")
    wrong = _run_and_show(plan, options, layout, chosen=in_place is not None)
    if wrong:
        first = wrong[0]
        raise Failure(
            f"{sum(row.timing.wrong or 0 for row in wrong)} elements were wrong, in {len(wrong)} rows: "
            f"first with a count of {first.count}, {first.form}"
        )
    print("# all results are right")


def _run_and_show(plan: Plan, options: PlanOptions, layout: Layout, chosen: bool) -> list[PlanRow]:
    """Prints rows as they come, and returns those with wrong elements."""
    from theseus_py.perf.launcher import LaunchFailed
    from theseus_py.perf.plan_worker import run_ranks

    wrong: list[PlanRow] = []

    def show(row: PlanRow) -> None:
        print(_line(row), flush=True)
        if row.timing.wrong:
            wrong.append(row)

    try:
        run_ranks(plan.to_bytes(), options, layout, chosen=chosen, on_start=_show_facts, on_row=show)
    except LaunchFailed as error:
        raise Failure(str(error), error.details) from error
    return wrong


def load_source(
    source: str, ranks: int | None, shape: tuple[int, int], collective: str | None, scheduling: str
) -> tuple[Plan, Layout]:
    """The plan that `source` stands for, and the ranks to run it. ValueError, Failure: what is wrong with it."""
    from resccl.cli.console import Failure as SourceFailure
    from resccl.cli.source import load_plan

    path = Path(source)
    is_program = path.suffix == ".py" or ":" in source or not path.exists()
    try:
        if is_program:
            layout, topology = _places(_DEFAULT_RANKS if ranks is None else ranks, shape)
            return _compile(source, topology, collective, scheduling), layout
        if path.is_dir():
            raise ValueError(f"{source} is a folder: give one file of it")
        # An algorithm of a file knows its ranks, and so does a plan; a plan does not mind the topology.
        plan = load_plan(path, None if ranks is None else _places(ranks, shape)[1]).plan
    except SourceFailure as failure:
        raise Failure(str(failure), exit_code=failure.exit_code) from failure
    if ranks is not None and ranks != plan.ranks:
        raise ValueError(f"{source} is for {plan.ranks} ranks, not {ranks}")
    return plan, _places(plan.ranks, shape)[0]


def _places(ranks: int, shape: tuple[int, int]) -> tuple[Layout, Topology]:
    from resccl import Topology
    from theseus_py.spawn import Layout

    layout = Layout(ranks, *shape)
    return layout, Topology(tuple(layout.host_of(rank) for rank in range(ranks)), layout.rails)


def _compile(source: str, topology: Topology, collective: str | None, scheduling: Any) -> Plan:
    from resccl import compile as compile_algorithm
    from resccl.cli.source import load_algorithm

    algorithm = load_algorithm(source, topology, collective)
    return compile_algorithm(algorithm, topology, scheduling=scheduling)


def _show_facts(facts: dict[str, Any]) -> None:
    if not (facts["in_place"] and facts["out_of_place"]):
        print(f"# the plan is right {'in' if facts['in_place'] else 'out of'} place only")
    if not facts["any_count"]:
        print(f"# counts that do not divide by {facts['chunks_per_block']} run on copies of the buffers")
    print(f"# {'size':>10}  {'count':>10}  {'form':>12}  {'time (us)':>10}  {'algbw':>7}  {'busbw':>7}  ok")


def _line(row: PlanRow) -> str:
    timing = row.timing
    state = "yes" if not timing.wrong else f"no: {timing.wrong} wrong"
    rates = f"{timing.algorithm_gbps:7.2f}  {timing.bus_gbps:7.2f}"
    return f"  {row.size:>10}  {row.count:>10}  {row.form:>12}  {timing.microseconds:>10.1f}  {rates}  {state}"
