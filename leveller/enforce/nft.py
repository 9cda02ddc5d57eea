"""DSCP marks by nftables: one verdict map of five-tuples, one chain a mark, in a table that is ours alone.

The table has the flag `owner`: nobody else can change it, and the kernel removes it with our socket, after kill -9
too.
Only the six bits of the DSCP are written, so ECN goes on working. Live connections are marked from the next packet on.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping

from leveller.core.model import FiveTuple
from leveller.enforce.effective import Effective
from leveller.enforce.nftables import Nftables, NftError

__all__ = ["NftEnforcer", "NftError", "element", "ruleset"]

TABLE = "leveller"
_PROTOCOLS = ("tcp", "udp")


def ruleset(dscps: Iterable[int]) -> str:
    """Returns the commands that make the table, with a chain for each of `dscps` and address family."""
    chains = "\n".join(
        f"  chain ip_{dscp} {{ ip dscp set {dscp}; }}\n  chain ip6_{dscp} {{ ip6 dscp set {dscp}; }}" for dscp in dscps
    )
    maps = "\n".join(
        f"  map {protocol}_{family} {{ type {family}_addr . inet_service . {family}_addr . inet_service : verdict; }}"
        for protocol in _PROTOCOLS
        for family in ("ipv4", "ipv6")
    )
    rules = "\n".join(
        f"    {head} saddr . {protocol} sport . {head} daddr . {protocol} dport vmap @{protocol}_{family}"
        for protocol in _PROTOCOLS
        for head, family in (("ip", "ipv4"), ("ip6", "ipv6"))
    )
    return (
        f"table inet {TABLE} {{\n  flags owner;\n{maps}\n{chains}\n"
        f"  chain outgoing {{\n    type filter hook postrouting priority mangle; policy accept;\n{rules}\n  }}\n}}\n"
    )


def element(flow: FiveTuple) -> tuple[str, str]:
    """Returns the map that a flow belongs into, and its key there. ValueError: it is no flow of TCP or UDP over IP."""
    source, destination = ipaddress.ip_address(flow.source), ipaddress.ip_address(flow.destination)
    if flow.protocol not in _PROTOCOLS or source.version != destination.version:
        raise ValueError(f"{flow} is no flow of TCP or UDP")
    for port in (flow.source_port, flow.destination_port):
        if not 0 < port < 65536:
            raise ValueError(f"{flow}: {port} is no port")
    key = f"{source} . {flow.source_port} . {destination} . {flow.destination_port}"
    return f"{flow.protocol}_ipv{source.version}", key


class NftEnforcer:
    """Marks flows by five-tuple. One a network namespace; NftError where there is one already, or none can be."""

    def __init__(self, dscps: Iterable[int] = range(64)) -> None:
        self._nft = Nftables()
        self._marked: dict[FiveTuple, int] = {}
        try:
            if re.search(rf"^table inet {TABLE}$", self._nft.run("list tables"), re.MULTILINE):
                self._replace_leftover()
            self._nft.run(ruleset(dscps))
        except NftError as error:
            self._nft.close()
            raise NftError(f"flows of other libraries cannot be marked: {error}") from None

    def _replace_leftover(self) -> None:
        """A table without owner is what a kernel without that flag left of a crash; one with an owner is somebody's."""
        try:
            self._nft.run(f"delete table inet {TABLE}")
        except NftError:
            raise NftError("another agent marks flows in this network namespace; stop it first") from None

    def apply(self, marks: Mapping[FiveTuple, int]) -> Mapping[FiveTuple, Effective]:
        """Makes `marks` (DSCP by flow) all that is marked, in one transaction. What cannot be is refused alone."""
        wanted: dict[FiveTuple, int] = {}
        found: dict[FiveTuple, Effective] = {}
        for flow, dscp in marks.items():
            try:
                element(flow)
                wanted[flow] = dscp
            except ValueError as error:
                found[flow] = Effective(dscp, None, str(error))
        try:
            self._change(wanted)
        except NftError as error:
            return {flow: Effective(dscp, self._marked.get(flow), str(error)) for flow, dscp in marks.items()}
        return {**found, **{flow: Effective(dscp, dscp) for flow, dscp in wanted.items()}}

    def _change(self, wanted: dict[FiveTuple, int]) -> None:
        removed = [flow for flow, dscp in self._marked.items() if wanted.get(flow) != dscp]
        added = [flow for flow, dscp in wanted.items() if self._marked.get(flow) != dscp]
        commands = [*_elements("delete", removed, None), *_elements("add", added, wanted)]
        if commands:
            self._nft.run("\n".join(commands))
        self._marked = wanted

    def marked(self) -> dict[tuple[str, str], int]:
        """Returns what the kernel has: (map, key) to DSCP. For tests and the doubtful; `apply` does not need it."""
        found = {}
        for name in (f"{protocol}_ipv{version}" for protocol in _PROTOCOLS for version in (4, 6)):
            listed = self._nft.run(f"list map inet {TABLE} {name}")
            for key, dscp in re.findall(r"([\w.:]+ \. \w+ \. [\w.:]+ \. \w+) : jump ip6?_(\d+)", listed):
                found[name, key] = int(dscp)
        return found

    def close(self) -> None:
        """Takes the table away."""
        self._nft.close()
        self._marked = {}


def _elements(command: str, flows: Iterable[FiveTuple], wanted: Mapping[FiveTuple, int] | None) -> list[str]:
    by_map: dict[str, list[str]] = {}
    for flow in flows:
        name, key = element(flow)
        chain = "ip6" if name.endswith("6") else "ip"
        by_map.setdefault(name, []).append(key if wanted is None else f"{key} : jump {chain}_{wanted[flow]}")
    return [f"{command} element inet {TABLE} {name} {{ {', '.join(keys)} }}" for name, keys in by_map.items()]
