"""Reads nccl_api.def, the one table of functions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "csrc" / "nccl_api" / "nccl_api.def"

_ENTRY = re.compile(
    r"^NCCL_FUNCTION(?P<alone>_WITHOUT_TWIN)?\((?P<disposition>\w+), (?P<version>\d+), (?P<type>[^,]+), (?P<name>\w+),"
    r"\s*\((?P<parameters>[^()]*)\),\s*\((?P<arguments>[^()]*)\)\)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Function:
    """One entry of the table."""

    name: str
    disposition: str
    version: int
    return_type: str
    parameters: tuple[str, ...]
    arguments: tuple[str, ...]
    has_twin: bool


def read_table() -> list[Function]:
    """Return the entries in the table's order."""
    found = []
    for match in _ENTRY.finditer(TABLE.read_text()):
        parameters = tuple(part.strip() for part in " ".join(match["parameters"].split()).split(","))
        arguments = tuple(part.strip() for part in match["arguments"].split(",") if part.strip())
        found.append(
            Function(
                name=match["name"],
                disposition=match["disposition"],
                version=int(match["version"]),
                return_type=match["type"],
                parameters=() if parameters == ("void",) else parameters,
                arguments=arguments,
                has_twin=match["alone"] is None,
            )
        )
    return found
