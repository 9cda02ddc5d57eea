"""The Python face of the fluid engine: what it refuses, that it repeats itself, and the topologies."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flowsim._core", reason="the native library is not built")

from flowsim import FatTree, Flow, Network, Result, Task, cluster, fat_tree, star

ROOT = Path(__file__).resolve().parents[2]


def network(*capacities: float) -> Network:
    made = Network()
    for capacity in capacities:
        made.add_link(capacity)
    return made


def shuffle(tree: FatTree, flows: int, seed: int, priorities: int = 2) -> np.ndarray:
    """Add flows between random hosts of a tree; returns their paths."""
    random = np.random.default_rng(seed)
    src = random.integers(0, tree.hosts, flows)
    dst = (src + random.integers(1, tree.hosts, flows)) % tree.hosts
    paths = tree.paths(src, dst, random.integers(0, tree.routes, flows))
    tree.network.add_flows(
        paths,
        random.exponential(1.0, flows),
        priority=random.integers(0, priorities, flows),
        weight=random.uniform(0.5, 2.0, flows),
        start=random.integers(0, 3, flows) * 0.25,
    )
    return paths


def digest(result: Result) -> str:
    arrays = (result.start, result.finish, result.moved, result.link_bytes, result.link_busy, result.executor_busy)
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def run_of_shuffle() -> str:
    tree = fat_tree(54, 1.0)
    shuffle(tree, 300, 11)
    return digest(tree.network.run())


def test_the_same_bits_in_every_process() -> None:
    """A run depends on the network alone: not on the process, its hash seed, or an earlier run."""
    program = "from sim.test_flowsim import run_of_shuffle; print(run_of_shuffle())"
    found = {run_of_shuffle()}
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True, timeout=120
        )
        found.add(done.stdout.strip())
    assert len(found) == 1


def test_a_network_can_grow_and_run_again() -> None:
    """A run leaves the network as it was; what is added later joins the next run."""
    net = network(10.0)
    net.add(Flow([0], 10.0))
    assert digest(net.run()) == digest(net.run())
    net.add(Flow([0], 10.0))
    assert net.run().finish.tolist() == [2.0, 2.0]


def test_one_by_one_equals_all_at_once() -> None:
    """`add` and `add_flows`, `add_tasks` say the same in two ways."""
    single, many = network(3.0, 4.0), network(3.0, 4.0)
    gpus = [net.add_executor() for net in (single, many)]
    assert gpus == [0, 0]
    single.add(Task(0.5, executor=0, priority=1))
    single.add(Task(0.25, start=0.1))
    single.add(Flow([0, 1], 2.0, 1, 2.0, 0.25, 0.5, [0]))
    single.add(Flow([1], 3.0, 0, 1.0, 0.0, 0.5, [0, 1]))
    many.add_tasks([0.5, 0.25], executor=[0, -1], priority=[1, 0], start=[0.0, 0.1])
    padded = np.array([[0, 1], [1, -1]])
    many.add_flows(
        padded, [2.0, 3.0], priority=[1, 0], weight=[2.0, 1.0], start=[0.25, 0.0], latency=0.5, after=[[0], [0, 1]]
    )
    assert digest(single.run()) == digest(many.run())


def test_utilisation_counts_bytes_against_capacity() -> None:
    """Half the time at half the speed is a quarter; a link that offers nothing is used by nothing."""
    net = network(10.0, 5.0, 0.0)
    net.add(Flow([0, 1], 10.0))
    net.add(Task(4.0))
    result = net.run()
    assert result.link_utilisation.tolist() == [0.25, 0.5, 0.0]
    assert result.link_busy.tolist() == [2.0, 2.0, 0.0]


def test_the_timeline_adds_up_to_the_bytes() -> None:
    """Rates times their spans give each flow's size."""
    tree = fat_tree(16, 1.0)
    shuffle(tree, 60, 3)
    result = tree.network.run(timeline=True)
    assert result.timeline is not None
    for flow in range(60):
        times, rates = result.timeline.of(flow)
        assert rates[-1] == 0
        assert math.fsum(rates[:-1] * np.diff(times)) == pytest.approx(result.moved[flow])


@pytest.mark.parametrize("seed", range(3))
def test_every_flow_has_a_bottleneck(seed: int) -> None:
    """At size: at every instant each flow crosses a full link where none of its class has more for its weight, which is
    what max-min fair means, and no link carries more than it can.
    """
    tree, flows = fat_tree(128, 1.0), 700
    paths = shuffle(tree, flows, seed)
    random = np.random.default_rng(seed)
    random.integers(0, tree.hosts, flows), random.integers(1, tree.hosts, flows)
    random.integers(0, tree.routes, flows), random.exponential(1.0, flows)
    priority, weight = random.integers(0, 2, flows), random.uniform(0.5, 2.0, flows)
    result = tree.network.run(timeline=True)
    assert result.timeline is not None
    crosses = np.zeros((flows, tree.network.links), dtype=bool)
    for hop in range(6):
        there = paths[:, hop] >= 0
        crosses[there, paths[there, hop]] = True
    rates = np.zeros(flows)
    instants = np.unique(result.timeline.time)
    looked_at = set(instants[:: max(1, len(instants) // 40)].tolist())
    for instant in instants.tolist():
        now = result.timeline.time == instant
        rates[result.timeline.flow[now]] = result.timeline.rate[now]
        if instant in looked_at:
            moving = (result.start <= instant) & (result.finish > instant)
            assert_fair(rates[moving], priority[moving], weight[moving], crosses[moving])


def assert_fair(rates: np.ndarray, priority: np.ndarray, weight: np.ndarray, crosses: np.ndarray) -> None:
    """Arrays of shape (flows,), and (flows, links) of bool; every link has a capacity of 1."""
    left = np.ones(crosses.shape[1])
    for each in np.unique(priority):
        mine = priority == each
        load = rates[mine] @ crosses[mine]
        assert np.all(load <= left + 1e-8)
        full = load >= left - 1e-8
        level = rates[mine] / weight[mine]
        highest = np.max(np.where(crosses[mine], level[:, None], 0.0), axis=0, initial=0.0)
        bottleneck = crosses[mine] & full & (level[:, None] >= highest - 1e-7)
        assert np.all(bottleneck.any(axis=1))
        left = left - load


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda net: net.add_link(-1.0), "link 2: capacity is -1"),
        (lambda net: net.add_link(math.inf), "link 2: capacity is inf"),
        (lambda net: net.add(Flow([2], 1.0)), "flow 1: there is no link 2"),
        (lambda net: net.add(Flow([0, 0], 1.0)), "flow 1: link 0 is twice"),
        (lambda net: net.add(Flow([0], math.nan)), "flow 1: size is nan"),
        (lambda net: net.add(Flow([0], 1.0, after=[1])), "flow 1: cannot come after activity 1"),
        (lambda net: net.add(Task(1.0, executor=0)), "task 1: there is no executor 0"),
        (lambda net: net.add_flows([[0], [5]], 1.0), "flow 2: there is no link 5"),
        (lambda net: net.add_flows([[0], [1]], [1.0, 2.0, 3.0]), "sizes: one value, or one for each of the 2"),
        (lambda net: net.add_flows([[0]], 1.0, priority=0.5), "priority: 0.5 is no whole number"),
        (lambda net: net.add_flows([[0]], 1.0, priority=[300]), "flow 1: priority 300"),
        (lambda net: net.add_flows([[2**40]], 1.0), "paths: 1099511627776 is no whole number"),
        (lambda net: net.add_flows(np.zeros(3, dtype=int), 1.0), "paths: an array must have shape"),
        (lambda net: net.add_flows([[0], [1]], 1.0, after=[[0]]), "after: 1 rows for 2 activities"),
        (lambda net: net.add_tasks([1.0, -1.0]), "task 2: duration is -1"),
        (lambda net: net.add_dependency(0, 7), "there is no activity 7"),
        (lambda net: net.change_capacity(4, 0.0, 1.0), "capacity change of link 4"),
        (lambda net: net.run(until=-1.0), "until"),
    ],
)
def test_bad_input_is_named_and_adds_nothing(build: Callable[[Network], Any], words: str) -> None:
    """A ValueError says which thing is wrong, and the network is as it was."""
    net = network(1.0, 1.0)
    net.add(Flow([0], 1.0))
    before = net.links, net.executors, net.activities
    with pytest.raises(ValueError, match=words):
        build(net)
    assert (net.links, net.executors, net.activities) == before
    assert net.run().finish.tolist() == [1.0]


def test_what_can_never_end_is_named() -> None:
    """A starved flow, and a cycle, end a run with ValueError; a starved flow only if nobody stops the run before."""
    net = network(0.0)
    net.add(Flow([0], 1.0))
    with pytest.raises(ValueError, match=r"flow 0 is starved.*link 0"):
        net.run()
    assert net.run(until=3.0).finish.tolist() == [math.inf]
    net.change_capacity(0, 2.0, 1.0)
    assert net.run().finish.tolist() == [3.0]
    net.add_dependency(0, 0)
    with pytest.raises(ValueError, match="cycle: flow 0 after flow 0"):
        net.run()


def test_ctrl_c_ends_a_long_run() -> None:
    """A run looks at signals: an alarm that raises stops it."""
    program = """
import signal, flowsim, numpy as np
def stop(*_): raise TimeoutError
signal.signal(signal.SIGALRM, stop)
net = flowsim.Network()
net.add_link(1.0)
net.add_flows(np.zeros((100_000, 1), dtype=int), np.arange(1.0, 100_001.0))
signal.alarm(1)
try:
    net.run()
except TimeoutError:
    print("stopped")
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=120)
    assert done.stdout == "stopped\n", done.stderr


def test_star() -> None:
    """Hosts share nothing but their own links."""
    net = star(4, 10.0)
    assert net.path(2, 2) == []
    first = net.network.add(Flow(net.path(0, 1), 10.0))
    second = net.network.add(Flow(net.path(1, 0), 10.0))
    third = net.network.add(Flow(net.path(2, 1), 10.0))
    assert net.network.run().finish[[first, second, third]].tolist() == [2.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="dst: 4 is not from 0 to 3"):
        net.path(0, 4)


def test_fat_tree_paths() -> None:
    """1,024 hosts need 16 ports; a path has 2, 4 or 6 links; up and down meet at the same switches."""
    tree = fat_tree(1024, 1.0)
    assert (tree.ports, tree.routes, tree.network.links) == (16, 64, 6 * 1024)
    assert tree.path(5, 5, 3) == []
    assert tree.path(0, 7, 3) == [tree.host_up[0], tree.host_down[7]]
    assert tree.path(0, 8, 3) == [tree.host_up[0], tree.edge_up[0, 0, 3], tree.edge_down[0, 1, 3], tree.host_down[8]]
    far = tree.path(0, 1023, 8 * 5 + 3)
    assert far[1:3] == [tree.edge_up[0, 0, 3], tree.core_up[0, 3, 5]]
    assert far[3:5] == [tree.core_down[15, 3, 5], tree.edge_down[15, 7, 3]]
    with pytest.raises(ValueError, match="src: hosts are 0 to 1023"):
        tree.path(-1, 0)


def test_fat_tree_has_full_bisection() -> None:
    """A permutation whose flows take different ways runs at full speed everywhere."""
    tree = fat_tree(16, 1.0)
    hosts = np.arange(16)
    tree.network.add_flows(tree.paths(hosts, (hosts + 4) % 16, hosts % 4), 1.0)
    assert tree.network.run().end == pytest.approx(1.0)


def test_cluster_links() -> None:
    """Inside a host a transfer crosses GPU ports, or its pair's link; between hosts the NICs of its rail."""
    switched = cluster(2, 4, 2, 100.0, 10.0)
    assert switched.path(1, 1) == []
    assert switched.path(1, 2) == [switched.gpu_out[1], switched.gpu_in[2]]
    assert switched.path(1, 6) == [switched.nic_out[0, 1], switched.nic_in[1, 1]]
    assert switched.path(1, 6, rail=0) == [switched.nic_out[0, 0], switched.nic_in[1, 0]]
    with pytest.raises(ValueError, match="rail: 2 is not from 0 to 1"):
        switched.path(0, 4, rail=2)
    mesh = cluster(2, 4, 2, 100.0, 10.0, mesh=True)
    pairs = {tuple(mesh.path(src, dst)) for src in range(4, 8) for dst in range(4, 8) if src != dst}
    assert len(pairs) == 12
    assert all(len(path) == 1 for path in pairs)
    assert mesh.network.links == 2 * 12 + 2 * 2 * 2


def test_two_clusters_can_share_a_network() -> None:
    """Builders add to a network that is given."""
    net = Network()
    star(2, 1.0, network=net)
    second = star(2, 1.0, network=net)
    assert second.network is net
    assert second.path(0, 1) == [4, 7]
