"""`theseus testbed`: a cluster of network namespaces on this machine, and jobs that run in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from theseus_py.cli.console import Failure, out

if TYPE_CHECKING:
    from theseus_py.testbed import Testbed

app = typer.Typer(name="testbed", help="Clusters on this machine, with NICs that can be capped.", no_args_is_help=True)
Name = Annotated[str, typer.Option("--name", help="Which testbed, where several are up.", metavar="NAME")]


def register(parent: typer.Typer) -> None:
    """Adds the command group."""
    for command in (up, cap, status, down):
        app.command()(command)
    app.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(run)
    parent.add_typer(app)


@app.callback()
def _group() -> None:
    """Clusters on this machine, as network namespaces: as root, or where users may make namespaces."""


def up(
    hosts: Annotated[int, typer.Option("--hosts", help="Hosts.")] = 4,
    nics: Annotated[int, typer.Option("--nics", help="NICs of each host; all of one number share a switch.")] = 4,
    rate: Annotated[
        str, typer.Option("--rate", help="Of each NIC and direction: 200mbit, 1gbit; none for no limit.")
    ] = "200mbit",
    priorities: Annotated[
        bool, typer.Option("--priorities", help="Serve packets in strict order of their DSCP, CS7 first.")
    ] = False,
    leaves: Annotated[int, typer.Option("--leaves", help="Leaf switches that hosts are dealt to.")] = 1,
    spines: Annotated[int, typer.Option("--spines", help="Spine switches between several leaves.")] = 1,
    trunk: Annotated[str, typer.Option("--trunk", help="Rate of each link between leaf and spine.")] = "none",
    name: Name = "default",
) -> None:
    """Make a testbed. It stays until `theseus testbed down`, and then leaves nothing."""
    from theseus_py.testbed import Shape, Testbed, parse_rate

    shape = Shape(hosts, nics, parse_rate(rate), priorities, leaves, spines, parse_rate(trunk))
    with _opened(lambda: Testbed.up(name, shape)):
        out.print(f"testbed '{name}' is up: {shape.describe()}")


def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments.", metavar="CMD...")],
    hosts: Annotated[str | None, typer.Option("--hosts", help="Only on these: 0,2-3 (all).", metavar="HOSTS")] = None,
    ranks_per_host: Annotated[int, typer.Option("--ranks-per-host", "-L", help="Ranks on each host.")] = 1,
    name: Name = "default",
) -> None:
    """Run one job: a rank on each host, with torchrun's variables set, and its output with the rank in front.

    The first rank that fails ends all, and so does Ctrl-C.
    """
    with _attach(name) as bed:
        chosen = None if hosts is None else _numbers(hosts)
        bed.launch(command, hosts=chosen, ranks_per_host=ranks_per_host).wait()


def cap(
    host: Annotated[int, typer.Argument(help="The host's number, from 0.")],
    nic: Annotated[str, typer.Argument(help="The NIC: 2 or eth2.")],
    fraction: Annotated[float, typer.Argument(help="Of its rate, from 0 to 1.")],
    direction: Annotated[str, typer.Option("--direction", help="both, out (of the host) or in.")] = "both",
    name: Name = "default",
) -> None:
    """Cap a NIC from now on, while jobs run: 1 heals it, 0 stops it."""
    number = nic.removeprefix("eth")
    if not number.isdigit():
        raise ValueError(f"'{nic}' is no NIC: write 2 or eth2")
    with _attach(name) as bed:
        bed.cap(host, int(number), fraction, direction)


def status(name: Name = "default") -> None:
    """Show what is up: its shape, what runs, and the NICs that are capped."""
    with _attach(name) as bed:
        found = bed.status()
        out.print(f"testbed '{name}': {bed.shape.describe()}; {found['processes']} processes; keeper {found['pid']}")
        for line in _cap_lines(found):
            out.print(line)


def down(name: Name = "default") -> None:
    """Take a testbed down, with everything that runs in it."""
    with _attach(name) as bed:
        bed.down()
    out.print(f"testbed '{name}' is down")


def _attach(name: str) -> AbstractContextManager[Testbed]:
    from theseus_py.testbed import Testbed

    return _opened(lambda: Testbed.attach(name))


@contextmanager
def _opened(open_testbed: Callable[[], Testbed]) -> Iterator[Testbed]:
    """The testbed for the time of a `with`; its errors, and those of its jobs, end the command in one sentence."""
    from theseus_py.testbed import JobFailed, TestbedError

    try:
        with open_testbed() as bed:
            yield bed
    except (TestbedError, JobFailed) as error:
        raise Failure(str(error)) from error


def _numbers(text: str) -> list[int]:
    """Host numbers of "0,2-3"."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise ValueError(f"'{text}' names no hosts: write 0,2-3")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers


def _cap_lines(found: dict[str, Any]) -> list[str]:
    """One line for each NIC that is not at its full rate."""
    return [
        f"host {host} eth{nic}: {outward:g} of its rate out, {inward:g} in"
        for host, nics in enumerate(found["caps"])
        for nic, (outward, inward) in enumerate(nics)
        if (outward, inward) != (1, 1)
    ]
