"""`resccl simulate SOURCE`: how long a schedule takes on links of known speed, and what waits meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resccl.cli.console import CollectiveOption, RootOption, SetOption, TopologyOption, out, say, table_of

if TYPE_CHECKING:
    from resccl.plan import Plan
    from resccl.study import Level
    from resccl.topology import Topology

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# The order over micro-batches that belongs to each: HPDS lets a TB repeat one primitive (ResCCL, section 3.2).
_LOOPS = {"hpds": "sub_pipelines", "hpds_improved": "sub_pipelines", "round_robin": "sub_pipelines"}
_ALLOCATIONS = {"stage_level": "per_connection_and_stage", "algorithm_level": "per_connection"}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("simulate")(simulate)


def simulate(  # lizard forgives: its parameters are the command's options
    source: Annotated[
        str,
        typer.Argument(help="A plan, a schedule of another tool, or an algorithm as for compile.", metavar="SOURCE"),
    ],
    topology: TopologyOption,
    collective: CollectiveOption = None,
    root: RootOption = 0,
    settings: SetOption = None,
    size: Annotated[str, typer.Option("--bytes", "-b", help="Size of the data: 64K, 16M, 1G.", metavar="SIZE")] = "64M",
    schedulings: Annotated[
        list[str] | None,
        typer.Option("--scheduling", help="Of an algorithm; repeat to compare. Default: all but per_connection."),
    ] = None,
    local: Annotated[
        float, typer.Option("--local", help="GB/s of a GPU inside its host, each way.", min=0.001)
    ] = 300.0,
    network: Annotated[float, typer.Option("--network", help="GB/s of a NIC, each way.", min=0.001)] = 25.0,
) -> None:
    """Simulate a schedule: its time, how busy its links are, and how idle its thread blocks.

    An algorithm is compared under the paper's scheduling (hpds), ours (hpds_improved), round-robin, algorithm level
    and stage level.
    """
    from resccl.study import Hardware, simulate_level
    from resccl.study.simulate import chunks_of
    from resccl.topology import Topology

    where = Topology.parse(topology)
    number = bytes_of(size)
    hardware = Hardware(local_bandwidth=local * 1e9, network_bandwidth=network * 1e9)
    plans = _plans(source, where, collective, root, settings or [], schedulings)
    headings = ("time", "GB/s", "TBs", "NICs busy", "local busy", "TBs idle")
    table = table_of("scheduling", *headings, numbers=headings)
    for label, plan in plans:
        # Algorithm level ends each micro-batch before the next begins; the others go on as their plans let them.
        level: Level = "algorithm" if label == "algorithm_level" else "task"
        found = simulate_level(plan, level, where, number, hardware, chunks_of(plan.to_dict()))
        table.add_row(
            label,
            f"{found.seconds * 1e3:.3f} ms",
            f"{number / found.seconds / 1e9:.1f}" if found.seconds > 0 else "",
            str(plan.thread_blocks),
            f"{found.network_use:.0%}",
            f"{found.local_use:.0%}",
            f"{found.idle_share:.0%}",
        )
    say(f"{source}: {size}B over {where}; {local:g} GB/s inside a host, {network:g} GB/s a NIC")
    out.print(table)


def _plans(
    source: str,
    topology: Topology,
    collective: str | None,
    root: int,
    settings: list[str],
    schedulings: list[str] | None,
) -> Iterator[tuple[str, Plan]]:
    from resccl import compiler
    from resccl.cli.source import PLAN_FILES, load_algorithm, load_plan

    if Path(source).suffix in PLAN_FILES:
        yield "as given", load_plan(Path(source), topology).plan
        return
    algorithm = load_algorithm(source, topology, collective, root, settings)
    for scheduling in schedulings or ["hpds", "hpds_improved", "round_robin", "algorithm_level", "stage_level"]:
        yield (
            scheduling,
            compiler.compile(
                algorithm,
                topology,
                scheduling=scheduling,  # type: ignore[arg-type]
                allocation=_ALLOCATIONS.get(scheduling, "state_based"),  # type: ignore[arg-type]
                loop=_LOOPS.get(scheduling, "micro_batches"),  # type: ignore[arg-type]
                verify=False,
            ),
        )


def bytes_of(text: str) -> int:
    """Return the number that `64K`, `16M` or `1G` names."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not (number.isascii() and number.isdigit() and len(number) < 15) or unit not in _UNITS or int(number) == 0:
        raise ValueError(f"'{text}' is no size; 64K, 16M and 1G are")
    return int(number) * _UNITS[unit]
