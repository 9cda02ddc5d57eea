"""`leveller agent`: one a host."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Annotated

import typer

from leveller.cli.console import say
from leveller.cli.options import ControllerOption, SecretOption, address_of, run_until_stopped


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("agent")(agent)


def agent(
    controller: ControllerOption,
    secret: SecretOption = None,
    host: Annotated[str, typer.Option(help="This host's name; default: the system's.")] = "",
    jobs: Annotated[Path | None, typer.Option(help="What is known of jobs (TOML).", metavar="FILE")] = None,
    topology: Annotated[Path | None, typer.Option(help="Paths between networks (TOML).", metavar="FILE")] = None,
    probe: Annotated[bool, typer.Option(help="Find paths by probing, where no file says them.")] = True,
    window: Annotated[float, typer.Option(help="Seconds that R looks back; 0: the job's whole life.", min=0.0)] = 0.0,
    scan: Annotated[float, typer.Option(help="Seconds between looks for jobs and flows.", min=0.05)] = 0.5,
    fallback: Annotated[
        float, typer.Option(help="Seconds without a controller after which marks are taken away.", min=0.0)
    ] = 300.0,
    mark: Annotated[bool, typer.Option(help="Mark flows; else report only.")] = True,
) -> None:
    """Say how this host's jobs do, and mark their flows as the controller says."""
    from leveller.agent.agent import Agent, AgentOptions
    from leveller.agent.config import read_config
    from leveller.channel import read_secret
    from leveller.enforce import Refusing, best_enforcer
    from leveller.probe import ProbedPaths, TopologyFile

    logging.basicConfig(format="leveller agent: %(message)s", level=logging.INFO)
    options = AgentOptions(host or socket.gethostname(), address_of(controller), scan, fallback, window or None)
    key, config = read_secret(secret), read_config(jobs)
    paths = TopologyFile(topology) if topology is not None else ProbedPaths() if probe else None
    enforcer = best_enforcer() if mark else Refusing("the agent was started with --no-mark")

    async def work() -> None:
        made = Agent(options, key, config, paths, enforcer)
        say(f"host {options.host}, controller {options.controller[0]}:{options.controller[1]}")
        try:
            await made.run()
        finally:
            made.close()
            if isinstance(paths, ProbedPaths):
                paths.close()

    run_until_stopped(work())
