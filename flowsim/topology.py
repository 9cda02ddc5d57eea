"""Networks that people have: stars, fat trees, clusters of GPU servers. Each says which links a transfer crosses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowsim.network import Network


@dataclass(frozen=True)
class Star:
    """Hosts around one switch that never limits: each has a link up and a link down."""

    network: Network
    up: NDArray[np.int32]  # shape (hosts,)
    down: NDArray[np.int32]

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return len(self.up)

    def path(self, src: int, dst: int) -> list[int]:
        """Return the link ids from one host to another; none from a host to itself."""
        _check_host("src", src, self.hosts)
        _check_host("dst", dst, self.hosts)
        return [] if src == dst else [int(self.up[src]), int(self.down[dst])]


def star(hosts: int, bandwidth: float, network: Network | None = None) -> Star:
    """Build a star of `hosts` hosts with `bandwidth` bytes a second in each direction; in `network` if one is given."""
    _check_positive("hosts", hosts)
    net = network or Network()
    return Star(net, net.add_links(hosts, bandwidth), net.add_links(hosts, bandwidth))


@dataclass(frozen=True)
class FatTree:
    """A three-level fat tree of switches with k ports (Al-Fares et al., SIGCOMM 2008): k pods of k/2 edge and k/2
    aggregation switches, (k/2)^2 core switches, k/2 hosts an edge switch, and full bisection bandwidth.

    Links by [host] (shape (hosts,)), [pod, edge, aggregation] and [pod, aggregation, port] (shape (k, k/2, k/2)).
    """

    network: Network
    hosts: int
    ports: int
    host_up: NDArray[np.int32]
    host_down: NDArray[np.int32]
    edge_up: NDArray[np.int32]
    edge_down: NDArray[np.int32]
    core_up: NDArray[np.int32]
    core_down: NDArray[np.int32]

    @property
    def routes(self) -> int:
        """The number of ways between hosts of different pods: (k/2)^2."""
        return (self.ports // 2) ** 2

    def path(self, src: int, dst: int, route: int = 0) -> list[int]:
        """Return the link ids from one host to another by one of the `routes`; none from a host to itself."""
        return [link for link in self.paths([src], [dst], [route])[0].tolist() if link != -1]

    def paths(self, src: ArrayLike, dst: ArrayLike, route: ArrayLike = 0) -> NDArray[np.int32]:
        """Return the paths of many flows, shape (flows, 6), padded with -1, as `Network.add_flows` takes them.

        `route` picks the aggregation switch (route modulo k/2) and the core switch (route divided by k/2), as a hash of
        the flow would; it may be any number of at least 0.
        """
        from_host, to_host, way = np.broadcast_arrays(*(np.atleast_1d(np.asarray(each)) for each in (src, dst, route)))
        for name, values, most in (("src", from_host, self.hosts), ("dst", to_host, self.hosts)):
            if values.size and (values.min() < 0 or values.max() >= most):
                raise ValueError(f"{name}: hosts are 0 to {most - 1}; got {values.min()} to {values.max()}")
        if way.size and way.min() < 0:
            raise ValueError(f"route: {way.min()} is below 0")
        half = self.ports // 2
        aggregation, port = way % half, way // half % half
        edge = from_host // half % half, to_host // half % half
        pod = from_host // half**2, to_host // half**2
        paths = np.full((len(from_host), 6), -1, dtype=np.int32)
        paths[:, 0], paths[:, 5] = self.host_up[from_host], self.host_down[to_host]
        paths[:, 1], paths[:, 4] = (
            self.edge_up[pod[0], edge[0], aggregation],
            self.edge_down[pod[1], edge[1], aggregation],
        )
        paths[:, 2], paths[:, 3] = (
            self.core_up[pod[0], aggregation, port],
            self.core_down[pod[1], aggregation, port],
        )
        same_pod = pod[0] == pod[1]
        paths[same_pod, 2:4] = -1
        paths[same_pod & (edge[0] == edge[1]), 1:5] = -1
        paths[from_host == to_host] = -1
        return paths


def fat_tree(hosts: int, bandwidth: float, network: Network | None = None) -> FatTree:
    """Build the smallest fat tree with room for `hosts` hosts; every link has `bandwidth` bytes a second each way.

    1,024 hosts need switches of 16 ports.
    """
    _check_positive("hosts", hosts)
    ports = 2
    while ports**3 // 4 < hosts:
        ports += 2
    net, half = network or Network(), ports // 2
    shape = (ports, half, half)

    def grid() -> NDArray[np.int32]:
        return net.add_links(ports * half * half, bandwidth).reshape(shape)

    up, down = net.add_links(hosts, bandwidth), net.add_links(hosts, bandwidth)
    return FatTree(net, hosts, ports, up, down, grid(), grid(), grid(), grid())


@dataclass(frozen=True)
class Cluster:
    """Servers of GPUs with links inside and NICs (rails) between them. Rank r is GPU r % gpus of host r // gpus.

    Inside a host, either each GPU has a port in and one out (a switch between them), or each ordered pair has a link
    (`mesh`). Rail i of every host meets rail i of the others at a switch that never limits.
    """

    network: Network
    hosts: int
    gpus: int
    nics: int
    mesh: bool
    gpu_out: NDArray[np.int32]  # shape (ranks,); empty for a mesh
    gpu_in: NDArray[np.int32]
    pair: NDArray[np.int32]  # shape (hosts, gpus, gpus); empty unless a mesh; -1 from a GPU to itself
    nic_out: NDArray[np.int32]  # shape (hosts, nics)
    nic_in: NDArray[np.int32]

    @property
    def ranks(self) -> int:
        """The number of GPUs."""
        return self.hosts * self.gpus

    def path(self, src: int, dst: int, rail: int | None = None) -> list[int]:
        """Return the link ids of a transfer from rank to rank; none from a rank to itself.

        Between hosts it crosses the NICs of `rail`, by default that of the sending GPU (GPU modulo NICs). Inside a host
        the rail does not matter.
        """
        _check_host("src", src, self.ranks)
        _check_host("dst", dst, self.ranks)
        if src == dst:
            return []
        host, peer = src // self.gpus, dst // self.gpus
        if host != peer:
            chosen = src % self.gpus % self.nics if rail is None else rail
            _check_host("rail", chosen, self.nics)
            return [int(self.nic_out[host, chosen]), int(self.nic_in[peer, chosen])]
        if self.mesh:
            return [int(self.pair[host, src % self.gpus, dst % self.gpus])]
        return [int(self.gpu_out[src]), int(self.gpu_in[dst])]


def cluster(
    hosts: int,
    gpus: int,
    nics: int,
    nvlink_bandwidth: float,
    nic_bandwidth: float,
    *,
    mesh: bool = False,
    contention: float = 0.0,
    network: Network | None = None,
) -> Cluster:
    """Build `hosts` servers of `gpus` GPUs and `nics` NICs; bandwidths in bytes a second and direction.

    `nvlink_bandwidth` is that of a GPU's port, or of each pair's own link in a `mesh`. `contention` is what sharing
    costs every link (`Network.add_link`).
    """
    for name, value in (("hosts", hosts), ("gpus", gpus), ("nics", nics)):
        _check_positive(name, value)
    net = network or Network()
    none = np.zeros(0, dtype=np.int32)
    out = inward = none
    pair = none.reshape(0, 0, 0)
    if mesh:
        pair = np.full((hosts, gpus, gpus), -1, dtype=np.int32)
        apart = ~np.eye(gpus, dtype=bool)
        pair[:, apart] = net.add_links(hosts * gpus * (gpus - 1), nvlink_bandwidth, contention).reshape(hosts, -1)
    else:
        out, inward = (net.add_links(hosts * gpus, nvlink_bandwidth, contention) for _ in range(2))
    nic_out, nic_in = (net.add_links(hosts * nics, nic_bandwidth, contention).reshape(hosts, nics) for _ in range(2))
    return Cluster(net, hosts, gpus, nics, mesh, out, inward, pair, nic_out, nic_in)


def _check_host(name: str, value: int, most: int) -> None:
    if not 0 <= value < most:
        raise ValueError(f"{name}: {value} is not from 0 to {most - 1}")


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name}: {value} is below 1")
