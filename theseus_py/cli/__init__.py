"""The command `theseus`. One file a command; this one puts them together and turns errors into one sentence."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from theseus_py.cli import agent, attr, demo, env, explain, info, perf, run, sched, status, testbed, top
from theseus_py.cli.console import Failure, complain

app = typer.Typer(
    name="theseus",
    help="Collective communication for clusters, GPUs and laptops: a drop-in for NCCL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, perf, run, sched, attr, status, top, agent, testbed, info, env, explain):
    command.register(app)


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from theseus_py import __version__

        print(f"theseus {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits: 0 done, 1 it failed, 2 it was asked for something impossible, 130 interrupted."""
    sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


def _run(arguments: list[str]) -> int:
    try:
        code = app(args=arguments, prog_name="theseus", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except Failure as failure:
        complain(str(failure), failure.details)
        return failure.exit_code
    except ValueError as error:
        complain(str(error))
        return 2
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted")
        return 130
    except BrokenPipeError:  # `theseus env | head`: nobody reads on
        sys.stderr.close()
        return 1
    except Exception as error:
        # What the option parser raises; typer keeps its own copy of those classes, in a place that moves.
        if hasattr(error, "format_message"):
            message = error.format_message().strip()
            if not message:  # `theseus` alone: the help has been printed
                return 2
            complain(f"{message.rstrip('.')}; see: theseus {_command_of(arguments)}--help")
            return 2
        complain(f"{type(error).__name__}: {error}")
        return 1


def _command_of(arguments: Sequence[str]) -> str:
    names = {command.name for command in app.registered_commands}
    names |= {group.typer_instance.info.name for group in app.registered_groups if group.typer_instance is not None}
    return f"{arguments[0]} " if arguments and arguments[0] in names else ""
