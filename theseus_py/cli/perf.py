"""`theseus perf COLLECTIVE`: nccl-tests' measurements, flags and output."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from theseus_py.cli.console import Failure
from theseus_py.cli.names import collective_of

_SIZE = "SIZE"


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("perf")(perf)


def perf(  # lizard forgives: its parameters are the command's options
    collective: Annotated[
        str,
        typer.Argument(
            help="all_reduce, all_gather, reduce_scatter, broadcast, reduce, alltoall, gather, scatter, sendrecv..."
        ),
    ],
    ranks: Annotated[
        int | None, typer.Option("--ranks", "-g", "--ngpus", help="Processes to start here (2; with -t, 1).")
    ] = None,
    threads: Annotated[
        int, typer.Option("-t", "--nthreads", help="Ranks of each process, as threads; several may share a GPU.")
    ] = 1,
    hosts: Annotated[int, typer.Option("--hosts", help="Virtual hosts to spread them over; hosts talk by TCP.")] = 1,
    rails: Annotated[int, typer.Option("--rails", help="Network rails per virtual host.")] = 1,
    min_bytes: Annotated[
        str, typer.Option("-b", "--minbytes", help="Smallest size: 8, 64K, 1M.", metavar=_SIZE)
    ] = "32M",
    max_bytes: Annotated[
        str | None, typer.Option("-e", "--maxbytes", help="Largest size (32M).", metavar=_SIZE)
    ] = None,
    step_bytes: Annotated[str, typer.Option("-i", "--stepbytes", help="Step between sizes.", metavar=_SIZE)] = "1M",
    step_factor: Annotated[int, typer.Option("-f", "--stepfactor", help="Multiply sizes by this instead.")] = 1,
    iterations: Annotated[int, typer.Option("-n", "--iters", help="Timed iterations of each size.")] = 20,
    warmup: Annotated[int, typer.Option("-w", "--warmup_iters", help="Iterations before, not timed.")] = 5,
    check: Annotated[int, typer.Option("-c", "--check", help="Iterations whose data is checked; 0: none.")] = 1,
    operation: Annotated[str, typer.Option("-o", "--op", help="sum, prod, min, max, avg or all.")] = "sum",
    element_type: Annotated[
        str, typer.Option("-d", "--datatype", help="float, half, bfloat16, int32, f8e4m3... or all.")
    ] = "float",
    root: Annotated[str, typer.Option("-r", "--root", help="Root of a rooted collective, or all.")] = "0",
    json_file: Annotated[
        str | None, typer.Option("-J", "--json", help="Also write the results to this file.", metavar="FILE")
    ] = None,
) -> None:
    """Measure a collective and check its results, with nccl-tests' flags and output.

    Starts its own ranks on this machine; under torchrun, mpirun or srun each process is one of theirs. Buffers are
    host memory, or on GPUs where THESEUS_DEVICE says cuda or cuda-emu (emulated ones). Exits with 1 when any result is
    wrong.
    """
    from theseus_py.perf import launcher
    from theseus_py.perf.options import SweepOptions, parse_size

    smallest = parse_size(min_bytes)
    options = SweepOptions(
        collective=collective_of(collective),
        min_bytes=smallest,
        max_bytes=max(smallest, parse_size("32M")) if max_bytes is None else parse_size(max_bytes),
        step_bytes=parse_size(step_bytes),
        step_factor=step_factor,
        iterations=iterations,
        warmup=warmup,
        check=check,
        operation=operation,
        element_type=element_type,
        root=_root(root),
        threads=threads,
    )
    writing = launcher.JsonFile.create(json_file) if json_file is not None and launcher.is_first() else None
    try:
        wrong, data = launcher.run(options, ranks, hosts, rails, emit=_print_line)
        if writing is not None and data is not None:
            writing.write(json.dumps({"args": ["theseus", *sys.argv[1:]], **data}, indent=1))
            writing = None
    except launcher.LaunchFailed as error:
        raise Failure(str(error), error.details) from error
    finally:
        if writing is not None:
            writing.discard()
    if wrong:
        raise Failure(f"{wrong} elements were wrong: see the column #wrong")


def _print_line(line: str) -> None:
    print(line, flush=True)


def _root(text: str) -> int:
    if text == "all":
        return -1
    if not text.isdecimal():
        raise ValueError(f"'{text}' is no root (-r): give a rank, or all")
    return int(text)
