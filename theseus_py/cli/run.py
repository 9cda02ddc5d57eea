"""`theseus run -- CMD`: runs a program that calls NCCL on Theseus instead."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from theseus_py import AGENT_COMMAND
from theseus_py.cli.console import Failure, out

_LIBRARY = "libnccl.so.2"


def register(app: typer.Typer) -> None:
    """Adds the command. Options after the program's name are the program's."""
    app.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(run)


def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments.", metavar="CMD...")],
    job: Annotated[str | None, typer.Option("--job", help="Name of the job (random).", metavar="NAME")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the settings and the command; run nothing.")
    ] = False,
) -> None:
    """Run a program with Theseus' libnccl.so.2 loaded before any other NCCL.

    The program may itself start others (torchrun, mpirun): they inherit the settings.
    """
    if shutil.which(command[0]) is None:
        raise Failure(f"cannot run '{command[0]}': no such program", exit_code=127)
    library = find_library()
    changes = settings_for(os.environ, library, job)
    if dry_run:
        out.print(" ".join([*(f"{name}={value}" for name, value in changes.items()), *command]), soft_wrap=True)
        return
    try:
        os.execvpe(command[0], command, {**os.environ, **changes})
    except OSError as error:
        raise Failure(f"cannot run '{command[0]}': {error.strerror}", exit_code=126) from error


def find_library() -> Path:
    """Our libnccl.so.2, as installed with the package. Failure where it was not built."""
    import theseus_py

    for folder in theseus_py.__path__:
        path = Path(folder) / "lib" / _LIBRARY
        if path.exists():
            return path
    raise Failure(f"{_LIBRARY} is not there: build it with `pip install .`, or `make build` in the sources")


def settings_for(environment: Mapping[str, str], library: Path, job: str | None) -> dict[str, str]:
    """The variables that change. Other preloaded libraries stay, behind ours; a job id or agent that is set, too."""
    others = [entry for entry in environment.get("LD_PRELOAD", "").replace(":", " ").split() if entry != str(library)]
    name = job or environment.get("THESEUS_JOB_ID") or f"job-{secrets.token_hex(4)}"
    changes = {"LD_PRELOAD": ":".join([str(library), *others]), "THESEUS_JOB_ID": name}
    return {**changes, "THESEUS_AGENT": environment.get("THESEUS_AGENT", AGENT_COMMAND)}
