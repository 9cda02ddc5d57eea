"""`leveller controller`: one a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from leveller.cli.console import Failure, say
from leveller.cli.options import PORT, SecretOption, address_of, run_until_stopped

POLICIES = ("lowest-rate-first", "crux", "fair")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("controller")(controller)


def controller(
    secret: SecretOption = None,
    listen: Annotated[str, typer.Option(help="Where to listen.", metavar="HOST:PORT")] = f"0.0.0.0:{PORT}",
    policy: Annotated[str, typer.Option(help=f"One of {', '.join(POLICIES)}.")] = POLICIES[0],
    levels: Annotated[int, typer.Option(help="Levels that the network's queues tell apart.", min=1, max=6)] = 6,
    period: Annotated[float, typer.Option(help="Seconds between rankings (tau).", min=0.0)] = 10.0,
    ask_every: Annotated[float, typer.Option(help="Seconds between questions to the agents.", min=0.05)] = 1.0,
    profile: Annotated[bool, typer.Option(help="Let new jobs run alone at the top for their ideal time.")] = True,
    profile_iterations: Annotated[int, typer.Option(help="Iterations of a profile.", min=2)] = 5,
    profile_interval: Annotated[float, typer.Option(help="Seconds to a job's next profile, about.", min=1.0)] = 600,
    metrics_port: Annotated[int, typer.Option(help="Figures for Prometheus on this port; 0: none.")] = 0,
) -> None:
    """Give every flow a level, by how its job does."""
    from leveller.channel import read_secret
    from leveller.controller.server import ControllerServer
    from leveller.controller.state import ControllerState
    from leveller.core.baselines.crux import Crux
    from leveller.core.baselines.fair import FairShare
    from leveller.core.lazy import Lazy
    from leveller.core.levels import LowestRateFirst
    from leveller.core.model import LevelPolicy
    from leveller.core.profiling import Profiler

    if policy not in POLICIES:
        raise Failure(f"unknown policy '{policy}': choose {', '.join(POLICIES)}", exit_code=2)
    policies: dict[str, LevelPolicy] = {
        "lowest-rate-first": LowestRateFirst(levels),
        "crux": Crux(levels),
        "fair": FairShare(),
    }
    profiler = Profiler(profile_iterations, profile_interval, seed=None) if profile else None
    server = ControllerServer(ControllerState(Lazy(policies[policy], period), profiler), read_secret(secret), ask_every)

    async def work() -> None:
        port = await server.listen(*address_of(listen))
        say(f"listening at port {port}; policy {policy}, {levels} levels, tau {period:g} s")
        if metrics_port:
            from leveller.controller.metrics import publish

            publish(server, metrics_port)
        try:
            await server.run()
        finally:
            await server.close()

    run_until_stopped(work())
