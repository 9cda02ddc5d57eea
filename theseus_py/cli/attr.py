"""`theseus attr`: the attributes that policies read."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from theseus_py.cli.console import Failure, out
from theseus_py.cli.jobs import JobOption, agent_of

_MOST_SHOWN = 16

app = typer.Typer(name="attr", help="Attributes of a running job.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    """Adds the command group."""
    app.command("new")(new)
    app.command("set")(set_)
    app.command("list")(list_)
    parent.add_typer(app)


@app.callback()
def _group() -> None:
    """Attributes of a running job."""


def new(
    name: Annotated[str, typer.Argument(help="Name: letters, digits, . _ - :", metavar="NAME")],
    length: Annotated[int, typer.Option("--length", help="1: a number; more: an array.")] = 1,
    initial: Annotated[float, typer.Option("--initial", help="Value to begin with.")] = 0.0,
    hook: Annotated[
        str,
        typer.Option("--hook", help="exogenous, requests, agreements, seconds, smooth, hysteresis or dwell."),
    ] = "exogenous",
    source: Annotated[str, typer.Option("--source", help="Attribute that smooth, hysteresis and dwell follow.")] = "",
    first: Annotated[float, typer.Option("--first", help="Weight (smooth), low mark (hysteresis), s (dwell).")] = 0.0,
    second: Annotated[float, typer.Option("--second", help="High mark (hysteresis).")] = 0.0,
    job: JobOption = "",
) -> None:
    """Define an attribute."""
    fields = {"kind": "attribute", "name": name, "length": length, "initial": initial, "hook": hook}
    with agent_of(job) as agent:
        agent.append({**fields, "source": source, "first": first, "second": second})
    out.print(f"attribute '{name}' is defined")


def set_(
    name: Annotated[str, typer.Argument(help="The attribute.", metavar="NAME")],
    values: Annotated[list[str], typer.Argument(help="VALUE, or INDEX=VALUE for elements.", metavar="VALUE...")],
    job: JobOption = "",
) -> None:
    """Set an exogenous attribute, or elements of one. One that nobody defined becomes a number (or array) first."""
    elements = [parse_element(position, text) for position, text in enumerate(values)]
    with agent_of(job) as agent:
        known = {attribute["name"] for attribute in agent.status()["attributes"]}
        if name not in known:
            agent.append({"kind": "attribute", "name": name, "length": max(index for index, _ in elements) + 1})
        agent.append({"kind": "update", "name": name, "elements": elements})
    out.print(f"{name} = {', '.join(values)}")


def parse_element(position: int, text: str) -> tuple[int, float]:
    """Reads "0.5" as the element at its position, "3=0.5" as element 3. Failure: neither."""
    index, separator, value = text.rpartition("=")
    try:
        return (int(index) if separator else position, float(value))
    except ValueError:
        raise Failure(f"'{text}' is no value: say a number, or INDEX=NUMBER", exit_code=2) from None


def list_(job: JobOption = "") -> None:
    """List attributes with their newest values."""
    with agent_of(job) as agent:
        out.print(table_of(agent.status()["attributes"]))


def table_of(attributes: list[dict[str, Any]]) -> Table:
    """Attributes as a table."""
    table = Table("id", "name", "hook", "version", "value")
    for each in attributes:
        follows = f" of {each['source']}" if each["source"] else ""
        value = value_of(each["values"]) if each["hook"] == "exogenous" else "each communicator's own"
        table.add_row(str(each["id"]), each["name"], each["hook"] + follows, str(each["version"]), value)
    return table


def value_of(values: list[float]) -> str:
    """A number, or an array with its middle left out where it is long."""
    texts = [f"{value:g}" for value in values]
    if len(texts) == 1:
        return texts[0]
    if len(texts) > _MOST_SHOWN:
        texts = [*texts[:8], f"... {len(texts) - 12} more ...", *texts[-4:]]
    return f"[{', '.join(texts)}]".replace("[", "\\[", 1)
