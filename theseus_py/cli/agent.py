"""`theseus agent`: the node's agent in the foreground."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from theseus_py.cli.console import Failure, core, err


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("agent")(agent)


def agent(
    job: Annotated[str, typer.Option("--job", help="Name of the job (THESEUS_JOB_ID).", metavar="NAME")] = "",
    host: Annotated[str, typer.Option("--host", help="Name of this host, as its ranks have it.", metavar="NAME")] = "",
    port: Annotated[int, typer.Option("--port", help="Where other agents reach this one (0: any port).")] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the state folder at the end.")] = False,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", help="Serve Prometheus there (THESEUS_METRICS_PORT).")
    ] = None,
) -> None:
    """Run the node's agent of a job, until Ctrl-C.

    Ranks start one by themselves; this is for looking at it, or for programs that set no THESEUS_AGENT.
    """
    import logging

    from theseus_py.agent.main import Options, run
    from theseus_py.agent.server import bind
    from theseus_py.agent.wire import socket_name

    job = job or os.environ.get("THESEUS_JOB_ID", "")
    if not job:
        raise Failure("which job? say --job NAME, or set THESEUS_JOB_ID", exit_code=2)
    host = host or core().host_identity()
    probe = bind(socket_name(job, host))
    if probe is None:
        raise Failure(f"job '{job}' has an agent on host {host} already; see: theseus status")
    probe.close()
    logging.basicConfig(format="theseus agent: %(message)s", level=logging.INFO)
    logging.getLogger("pysyncobj").setLevel(logging.WARNING)
    err.print(f"agent of job '{job}' on host {host}; Ctrl-C ends it")
    if run(Options(job, host, port, keep, stay=True, metrics_port=metrics_port)) != 0:
        raise Failure("the agent could not run")
