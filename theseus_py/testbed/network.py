"""The links of a testbed: veth pairs, a bridge a rail, and the queues that give every NIC its speed.

The shapes of the queues come from measurements. Token buckets (tbf) take back any speed at once, also from near 0,
where htb would pay off debts first. A burst of 128 KiB holds the largest packet the kernel hands down, which a smaller
one would have to cut up at ten times the work. Queues count bytes, since a packet may have 64 KB.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.tcmsg import plugins

from theseus_py.testbed import kernel, leaf_spine
from theseus_py.testbed.errors import TestbedError
from theseus_py.testbed.leaf_spine import Switch
from theseus_py.testbed.shape import Shape, Traffic

_ROOT = 0x10000  # 1:
_BANDS = 0x20000  # 2:
_BAND_COUNT = 8
_FIRST_BAND = 0x10
_BURST_BYTES = 128 << 10
_BURST_SECONDS = 0.002
_QUEUE_BYTES = 1_000_000
_QUEUE_SECONDS = 0.01
# What a NIC capped at 0 still passes, in bytes a second: tbf knows no 0, and this is one packet in a minute.
_STANDSTILL = 1000
_IPV4 = 0x0800
DIRECTIONS = ("both", "out", "in")

# pyroute2 knows pfifo alone of the two, which the kernel tells about in one format.
plugins.setdefault("bfifo", plugins["pfifo"])


class Network:
    """Builds the links at once, and changes them. Every namespace lives as long as this object's descriptors.

    To be made in a network namespace of its own, which becomes the fabric with all switches. Raises TestbedError.
    """

    def __init__(self, shape: Shape, fabric: int) -> None:
        self.shape = shape
        self._fabric = fabric
        self.hosts: list[int] = []
        self._routes: list[IPRoute] = []
        # (host, nic) -> index of the interface in the host, index of the switch port
        self._ends: dict[tuple[int, int], tuple[int, int]] = {}
        self._caps: dict[tuple[int, int], list[float]] = {}
        self._route = IPRoute()
        # Where hosts are plugged in: the leaves, or the fabric's own switches.
        self._leaves = [Switch(fabric, self._route)]
        self._spines: list[Switch] = []
        try:
            self._build()
        except (NetlinkError, OSError) as error:
            raise TestbedError(f"the network cannot be set up: {error}") from error

    def cap(self, host: int, nic: int, fraction: float, direction: str = "both") -> None:
        """Sets what a NIC gives of its speed, from 0 to 1, out of its host, into it, or both. Works on live traffic.

        Raises ValueError for what is not there.
        """
        self.shape.check(host, nic)
        if self.shape.rate is None:
            raise ValueError("NICs without a rate cannot be capped: make the testbed with one")
        if not 0 <= fraction <= 1:
            raise ValueError(f"a fraction is from 0 to 1, not {fraction:g}")
        if direction not in DIRECTIONS:
            raise ValueError(f"unknown direction '{direction}': choose both, out or in")
        inner, outer = self._ends[host, nic]
        caps = self._caps[host, nic]
        if direction in ("both", "out"):
            self._set_rate(self._routes[host], "change", inner, fraction)
            caps[0] = fraction
        if direction in ("both", "in"):
            self._set_rate(self._port(host), "change", outer, fraction)
            caps[1] = fraction

    def caps(self) -> list[list[list[float]]]:
        """Returns for each host and NIC the fractions out and in."""
        nics = range(self.shape.nics)
        return [[self._caps[host, nic] for nic in nics] for host in range(self.shape.hosts)]

    def traffic(self) -> list[list[Traffic]]:
        """Returns for each host and NIC what crossed it."""
        counters = [_counters(leaf.route) for leaf in self._leaves]
        nics = range(self.shape.nics)
        return [
            [counters[self.shape.leaf(host)][self._ends[host, nic][1]] for nic in nics]
            for host in range(self.shape.hosts)
        ]

    def _port(self, host: int) -> IPRoute:
        """What changes the switch ports of a host."""
        return self._leaves[self.shape.leaf(host)].route

    def _build(self) -> None:
        self._up(self._route, "lo")
        if self.shape.leaves > 1:
            self._leaves, self._spines = leaf_spine.build(self.shape, self._fabric)
            for route, index in leaf_spine.trunks(self.shape, self._leaves, self._spines):
                self._limit(route, index, self.shape.trunk)
        switches = [self._switches(leaf, number) for number, leaf in enumerate(self._leaves)]
        management = self._switch(self._route, "mgmt")
        for host in range(self.shape.hosts):
            namespace = kernel.enter_own_network()
            self.hosts.append(namespace)
            self._routes.append(IPRoute())
            self._tune()
            kernel.enter(self._fabric)
            self._up(self._routes[host], "lo")
            for nic, switch in enumerate(switches[self.shape.leaf(host)]):
                self._plug(host, nic, switch)
            self._plug_management(host, management)
        for host, nic in itertools.product(range(self.shape.hosts), range(self.shape.nics)):
            self._know_neighbours(host, nic)

    def _tune(self) -> None:
        """Settings of a host's network. Best effort: containers may show /proc/sys read-only."""
        for name, values in (
            # Link-local addresses answer nobody here, and programs would try them.
            ("ipv6/conf/all/disable_ipv6", ("1",)),
            ("ipv6/conf/default/disable_ipv6", ("1",)),
            # bbr, where it is the default, reads a shaper's bursts as bandwidth and overruns its queue.
            ("ipv4/tcp_congestion_control", ("cubic", "reno")),
            # Collectives pause; the path does not change meanwhile.
            ("ipv4/tcp_slow_start_after_idle", ("0",)),
            # What one connection learned on a capped NIC must not slow the next one.
            ("ipv4/tcp_no_metrics_save", ("1",)),
        ):
            for value in values:
                with suppress(OSError):
                    Path("/proc/sys/net", name).write_text(value)
                    break

    def _switches(self, leaf: Switch, number: int) -> list[int]:
        """A bridge a rail at one leaf, which routes from there where there are several."""
        found = []
        for nic in range(self.shape.nics):
            found.append(self._switch(leaf.route, f"tor{nic}"))
            if self.shape.leaves > 1:
                leaf.route.addr("add", index=found[-1], address=self.shape.leaf_address(number, nic), prefixlen=24)
        return found

    def _switch(self, route: IPRoute, name: str) -> int:
        route.link("add", ifname=name, kind="bridge", br_forward_delay=0, br_mcast_snooping=0)
        return self._up(route, name)

    def _up(self, route: IPRoute, name: str) -> int:
        index: int = route.link_lookup(ifname=name)[0]
        route.link("set", index=index, state="up")
        return index

    def _cable(
        self, ports: IPRoute, host: int, inner: str, outer: str, switch: int, hardware: str | None
    ) -> tuple[int, int]:
        """A veth pair from host to switch; returns the indices of its ends."""
        peer: dict[str, Any] = {"ifname": inner, "net_ns_fd": self.hosts[host]}
        if hardware is not None:
            peer["address"] = hardware
        ports.link("add", ifname=outer, kind="veth", peer=peer)
        port = ports.link_lookup(ifname=outer)[0]
        ports.link("set", index=port, master=switch, state="up")
        return self._up(self._routes[host], inner), port

    def _plug(self, host: int, nic: int, switch: int) -> None:
        hardware = self.shape.hardware_address(host, nic)
        name = self.shape.interfaces()[nic]
        ports = self._port(host)
        inner, outer = self._cable(ports, host, name, f"h{host}n{nic}", switch, hardware)
        self._routes[host].addr("add", index=inner, address=self.shape.address(host, nic), prefixlen=24)
        self._ends[host, nic] = (inner, outer)
        self._caps[host, nic] = [1.0, 1.0]
        for leaf in range(self.shape.leaves):
            if leaf != self.shape.leaf(host):
                gateway = self.shape.leaf_address(self.shape.leaf(host), nic)
                self._routes[host].route("add", dst=self.shape.leaf_network(leaf, nic), gateway=gateway)
        for route, index in ((self._routes[host], inner), (ports, outer)):
            self._limit(route, index, self.shape.rate)

    def _limit(self, route: IPRoute, index: int, rate: float | None) -> None:
        if rate is not None:
            self._set_rate(route, "add", index, 1.0, rate)
            if self.shape.priorities:
                self._add_bands(route, index)

    def _plug_management(self, host: int, switch: int) -> None:
        inner, _ = self._cable(self._route, host, "mgmt0", f"h{host}mgmt", switch, None)
        self._routes[host].addr("add", index=inner, address=self.shape.management_address(host), prefixlen=24)

    def _know_neighbours(self, host: int, nic: int) -> None:
        """Address resolution would wait in the same queues, and a NIC at 0 would look unplugged instead of slow."""
        for other in range(self.shape.hosts):
            if other != host and self.shape.leaf(other) == self.shape.leaf(host):
                self._routes[host].neigh(
                    "add",
                    dst=self.shape.address(other, nic),
                    lladdr=self.shape.hardware_address(other, nic),
                    ifindex=self._ends[host, nic][0],
                    state="permanent",
                )

    def _set_rate(self, route: IPRoute, command: str, index: int, fraction: float, rate: float | None = None) -> None:
        full = (rate or self.shape.rate or 0.0) / 8
        route.tc(
            command,
            "tbf",
            index,
            handle=_ROOT,
            rate=max(_STANDSTILL, round(full * fraction)),
            burst=max(_BURST_BYTES, round(full * _BURST_SECONDS)),
            limit=max(_QUEUE_BYTES, round(full * _QUEUE_SECONDS)),
        )

    def _add_bands(self, route: IPRoute, index: int) -> None:
        """Strict priority below the token bucket: classes that are never out of tokens, served in order of `prio`.

        The default is the first band, so that nothing that is not IP starves. Acknowledgements without data go first
        too: the other direction's flows must not starve with this one's.
        """
        route.tc("add", "htb", index, handle=_BANDS, parent=_ROOT | 1, default=_FIRST_BAND)
        for band in range(_BAND_COUNT):
            target = _BANDS | (_FIRST_BAND + band)
            route.tc("add-class", "htb", index, handle=target, parent=_BANDS, rate="10gbit", prio=band, quantum=60000)
            queue = (0x20 + band) << 16
            route.tc("add", "bfifo", index, handle=queue, parent=target, limit=_QUEUE_BYTES)
            code = (_BAND_COUNT - 1 - band) << 5
            self._add_filter(route, index, 10 + band, target, [f"{code:#04x}/0xe0+1"])
        bare_acknowledgement = ["0x06/0xff+9", "0x05/0x0f+0", "0x0000/0xff80+2", "0x10/0xff+33"]
        self._add_filter(route, index, 5, _BANDS | _FIRST_BAND, bare_acknowledgement)

    def _add_filter(self, route: IPRoute, index: int, order: int, target: int, keys: list[str]) -> None:
        route.tc("add-filter", "u32", index, parent=_BANDS, prio=order, protocol=_IPV4, target=target, keys=keys)

    def close(self) -> None:
        """Gives the namespaces up. The kernel takes them away when no process is left in them."""
        for route in self._all_routes():
            route.close()
        for namespace in self.hosts:
            os.close(namespace)
        for switch in (*self._leaves, *self._spines):
            if switch.namespace != self._fabric:
                os.close(switch.namespace)

    def _all_routes(self) -> Iterator[IPRoute]:
        yield from self._routes
        yield self._route
        yield from (each.route for each in (*self._leaves, *self._spines) if each.route is not self._route)


def _counters(route: IPRoute) -> dict[int, Traffic]:
    found = {}
    for link in route.get_links():
        stats = link.get("stats64") or {}
        found[link["index"]] = Traffic(sent=stats.get("rx_bytes", 0), received=stats.get("tx_bytes", 0))
    return found
