"""The same flows in SimGrid (PyPI: simgrid) and in flowsim: random networks, and how far the times are apart.

SimGrid knows one simulation a process, so it runs in one of its own: this file, as a program, reads a scenario as JSON
from standard input and writes when each flow ended. Its network model there is CM02 without corrections: plain max-min
fairness, no latency, no cross traffic.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

PLAIN = ("network/model:CM02", "network/crosstraffic:0")


class SimGridFailed(Exception):
    """SimGrid's process ended with an error, which the message quotes."""


def installed() -> bool:
    """Whether this Python has SimGrid. `pip install simgrid` takes minutes, and Boost's headers and pybind11 < 3."""
    return importlib.util.find_spec("simgrid") is not None


def random_scenario(seed: int, flows: int = 60, links: int = 25) -> dict[str, Any]:
    """Capacities (bytes a second), and flows as [path, bytes, start in seconds]; half of them start together."""
    random = np.random.default_rng(seed)
    together = np.where(random.random(flows) < 0.5, 0.0, random.exponential(0.5, flows))
    return {
        "capacities": (1e9 * random.uniform(0.2, 3.0, links)).tolist(),
        "flows": [
            [
                random.choice(links, random.integers(1, 6), replace=False).tolist(),
                int(random.exponential(3e8)) + 1_000_000,
                float(start),
            ]
            for start in together
        ],
    }


def run_flowsim(scenario: dict[str, Any]) -> np.ndarray:
    """When each flow ends in flowsim, in seconds, shape (flows,)."""
    from flowsim import Network

    network = Network()
    for capacity in scenario["capacities"]:
        network.add_link(capacity)
    paths, sizes, starts = zip(*scenario["flows"], strict=True)
    network.add_flows(paths, sizes, start=starts)
    return network.run().finish


def run_simgrid(scenario: dict[str, Any]) -> np.ndarray:
    """When each flow ends in SimGrid, in seconds, shape (flows,). Raises SimGridFailed."""
    command = [sys.executable, str(Path(__file__).resolve())]
    done = subprocess.run(command, input=json.dumps(scenario), capture_output=True, text=True)
    if done.returncode != 0:
        raise SimGridFailed(f"simgrid: {done.stderr.strip()[-500:]}")
    return np.array(json.loads(done.stdout.splitlines()[-1]))


def worst_difference(seed: int) -> float:
    """The largest relative difference between the times that flows take in the two, in one random scenario."""
    scenario = random_scenario(seed)
    starts = np.array([flow[2] for flow in scenario["flows"]])
    ours, theirs = run_flowsim(scenario) - starts, run_simgrid(scenario) - starts
    return float(np.max(np.abs(ours - theirs) / theirs))


def simulate(scenario: dict[str, Any]) -> list[float]:
    """Run a scenario in SimGrid, in this process: each flow between two hosts of its own, over a route of its own."""
    import simgrid

    engine = simgrid.Engine(["flows", "--log=root.thres:error", *(f"--cfg={each}" for each in PLAIN)])
    zone = engine.netzone_root.add_netzone_full("network")
    links = [zone.add_link(f"link{i}", capacity) for i, capacity in enumerate(scenario["capacities"])]
    ends = [0.0] * len(scenario["flows"])

    def send(flow: int, src: Any, dst: Any, size: int, start: float) -> None:
        simgrid.this_actor.sleep_until(start)
        simgrid.Comm.sendto(src, dst, size)
        ends[flow] = engine.clock

    pairs = [(zone.add_host(f"src{i}", 1e9), zone.add_host(f"dst{i}", 1e9)) for i in range(len(ends))]
    for (src, dst), (path, _, _) in zip(pairs, scenario["flows"], strict=True):
        zone.add_route(src, dst, [simgrid.LinkInRoute(links[link]) for link in path], False)
    zone.seal()
    for flow, ((src, dst), (_, size, start)) in enumerate(zip(pairs, scenario["flows"], strict=True)):
        src.add_actor(f"flow{flow}", send, flow, src, dst, size, start)
    engine.run()
    return ends


if __name__ == "__main__":
    print(json.dumps(simulate(json.load(sys.stdin))))
