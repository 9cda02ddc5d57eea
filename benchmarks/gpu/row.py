"""One line of the table, and how it travels from a part's process to the one that prints."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

GOOD, BAD, LEFT_OUT = "ok", "failed", "left out"


@dataclass(frozen=True)
class Row:
    """What one check found. `against` compares it with something; `note` says why it failed or was left out."""

    part: str
    what: str
    verdict: str = GOOD
    measured: str = ""
    against: str = ""
    note: str = ""
    values: dict[str, Any] = field(default_factory=dict)  # for the JSON

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_line(line: str) -> Row:
        return Row(**json.loads(line))

    def cells(self) -> list[str]:
        """As the table shows it."""
        verdict = self.verdict if not self.note else f"{self.verdict}: {self.note}"
        return [self.part, self.what, self.measured, self.against, verdict]


HEADERS = ["part", "what", "measured", "against", "verdict"]


def text(rows: list[Row]) -> str:
    """The table for a terminal; the last column may be long."""
    cells = [HEADERS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADERS) - 1)]
    cells.insert(1, ["-" * width for width in (*widths, len(HEADERS[-1]))])
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]) for line in cells
    )


def markdown(rows: list[Row]) -> str:
    """The table for a page of the docs."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return "\n".join([line(HEADERS), line(["---"] * len(HEADERS)), *(line(row.cells()) for row in rows)])


def shorten(text: str, length: int = 160) -> str:
    """The first sentence or line of a long message."""
    first = text.strip().splitlines()[0] if text.strip() else "no message"
    return first if len(first) <= length else first[: length - 1] + "…"
