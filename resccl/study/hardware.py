"""What links and thread blocks cost: the machine that a study runs plans on."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import flowsim
from resccl.topology import Topology

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Hardware:
    """Seconds and bytes a second. The defaults are the paper's servers: 8 A100, NVSwitch, 4 NICs of 200 Gb/s.

    local_bandwidth: of a GPU's port, each way; with `mesh`, of the link of each pair of GPUs
    network_bandwidth: of a NIC, each way. A host has as many NICs as the topology has rails
    thread_block_bandwidth: what one TB sends, or takes out of its slots, at most. At 60 GB/s a chunk takes 2.5 times
        as long between hosts as inside one, the least that the paper measured
    local_start, network_start: alpha, from the start of a message to its first byte
    contention: gamma L(z): with z messages on it, a NIC is worth 1 / (1 + contention * (z - 1)) of its bandwidth. The
        paper saw a NIC fall with more TBs, but gives no value; 0.1 is a guess
    local_contention: the same inside a host, where a switch is built to be shared
    barrier: what algorithm level pays for each micro-batch, since all ranks finish one before the next
    chunk: bytes of a message where there is enough data
    slots: messages that a connection holds
    """

    local_bandwidth: float = 300e9
    network_bandwidth: float = 25e9
    thread_block_bandwidth: float = 60e9
    local_start: float = 2e-6
    network_start: float = 6e-6
    contention: float = 0.1
    local_contention: float = 0.0
    barrier: float = 0.0
    chunk: int = MEGABYTE
    slots: int = 8
    mesh: bool = False

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool):
                continue
            least = (
                0.0
                if each.name in ("local_start", "network_start", "contention", "local_contention", "barrier")
                else 1e-300
            )
            if math.isnan(value) or value < least or (math.isinf(value) and not each.name.endswith("bandwidth")):
                raise ValueError(f"hardware: {each.name} is {value}")
        if self.slots < 1:
            raise ValueError(f"hardware: a connection has at least one slot, not {self.slots}")

    def start(self, between_hosts: bool) -> float:
        """Return alpha of a message."""
        return self.network_start if between_hosts else self.local_start

    def message_time(self, size: float, between_hosts: bool) -> float:
        """Return alpha + c beta: the seconds of a message of `size` bytes that has its links to itself."""
        link = self.network_bandwidth if between_hosts else self.local_bandwidth
        return self.start(between_hosts) + size / min(link, self.thread_block_bandwidth)


@dataclass(frozen=True)
class Message:
    """How many messages a chunk of a buffer makes, and of which size."""

    micro_batches: int
    size: float


def messages_of(size: float, chunks: int, hardware: Hardware) -> Message:
    """Return how a buffer of `size` bytes, cut into `chunks` chunks, goes: in messages of at most hardware.chunk."""
    if not size > 0 or not math.isfinite(size):
        raise ValueError(f"a buffer of {size} bytes cannot be simulated")
    micro_batches = max(1, math.ceil(size / chunks / hardware.chunk))
    return Message(micro_batches, size / chunks / micro_batches)


class Wiring:
    """The links of a topology in a flowsim network, and the way of each message over them."""

    def __init__(self, topology: Topology, hardware: Hardware) -> None:
        self.network = flowsim.Network()
        self.hardware = hardware
        self.topology = topology
        self.names: list[str] = []  # of each link of the network
        self._links: dict[tuple[str, int, int], int] = {}

    def path(self, src: int, dst: int, rail: int, thread_block: int) -> list[int]:
        """Return the links of a message from rank to rank that TB `thread_block` (any number of its own) sends."""
        bandwidth = self.hardware.thread_block_bandwidth
        own = [] if math.isinf(bandwidth) else [self._link("tb", thread_block, 0, bandwidth, 0.0)]
        hosts = self.topology.host_of_rank
        speed, gamma = self.hardware.local_bandwidth, self.hardware.local_contention
        ends: tuple[tuple[str, int, int], ...] = (("gpu out", src, 0), ("gpu in", dst, 0))
        if hosts[src] != hosts[dst]:
            ends = (("nic out", hosts[src], rail), ("nic in", hosts[dst], rail))
            speed, gamma = self.hardware.network_bandwidth, self.hardware.contention
        elif self.hardware.mesh:
            ends = (("pair", src, dst),)
        return own + [self._link(*end, speed, gamma) for end in ends]

    def links(self, *kinds: str) -> list[int]:
        """Return the links in use of some kinds: nic out, nic in, gpu out, gpu in, pair, tb."""
        return [link for (kind, _, _), link in self._links.items() if kind in kinds]

    def _link(self, kind: str, first: int, second: int, speed: float, contention: float) -> int:
        key = (kind, first, second)
        if key not in self._links:
            self._links[key] = self.network.add_link(speed, contention)
            self.names.append(f"{kind} {first}.{second}")
        return self._links[key]
