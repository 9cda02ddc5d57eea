"""Self-healing: flows of all hosts to the health of NICs, and that to schedules in the job's log.

Every agent sums up its ranks' flows; the leader's agent alone judges and publishes. What it publishes lies in the log,
so that a new leader goes on where the old one was.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from theseus_py import _core
from theseus_py.agent.flows import FlowSums
from theseus_py.agent.worker import make_worker
from theseus_py.errors import TheseusError
from theseus_py.healing.blame import Flow, Observation
from theseus_py.healing.health import Monitor
from theseus_py.healing.publish import HEALING, Cluster, GainRule, Published, Record, ThetaRule, decide, learned

if TYPE_CHECKING:
    from theseus_py.agent.agent import Agent

__all__ = ["HealingMonitor", "Observer"]

_log = logging.getLogger(__name__)
_EVENTS_KEPT = 64
_LEARNED_SECONDS = 2.0  # between two looks at what was learned
_FILLED_BY_A_PROBE = 250e6  # bytes a second that Python can push for certain
_SHORTEST_WINDOW = 10_000_000  # ns
_LONGEST_WINDOW = 500_000_000  # a host that was silent for longer begins anew


class Observer:
    """Turns the sums of all hosts into observations of flows, window by window. Pure: it is told everything."""

    def __init__(self, hosts: list[str]) -> None:
        self.hosts = hosts
        self._before: dict[str, dict[str, Any]] = {}
        self._probed: dict[Flow, int] = {}  # when the last probe ended, by the clock of its source

    def observe(self, rows: dict[str, dict[str, Any]]) -> dict[tuple[int, int, int], Observation]:
        """Returns, by (source, destination, rail), what flows got since they were last looked at.

        `rows`: the latest of each host (FlowSums.rows). Flows of hosts that have nothing new are left out.
        """
        number = {str(row["identity"]): self.hosts.index(host) for host, row in rows.items() if host in self.hosts}
        seen: dict[tuple[int, int, int], Observation] = {}
        for host, row in rows.items():
            before = self._before.get(host)
            if host not in self.hosts or (before is not None and row["at"] - before["at"] < _SHORTEST_WINDOW):
                continue
            self._before[host] = row
            if before is None or row["at"] - before["at"] > _LONGEST_WINDOW:
                continue
            window = row["at"] - before["at"]
            known = {(flow[0], flow[1]): flow[2:] for flow in before["flows"]}
            for peer, rail, moved, waited, rescued, suspect in row["flows"]:
                moved_before, waited_before, rescued_before, _ = known.get((peer, rail), (0, 0, 0, 0))
                waited -= waited_before
                avoided = suspect > 0 or rescued > rescued_before
                if peer in number and (waited > 0 or avoided):
                    goodput = (moved - moved_before) * 1e9 / max(waited, 1)
                    share = min(1.0, waited / window)
                    flow = self.hosts.index(host), number[peer], rail
                    seen[flow] = Observation(goodput, share, window / 1e9, avoided)
        return seen

    def probes(self, rows: dict[str, dict[str, Any]], capacity: NDArray[np.float64]) -> dict[Flow, float]:
        """Returns what probes got that are new, as part of what their references got, or of what NICs can do."""
        seen: dict[Flow, float] = {}
        for host, row in rows.items():
            for dst, rail, rate, reference, at in row.get("probes", ()):
                if host not in self.hosts or dst not in self.hosts or not 0 <= rail < capacity.shape[1]:
                    continue
                flow = Flow(self.hosts.index(host), self.hosts.index(dst), int(rail))
                most = float(capacity[flow.src, rail]) or np.inf
                if self._probed.get(flow) != at:
                    self._probed[flow] = at
                    seen[flow] = min(1.0, rate / min(most, reference or most))
        return seen


class HealingMonitor:
    """What the agent calls every 20 ms (agent.Monitor)."""

    def __init__(self, agent: Agent, rule: GainRule | ThetaRule | None = None) -> None:
        self._agent = agent
        self._rule = rule or GainRule()
        self._sums = FlowSums()
        self._rows: dict[str, dict[str, Any]] = {}
        self._observer: Observer | None = None
        self._monitor: Monitor | None = None
        self._published = Published()
        self._reader: _core.SharedLogReader | None = None
        self._deciding: asyncio.Future[list[Record]] | None = None
        self._detected = 0
        self._pool: ProcessPoolExecutor | None = None
        self._learned_at = time.monotonic()
        self._due = False  # health has changed since the last decision began
        # Of the last decisions: when it was detected, planned and in the log (this host's monotonic clock, ns).
        self.events: deque[dict[str, Any]] = deque(maxlen=_EVENTS_KEPT)

    def describe(self) -> dict[str, Any]:
        """Returns what `theseus status` and `theseus top` show of it."""
        monitor = self._monitor
        return {
            "judges": monitor is not None,
            "health": None if monitor is None else monitor.health.tolist(),
            "capacity": None if monitor is None else monitor.capacity.tolist(),
            "map": self._published.healing,
            "events": list(self.events),
            "flows": self._sums.rows()["flows"],
        }

    def tick(self) -> None:
        """Reads, tells the leader's agent, and where that is here: judges and publishes."""
        agent = self._agent
        self._sums.read(agent.rank_flow_pages())
        agent.exchange.publish({**self._sums.rows(), "probes": agent.prober.rows()})
        self._read_log()
        if agent.replica is None or agent.members is None or not agent.replica.is_leader:
            self._observer = self._monitor = None  # another one judges
            return
        hosts = [host for host, _ in agent.members.rows]
        # Of a host that cannot be reached the last ones stay: they hold nothing new.
        self._rows |= agent.exchange.rows
        rows = self._rows
        if len(hosts) < 2 or any(host not in rows or not rows[host]["identity"] for host in hosts):
            return
        rails = min(len(rows[host]["rates"]) for host in hosts)
        if rails == 0:
            return
        capacity = _capacity(rows, hosts, rails)
        if self._observer is None or self._monitor is None:
            self._planner(Cluster(len(hosts), rails))
            self._observer = Observer(hosts)
            # Where another agent judged before, it goes on from there.
            known = {divmod(index, rails): value for index, value in self._published.health.items()}
            self._monitor = Monitor(len(hosts), rails, capacity, health=known, usual=self._published.capacity)
        probes = self._observer.probes(rows, self._monitor.capacity)
        if self._monitor.step(time.monotonic(), self._observer.observe(rows), probes) is not None:
            self._due = True
            self._detected = time.monotonic_ns()
        self._ask_for_probes(self._monitor, hosts)
        self._say_what_was_learned(self._monitor)
        ranks = {int(rows[host]["ranks"]) for host in hosts}
        if self._due and self._deciding is None and len(ranks) == 1:
            self._decide(Cluster(len(hosts), rails, ranks.pop()))

    def _say_what_was_learned(self, monitor: Monitor) -> None:
        """Now and then, and only while nothing is wrong."""
        now = time.monotonic()
        if now < self._learned_at + _LEARNED_SECONDS or (monitor.health < 1).any():
            return
        self._learned_at = now
        for record in learned(self._published, monitor.usual):
            self._agent.propose(record)

    def _ask_for_probes(self, monitor: Monitor, hosts: list[str]) -> None:
        """Where probes may not fill a NIC, each beside one of a rail that is sound at both ends."""
        health, capacity = monitor.health, monitor.capacity
        for src, dst, rail in monitor.probes:
            if 0 < capacity[src, rail] <= _FILLED_BY_A_PROBE:
                self._agent.prober.want(hosts[src], hosts[dst], rail)
                continue
            sound = np.flatnonzero((health[src] == 1) & (health[dst] == 1))
            reference = next((int(other) for other in sound if other != rail), None)
            if reference is not None:
                self._agent.prober.want(hosts[src], hosts[dst], rail, reference)

    def _planner(self, cluster: Cluster) -> ProcessPoolExecutor:
        """A process of its own plans, since the agent has to answer meanwhile, in time for Raft.

        It plans once for nothing, so that the solver is there when it is needed.
        """
        if self._pool is None:
            self._pool = make_worker()
            health = np.ones((cluster.hosts, cluster.rails))
            health[0, 0] = 0.25
            self._pool.submit(decide, Published(), health, cluster, self._rule)
        return self._pool

    def close(self) -> None:
        """Ends the planner."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _read_log(self) -> None:
        path = self._agent.log_path
        if self._reader is None:
            if not path.exists():
                return
            try:
                self._reader = _core.SharedLogReader(str(path))
            except TheseusError:
                return  # half made
        while (record := self._reader.next()) is not None:
            before = self._published.healing
            self._published.take(_core.decode_record(record))
            if self._published.healing != before and self.events and "in_log" not in self.events[-1]:
                self.events[-1] |= {"in_log": time.monotonic_ns(), "map": self._published.healing}

    def _decide(self, cluster: Cluster) -> None:
        """Plans, then proposes what came of it."""
        assert self._monitor is not None
        self._due = False
        health = self._monitor.health
        published = copy.deepcopy(self._published)
        loop = asyncio.get_running_loop()
        planner = self._planner(cluster)
        self._deciding = loop.run_in_executor(planner, decide, published, health, cluster, self._rule)
        self._deciding.add_done_callback(self._propose)

    def _propose(self, decided: asyncio.Future[list[Record]]) -> None:
        self._deciding = None
        if decided.cancelled():
            return
        try:
            records = decided.result()
            for record in records:
                self._agent.propose(record)
            if any(record["name"] == HEALING for record in records):
                self.events.append({"detected": self._detected, "planned": time.monotonic_ns()})
        except Exception:
            _log.exception("no schedules for the health at hand")
            self._due = True


def _capacity(rows: dict[str, Any], hosts: list[str], rails: int) -> Any:
    """Bytes a second of each NIC, where all hosts say so; None: to be learned."""
    rates = np.array([rows[host]["rates"][:rails] for host in hosts], dtype=np.float64)
    return rates if (rates > 0).all() else None
