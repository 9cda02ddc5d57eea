"""What all benchmarks share: flags, tables, the JSON report, and how times and sizes are written."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the flags that every benchmark has: --quick, --json FILE and --check."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--quick", action="store_true", help="a coarse answer in under a minute")
    made.add_argument("--json", type=Path, metavar="FILE", help="also write every measurement to FILE")
    made.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    return made


def parse_size(text: str) -> int:
    """Bytes from "8", "64K", "1M" or "2G". Raises argparse.ArgumentTypeError on anything else."""
    factors = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number = text.upper().removesuffix("B").rstrip("KMG")
    unit = text.upper().removesuffix("B")[len(number) :]
    if not number.isdigit() or unit not in factors:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 8, 64K or 1M")
    return int(number) * factors[unit]


def format_size(size: int) -> str:
    """The shortest exact form: 8, 64K, 1M."""
    for factor, unit in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def format_time(seconds: float) -> str:
    """Three digits and a unit."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned by spaces: the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in (headers, *rows)) for column in range(len(headers))]

    def line(row: Sequence[str]) -> str:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        return "  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip()

    return "\n".join([line(headers), line(["-" * width for width in widths]), *(line(row) for row in rows)])


def write_json(path: Path | None, report: object) -> None:
    """Write a report, if a path was asked for."""
    if path is not None:
        path.write_text(json.dumps(report, indent=1) + "\n")


@dataclass(frozen=True)
class Result:
    """One measured value and what was asked of it: at most `target`, or at least, if `at_least`. Both in `unit`."""

    name: str
    value: float
    target: float
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the value is on the right side of the target."""
        return self.value >= self.target if self.at_least else self.value <= self.target

    def words(self) -> tuple[str, str]:
        """The value and the target as they are shown."""
        return f"{self.value:.3g} {self.unit}", f"{'>=' if self.at_least else '<='} {self.target:.3g} {self.unit}"


def missed(results: Sequence[Result]) -> list[str]:
    """One line for every target missed."""
    return [f"missed: {each.name}: {' where the target is '.join(each.words())}" for each in results if not each.met]


def finish(given: argparse.Namespace, machine: dict[str, object], results: Sequence[Result], **details: object) -> int:
    """Write the JSON, print what missed its target and then the table; the exit status."""
    rows = [[each.name, *each.words(), "met" if each.met else "missed"] for each in results]
    content = {"machine": machine, "results": [{**asdict(each), "met": each.met} for each in results], **details}
    write_json(given.json, content)
    for line in missed(results):
        print(line)
    print(table(["", "measured", "target", ""], rows))
    return 1 if given.check and missed(results) else 0
