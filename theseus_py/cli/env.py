"""`theseus env`: every setting, its value and where it comes from."""

from __future__ import annotations

from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from theseus_py.cli.console import core, err, out

_INTRODUCTION = """# Settings

Every environment variable that Theseus honours. A value comes from the environment, else from a settings file
(`NCCL_CONF_FILE` or `~/.nccl.conf`, then `/etc/nccl.conf`), else it is the default. A bad value gives a warning and the
default. This page is written by `theseus env --markdown`.
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("env")(env)


def env(
    markdown: Annotated[bool, typer.Option("--markdown", help="Write the page docs/reference/settings.md.")] = False,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that are not at their default.")] = False,
) -> None:
    """Show all settings: name, value, default, source, meaning."""
    settings = core().describe_settings()
    if markdown:
        print(_markdown(settings), end="")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("setting", "value", "default", "source", "meaning"):
        table.add_column(heading, overflow="fold")
    for name, value, default, source, documentation in settings:
        is_changed = source != "default"
        if changed and not is_changed:
            continue
        style = "bold" if is_changed else None
        table.add_row(*(escape(cell) for cell in (name, value, default, source, documentation)), style=style)
    out.print(table)
    for warning in core().settings_warnings():
        err.print(f"[yellow]warning:[/yellow] {escape(warning)}")


def _markdown(settings: list[tuple[str, str, str, str, str]]) -> str:
    def cell(text: str) -> str:
        return text.replace("|", "\\|")

    rows = [
        f"| `{name}` | {f'`{cell(default)}`' if default else ''} | {cell(documentation)} |"
        for name, _, default, _, documentation in settings
    ]
    return "\n".join([_INTRODUCTION, "| setting | default | meaning |", "|---|---|---|", *rows]) + "\n"
