"""Two leaves, some spines between them and a host at each leaf: namespaces that route, and live flows over them.

As a program: `leaf_spine.py SPINES FLOWS` says as JSON what the path probe found and what the counters say.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from leveller.core.model import FiveTuple
from leveller.probe import Limits, ProbedPaths
from theseus_py.testbed import kernel

_PORT = 5201
_FORWARDING = {
    "ip_forward": "1",
    # The one policy whose hash a veth's peer computes as for packets from a wire: the field of the socket's own random
    # hash, which others take, travels with a packet inside one machine. The fields: addresses, protocol, ports.
    "fib_multipath_hash_policy": "3",
    "fib_multipath_hash_fields": "55",
    "icmp_ratelimit": "0",
    "icmp_errors_use_inbound_ifaddr": "1",
}


class Node:
    """A network namespace."""

    def __init__(self, back: int) -> None:
        self._back = back
        self.namespace = kernel.enter_own_network()
        self.route = IPRoute()
        self.up("lo")
        self.set("ipv4/conf/all/rp_filter", "0")
        self.set("ipv4/conf/default/rp_filter", "0")
        kernel.enter(back)

    def set(self, name: str, value: str) -> None:
        with suppress(OSError):
            Path("/proc/sys/net", name).write_text(value)

    def forward(self) -> None:
        with kernel.inside(self.namespace, self._back):
            for name, value in _FORWARDING.items():
                self.set(f"ipv4/{name}", value)
            self.set("ipv6/conf/all/forwarding", "1")
            self.set("ipv6/icmp/ratelimit", "0")

    def index(self, name: str) -> int:
        return int(self.route.link_lookup(ifname=name)[0])

    def up(self, name: str) -> None:
        self.route.link("set", index=self.index(name), state="up")

    def down(self, name: str) -> None:
        self.route.link("set", index=self.index(name), state="down")

    def address(self, name: str, *addresses: str) -> None:
        for each in addresses:
            text, length = each.split("/")
            more: dict[str, Any] = {"flags": 2} if ":" in text else {}  # no duplicate address detection
            self.route.addr("add", index=self.index(name), address=text, prefixlen=int(length), **more)

    def sent(self, name: str) -> int:
        return int(self.route.get_links(self.index(name))[0].get("stats64")["tx_bytes"])


def cable(one: Node, one_name: str, other: Node, other_name: str) -> None:
    one.route.link("add", ifname=one_name, kind="veth", peer={"ifname": other_name, "net_ns_fd": other.namespace})
    one.up(one_name)
    other.up(other_name)


class Fabric:
    """Host i has 10.0.i.2 and fd00:i::2 behind leaf i; spine s has 10.1.s.2 to leaf 0 and 10.1.s.6 to leaf 1."""

    def __init__(self, spines: int) -> None:
        self.back = kernel.enter_own_network()
        self.hosts = [Node(self.back) for _ in range(2)]
        self.leaves = [Node(self.back) for _ in range(2)]
        self.spines = [Node(self.back) for _ in range(spines)]
        for node in (*self.leaves, *self.spines):
            node.forward()
        for i, (host, leaf) in enumerate(zip(self.hosts, self.leaves, strict=True)):
            cable(host, "eth0", leaf, "down")
            host.address("eth0", f"10.0.{i}.2/24", f"fd00:{i}::2/64")
            leaf.address("down", f"10.0.{i}.1/24", f"fd00:{i}::1/64")
            host.route.route("add", dst="default", gateway=f"10.0.{i}.1")
            host.route.route("add", dst="default", gateway=f"fd00:{i}::1", family=socket.AF_INET6)
        for s, spine in enumerate(self.spines):
            for i, leaf in enumerate(self.leaves):
                cable(leaf, f"up{s}", spine, f"leaf{i}")
                leaf.address(f"up{s}", f"10.1.{s}.{4 * i + 1}/30", f"fd01:{s}:{i}::1/64")
                spine.address(f"leaf{i}", f"10.1.{s}.{4 * i + 2}/30", f"fd01:{s}:{i}::2/64")
                spine.route.route("add", dst=f"10.0.{i}.0/24", gateway=f"10.1.{s}.{4 * i + 1}")
                spine.route.route("add", dst=f"fd00:{i}::/64", gateway=f"fd01:{s}:{i}::1", family=socket.AF_INET6)
        for i in range(2):
            self.spread(i, list(range(spines)))

    def spread(self, i: int, over: list[int]) -> None:
        """Leaf i reaches the other leaf's host over these spines."""
        hops = [{"gateway": f"10.1.{s}.{4 * i + 2}", "hops": 0} for s in over]
        self.leaves[i].route.route("replace", dst=f"10.0.{1 - i}.0/24", multipath=hops)
        gateway = f"fd01:{over[0]}:{i}::2"
        self.leaves[i].route.route("replace", dst=f"fd00:{1 - i}::/64", gateway=gateway, family=socket.AF_INET6)

    def crossed(self) -> list[int]:
        """What each spine sent to leaf 1, in bytes."""
        return [spine.sent("leaf1") for spine in self.spines]


class Flows:
    """Connections from host 0 to host 1 that stay; the far end echoes."""

    def __init__(self, fabric: Fabric, family: socket.AddressFamily = socket.AF_INET) -> None:
        self.fabric = fabric
        address = "10.0.1.2" if family == socket.AF_INET else "fd00:1::2"
        with kernel.inside(fabric.hosts[1].namespace, fabric.back):
            self._listener = socket.create_server((address, _PORT), family=family)
        self._to = (address, _PORT)
        self._family = family
        self.sockets: list[socket.socket] = []

    def add(self) -> socket.socket:
        with kernel.inside(self.fabric.hosts[0].namespace, self.fabric.back):
            made = socket.socket(self._family)
            made.settimeout(20)
            made.connect(self._to)
        there, _ = self._listener.accept()
        threading.Thread(target=_echo, args=(there,), daemon=True).start()
        self.sockets.append(made)
        return made


def _echo(connection: socket.socket) -> None:
    with suppress(OSError):
        while data := connection.recv(1 << 16):
            connection.sendall(data)


def tuple_of(connection: socket.socket) -> FiveTuple:
    return FiveTuple("tcp", *connection.getsockname()[:2], *connection.getpeername()[:2])


def talk(connection: socket.socket, count: int = 200_000) -> bool:
    """Sends random bytes through and back; says whether they came whole."""
    data = os.urandom(count)
    threading.Thread(target=connection.sendall, args=(data,), daemon=True).start()
    back = bytearray()
    while len(back) < count and (part := connection.recv(1 << 16)):
        back += part
    return bytes(back) == data


def carrier(fabric: Fabric, connection: socket.socket) -> tuple[str, bool]:
    """Returns the spine that carries the connection, by the counters, and whether its data came whole."""
    before = fabric.crossed()
    whole = talk(connection)
    gained = [now - then for now, then in zip(fabric.crossed(), before, strict=True)]
    return f"spine{gained.index(max(gained))}", whole


def spine_of(path: tuple[str, ...]) -> str:
    """The spine whose interface the second link leads into: 10.1.s.2."""
    return f"spine{path[1].split('.')[2]}" if len(path) == 4 else f"none: {path}"


class Run:
    """Fabric, flows and probe."""

    def __init__(self, spines: int, count: int) -> None:
        self.fabric = Fabric(spines)
        with kernel.inside(self.fabric.hosts[0].namespace, self.fabric.back):
            self.probe = ProbedPaths(Limits(patience=0.1))
        assert self.probe.refused is None, self.probe.refused
        self.flows = Flows(self.fabric)
        for _ in range(count):
            self.flows.add()
        self.tuples = [tuple_of(each) for each in self.flows.sockets]

    def find(self, *flows: FiveTuple) -> list[tuple[str, ...]]:
        with ThreadPoolExecutor(len(flows)) as pool:
            return list(pool.map(self.probe.find, flows))

    def carriers(self) -> tuple[list[str], bool]:
        found = [carrier(self.fabric, each) for each in self.flows.sockets]
        return [spine for spine, _ in found], all(whole for _, whole in found)

    def before(self) -> dict[str, Any]:
        paths = self.find(*self.tuples)
        carried, whole = self.carriers()
        probed = [spine_of(each) for each in paths]
        return {"probed": probed, "path": paths[0], "carried": carried, "whole": whole}

    def lose(self, spine: int) -> dict[str, Any]:
        """Routes leave the spine; then it goes."""
        others = [s for s in range(len(self.fabric.spines)) if s != spine]
        for leaf in range(2):
            self.fabric.spread(leaf, others)
        self.fabric.spines[spine].down("leaf0")
        carried, whole = self.carriers()
        probed = [spine_of(each) for each in self.find(*self.tuples)]
        return {"gone": f"spine{spine}", "probed later": probed, "carried later": carried, "whole later": whole}

    def ipv6(self) -> dict[str, Any]:
        flows = Flows(self.fabric, socket.AF_INET6)
        return {"ipv6": self.find(tuple_of(flows.add()))[0]}


def main(spines: int, count: int) -> None:
    started = time.monotonic()
    run = Run(spines, count)
    told = run.before()
    told |= run.lose(int(told["carried"][0].removeprefix("spine")))
    told |= run.ipv6()
    run.probe.close()
    print(json.dumps(told | {"seconds": time.monotonic() - started}), flush=True)


if __name__ == "__main__":
    if os.geteuid() != 0:
        kernel.become_root_of_own()
    main(int(sys.argv[1]), int(sys.argv[2]))
    # The echoing threads do not end by themselves.
    os._exit(0)
