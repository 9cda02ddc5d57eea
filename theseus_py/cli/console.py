"""Where the commands print, and how they fail."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

from rich.console import Console
from rich.markup import escape

out = Console(highlight=False)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class Failure(Exception):
    """Ends a command with one sentence for the user. `details` are lines that explain it, printed before."""

    def __init__(self, message: str, details: Sequence[str] = (), exit_code: int = 1) -> None:
        super().__init__(message)
        self.details = list(details)
        self.exit_code = exit_code


def complain(message: str, details: Sequence[str] = ()) -> None:
    """Prints an error as every command does: details dimmed, then one line that starts with the program's name."""
    sys.stdout.flush()
    for line in details:
        err.print(f"[dim]  | {escape(line)}[/dim]")
    err.print(f"[bold red]theseus:[/bold red] {escape(message)}")


def core() -> ModuleType:
    """The native extension. Failure says how to get it where it is not built."""
    try:
        return importlib.import_module("theseus_py._core")
    except ImportError as error:
        raise Failure(f"the native library cannot be loaded ({error}); build it: pip install .") from error
