"""What a testbed looks like: how many hosts and NICs, their names, addresses and speed. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_HOSTS = 250
MOST_NICS = 32
MOST_LEAVES = 32
MOST_SPINES = 32
# No number of a NIC's network: 10.77.255.x is the management network's.
_MANAGEMENT = 255
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


@dataclass(frozen=True)
class Traffic:
    """Bytes that crossed one NIC since the bed was made, headers included, as its switch port counts them."""

    sent: int
    received: int


@dataclass(frozen=True)
class Shape:
    """Hosts with `nics` NICs each. `rate` in bit/s of each NIC and direction, None for no limit.

    `priorities`: NICs and switch ports serve packets in strict order of the upper three bits of their DSCP (CS7 first).
    `leaves`: above 1, hosts are dealt to so many leaf switches (host modulo leaves), which route over `spines` spine
    switches, each flow over one; `trunk`: bit/s of each link between leaf and spine and direction.
    """

    hosts: int = 4
    nics: int = 4
    rate: float | None = 200e6
    priorities: bool = False
    leaves: int = 1
    spines: int = 1
    trunk: float | None = None

    def __post_init__(self) -> None:
        for name, value, top in (("hosts", self.hosts, MOST_HOSTS), ("nics", self.nics, MOST_NICS)):
            if not 1 <= value <= top:
                raise ValueError(f"{name} must be between 1 and {top}, not {value}")
        for name, value, top in (("leaves", self.leaves, MOST_LEAVES), ("spines", self.spines, MOST_SPINES)):
            if not 1 <= value <= top:
                raise ValueError(f"{name} must be between 1 and {top}, not {value}")
        for name, rate in (("rate", self.rate), ("trunk", self.trunk)):
            if rate is not None and not 1e4 <= rate <= 1e12:
                raise ValueError(f"{name} must be between 10 kbit and 1 tbit a second, not {rate:g}")
        if self.leaves == 1 and (self.spines > 1 or self.trunk is not None):
            raise ValueError("one switch has no spines and no trunk: ask for two leaves at least")

    def check(self, host: int, nic: int) -> None:
        """Raises ValueError where there is no such NIC."""
        if not 0 <= host < self.hosts:
            raise ValueError(f"there is no host {host}: hosts are 0 to {self.hosts - 1}")
        if not 0 <= nic < self.nics:
            raise ValueError(f"there is no NIC {nic}: NICs are 0 to {self.nics - 1}")

    def interfaces(self) -> list[str]:
        """Returns the names of a host's NICs."""
        return [f"eth{nic}" for nic in range(self.nics)]

    def address(self, host: int, nic: int) -> str:
        """Returns the IPv4 address of a NIC; NICs of one number at one leaf share a /24."""
        return f"10.{77 + self.leaf(host) + (self.leaves > 1)}.{nic}.{host + 1}"

    def leaf(self, host: int) -> int:
        """Returns the leaf that a host is at."""
        return host % self.leaves

    def leaf_address(self, leaf: int, nic: int) -> str:
        """Returns the address of a leaf among the NICs of one number."""
        return f"10.{78 + leaf}.{nic}.254"

    def leaf_network(self, leaf: int, nic: int) -> str:
        """Returns the network of the NICs of one number at a leaf."""
        return f"10.{78 + leaf}.{nic}.0/24"

    def trunk_addresses(self, leaf: int, spine: int) -> tuple[str, str]:
        """Returns the addresses of the link between a leaf and a spine, the leaf's first."""
        return f"10.76.{spine}.{4 * leaf + 1}", f"10.76.{spine}.{4 * leaf + 2}"

    def hardware_address(self, host: int, nic: int) -> str:
        """Returns a NIC's MAC address."""
        return f"02:77:00:00:{nic:02x}:{host + 1:02x}"

    def management_address(self, host: int) -> str:
        """Returns a host's address on the management network."""
        return f"10.77.{_MANAGEMENT}.{host + 1}"

    def describe(self) -> str:
        """Returns one line for people."""
        rate = "no limit" if self.rate is None else format_rate(self.rate)
        order = ", strict priorities" if self.priorities else ""
        if self.leaves > 1:
            trunk = "no limit" if self.trunk is None else format_rate(self.trunk)
            order += f", {self.leaves} leaves and {self.spines} spine{'s' * (self.spines > 1)} with trunks of {trunk}"
        return f"{self.hosts} host{'s' * (self.hosts > 1)} x {self.nics} NIC{'s' * (self.nics > 1)} of {rate}{order}"


def parse_rate(text: str) -> float | None:
    """Returns bit/s of "200mbit", "1Gbit", "2.5gbit" or "25MB" (bytes); None of "none". Raises ValueError."""
    if text.strip().lower() in ("none", "0"):
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kmgt]?)(bits?|bps|b)?(?:/s|ps)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"'{text}' is no rate: write 200mbit, 1gbit, 25MB (bytes), or none")
    bits = 8.0 if match[3] == "B" else 1.0
    return float(match[1]) * _UNITS[match[2].lower()] * bits


def format_rate(rate: float) -> str:
    """Returns a rate in bit/s as people write it: 200 Mbit/s."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= factor:
            return f"{rate / factor:g} {unit}bit/s"
    return f"{rate:g} bit/s"
