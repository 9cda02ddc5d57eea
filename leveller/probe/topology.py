"""Paths from a file, where probing is refused or the network always goes one way."""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path
from typing import Annotated, Protocol

import msgspec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from leveller.core.model import FiveTuple

__all__ = ["Paths", "TopologyFile"]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_MOST_BYTES = 4 << 20


class Paths(Protocol):
    """Whoever knows paths."""

    def path_of(self, flow: FiveTuple) -> tuple[str, ...]:
        """Returns the directed links that a flow crosses, by name; nothing where that is not known (yet)."""
        ...


class _Entry(msgspec.Struct, rename={"source": "from", "destination": "to"}, forbid_unknown_fields=True):
    source: str
    destination: str
    links: Annotated[list[Annotated[str, msgspec.Meta(min_length=1, max_length=128)]], msgspec.Meta(max_length=64)]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    path: list[_Entry]


class TopologyFile:
    """A TOML file of paths between networks; the most particular pair that holds both addresses decides.

        [[path]]
        from = "10.0.1.0/24"
        to = "10.0.2.0/24"
        links = ["leaf1>spine0", "spine0>leaf2"]

    Links that several paths name alike are one link. ValueError names what is wrong in the file.
    """

    def __init__(self, file: Path) -> None:
        data = file.read_bytes()
        if len(data) > _MOST_BYTES:
            raise ValueError(f"{file} has more than {_MOST_BYTES >> 20} MiB")
        try:
            entries = msgspec.convert(tomllib.loads(data.decode()), _File).path
            self._paths = [
                (ipaddress.ip_network(each.source), ipaddress.ip_network(each.destination), tuple(each.links))
                for each in entries
            ]
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
        self._paths.sort(key=lambda each: -(each[0].prefixlen + each[1].prefixlen))

    def path_of(self, flow: FiveTuple) -> tuple[str, ...]:
        source, destination = ipaddress.ip_address(flow.source), ipaddress.ip_address(flow.destination)
        for one, other, links in self._paths:
            if source in one and destination in other:
                return links
        return ()
