"""The command `leveller`. One file a command; this one puts them together and turns errors into one sentence."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

import typer

from leveller.cli import agent, controller, explain, simulate, status
from leveller.cli.console import Failure, complain

#: Modules of this folder with a function register(app).
COMMANDS: tuple[ModuleType, ...] = (controller, agent, status, explain, simulate)

app = typer.Typer(
    name="leveller",
    help="Jobs that share a network make equal progress: controller, agents, what they do and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in COMMANDS:
    command.register(app)


@app.callback()
def _about() -> None:
    """Jobs that share a network make equal progress: controller, agents, what they do and why."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits: 0 done, 1 it failed, 2 it was asked for something impossible, 130 interrupted."""
    sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


def _run(arguments: list[str]) -> int:
    try:
        code = app(args=arguments, prog_name="leveller", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except Failure as failure:
        complain(str(failure), failure.details)
        return failure.exit_code
    except (ValueError, OSError) as error:
        complain(_sentence(error))
        return 2
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted")
        return 130
    except Exception as error:
        # What the option parser raises; typer keeps its own copy of those classes, in a place that moves.
        if hasattr(error, "format_message"):
            message = error.format_message().strip()
            if not message:  # `leveller` alone: the help has been printed
                return 2
            complain(f"{message.rstrip('.')}; see: leveller {_command_of(arguments)}--help")
            return 2
        complain(f"{type(error).__name__}: {error}")
        return 1


def _sentence(error: ValueError | OSError) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _command_of(arguments: Sequence[str]) -> str:
    names = {command.name for command in app.registered_commands}
    return f"{arguments[0]} " if arguments and arguments[0] in names else ""
