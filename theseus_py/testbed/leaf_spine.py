"""Leaves and spines: network namespaces that route, and the trunks between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyroute2 import IPRoute

from theseus_py.testbed import kernel
from theseus_py.testbed.shape import Shape

__all__ = ["Switch", "build", "trunks"]

_SETTINGS = {
    "ip_forward": "1",
    "conf/all/rp_filter": "0",
    "conf/default/rp_filter": "0",
    # Which way a flow goes follows from addresses, protocol and ports. Policy 1 would take the hash that travels with a
    # packet inside one machine, which is the sending socket's own, and random.
    "fib_multipath_hash_policy": "3",
    "fib_multipath_hash_fields": "55",
    # Probes that die here are answered, all of them, and by the interface they came in at.
    "icmp_ratelimit": "0",
    "icmp_ratemask": "0",
    "icmp_errors_use_inbound_ifaddr": "1",
}


@dataclass(frozen=True)
class Switch:
    """A namespace with switch ports, and what changes it."""

    namespace: int
    route: IPRoute


def build(shape: Shape, fabric: int) -> tuple[list[Switch], list[Switch]]:
    """Makes leaves and spines, joined by trunks, with routes between all leaves. The caller is in `fabric`, and stays.

    A leaf spreads flows over all spines. Raises what pyroute2 raises.
    """
    leaves = [_router(fabric) for _ in range(shape.leaves)]
    spines = [_router(fabric) for _ in range(shape.spines)]
    for number, leaf in enumerate(leaves):
        for above, spine in enumerate(spines):
            _join(shape, number, leaf, above, spine)
    for number, leaf in enumerate(leaves):
        for other in range(shape.leaves):
            if other != number:
                _spread(shape, leaf, number, other)
    return leaves, spines


def trunks(shape: Shape, leaves: list[Switch], spines: list[Switch]) -> Iterator[tuple[IPRoute, int]]:
    """Returns both ends of every trunk: what changes it, and its index there."""
    for number, leaf in enumerate(leaves):
        for above, spine in enumerate(spines):
            yield leaf.route, leaf.route.link_lookup(ifname=f"spine{above}")[0]
            yield spine.route, spine.route.link_lookup(ifname=f"leaf{number}")[0]


def _router(fabric: int) -> Switch:
    namespace = kernel.enter_own_network()
    try:
        route = IPRoute()
        route.link("set", index=route.link_lookup(ifname="lo")[0], state="up")
        for name, value in _SETTINGS.items():
            with suppress(OSError):
                Path("/proc/sys/net/ipv4", name).write_text(value)
    finally:
        kernel.enter(fabric)
    return Switch(namespace, route)


def _join(shape: Shape, number: int, leaf: Switch, above: int, spine: Switch) -> None:
    names = f"spine{above}", f"leaf{number}"
    leaf.route.link("add", ifname=names[0], kind="veth", peer={"ifname": names[1], "net_ns_fd": spine.namespace})
    for switch, name, address in zip((leaf, spine), names, shape.trunk_addresses(number, above), strict=True):
        index = switch.route.link_lookup(ifname=name)[0]
        switch.route.addr("add", index=index, address=address, prefixlen=30)
        switch.route.link("set", index=index, state="up")
    at_leaf, _ = shape.trunk_addresses(number, above)
    for nic in range(shape.nics):
        spine.route.route("add", dst=shape.leaf_network(number, nic), gateway=at_leaf)


def _spread(shape: Shape, leaf: Switch, number: int, other: int) -> None:
    ways = [{"gateway": shape.trunk_addresses(number, above)[1], "hops": 0} for above in range(shape.spines)]
    for nic in range(shape.nics):
        leaf.route.route("add", dst=shape.leaf_network(other, nic), multipath=ways)
