"""Options that several commands have, and connecting to the controller."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from leveller.channel import Refused, connect, read_secret
from leveller.cli.console import Failure
from leveller.wire import VERSION, Answer, Hello, Query

PORT = 7400

SecretOption = Annotated[
    Path | None,
    typer.Option("--secret", help="File with the cluster's secret; default: LEVELLER_SECRET.", metavar="FILE"),
]
ControllerOption = Annotated[
    str, typer.Option("--controller", "-c", help="Where the controller is.", metavar="HOST[:PORT]")
]


def address_of(text: str) -> tuple[str, int]:
    """Returns host and port of "host", "host:port" or "[::1]:port". ValueError: it is none."""
    host, _, port = text.rpartition(":")
    if not host or (host.count(":") and not host.startswith("[")):
        host, port = text, str(PORT)
    if not port.isdigit() or not 0 <= int(port) < 65536:
        raise ValueError(f"'{text}' is no address: write HOST or HOST:PORT")
    return host.strip("[]"), int(port)


async def ask(controller: str, secret: Path | None, subject: str, job: str = "") -> dict[str, Any]:
    """Asks the controller. Failure says what went wrong."""
    host, port = address_of(controller)
    try:
        channel = await connect(host, port, read_secret(secret))
        try:
            channel.send(Hello(VERSION))
            channel.send(Query(subject, job))
            answer = await asyncio.wait_for(channel.receive(), 10)
        finally:
            channel.close()
    except (OSError, Refused, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
        raise Failure(f"no answer from a controller at {host}:{port}: {error}") from None
    if not isinstance(answer, Answer):
        raise Failure("the controller gave no answer")
    found: dict[str, Any] = json.loads(answer.body)
    if "error" in found:
        raise Failure(str(found["error"]))
    return found


def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Runs until the work ends, or SIGTERM or Ctrl-C come: then it is cancelled and may clean up."""

    async def main() -> None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
