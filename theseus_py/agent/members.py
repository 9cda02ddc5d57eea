"""Who takes part in a job: each host's agent, where it listens, and the secret that they share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from theseus_py.agent.channel import Address
from theseus_py.agent.replica import voters_of

__all__ = ["Members"]

_SHORTEST_SECRET = 16


@dataclass(frozen=True)
class Members:
    """The same on every host, in the same order: the first ones vote."""

    secret: bytes
    rows: tuple[tuple[str, str], ...]  # host, address

    @classmethod
    def of(cls, secret: bytes, rows: list[tuple[str, str]]) -> Members:
        """Returns them. ValueError: a secret that can be guessed, a host twice, an address that is none."""
        if len(secret) < _SHORTEST_SECRET:
            raise ValueError(f"a job's secret has at least {_SHORTEST_SECRET} bytes")
        if len({host for host, _ in rows}) != len(rows):
            raise ValueError("a host stands twice among the members")
        for _, address in rows:
            Address.parse(address)
        return cls(secret, tuple(rows))

    @classmethod
    def from_saved(cls, saved: Any) -> Members | None:
        """Returns what `to_save` gave; None for anything else."""
        try:
            return cls.of(bytes.fromhex(saved["secret"]), [(host, address) for host, address in saved["rows"]])
        except (TypeError, KeyError, ValueError):
            return None

    def to_save(self) -> dict[str, Any]:
        return {"secret": self.secret.hex(), "rows": self.rows}

    @cached_property
    def hosts(self) -> frozenset[str]:
        return frozenset(host for host, _ in self.rows)

    @cached_property
    def voters(self) -> list[str]:
        return voters_of([host for host, _ in self.rows])

    def address_of(self, host: str) -> str | None:
        return dict(self.rows).get(host)

    def to_dial(self, host: str) -> dict[str, Address]:
        """Returns whom a host's agent connects to: the voters that stand before it."""
        place = [each for each, _ in self.rows].index(host)
        before = {each for each, _ in self.rows[:place]}
        return {each: Address.parse(address) for each, address in self.rows if each in before and each in self.voters}
