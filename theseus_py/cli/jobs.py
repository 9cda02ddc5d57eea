"""Options and errors that the commands about a running job share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from theseus_py.cli.console import Failure

if TYPE_CHECKING:
    from theseus_py.agent.client import AgentConnection

JobOption = Annotated[
    str, typer.Option("--job", help="Name of the job (THESEUS_JOB_ID, or the only one that runs).", metavar="NAME")
]


@contextlib.contextmanager
def agent_of(job: str) -> Iterator[AgentConnection]:
    """A connection to an agent of the job. Failure: there is none, or several jobs, or it refused something."""
    from theseus_py.agent.client import connect
    from theseus_py.errors import TheseusError

    try:
        with connect(job or os.environ.get("THESEUS_JOB_ID", "")) as agent:
            yield agent
    except TheseusError as error:
        raise Failure(error.message) from error
