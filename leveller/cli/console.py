"""Where the commands print, and how they fail."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

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
    err.print(f"[bold red]leveller:[/bold red] {escape(message)}")


def table_of(*headings: str, numbers: Sequence[str] = ()) -> Table:
    """An empty table; the columns named in `numbers` stand to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", overflow="fold")
    return table


def say(text: str) -> None:
    """Prints a line as it is: nothing in it is markup, and it is not wrapped."""
    out.print(text, markup=False, soft_wrap=True)
