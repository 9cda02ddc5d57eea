"""The controller's figures for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric

from leveller.controller.server import ControllerServer

__all__ = ["publish"]


class _Collector:
    """Reads the state when it is asked, so nothing is counted twice and nothing goes stale."""

    def __init__(self, server: ControllerServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        status = self._server.state.status(time.monotonic())
        jobs: list[dict[str, object]] = status["jobs"]  # type: ignore[assignment]
        hosts: list[dict[str, object]] = status["hosts"]  # type: ignore[assignment]
        for name, key, help_text in (
            ("leveller_progress_rate", "rate", "Normalized progress rate R of a job"),
            ("leveller_ideal_seconds", "ideal", "Seconds of an iteration of a job alone on the network"),
            ("leveller_flows", "flows", "Flows of a job between hosts"),
            ("leveller_profiling", "profiling", "1 while the job runs alone at the top"),
        ):
            family = GaugeMetricFamily(name, help_text, labels=["job"])
            for job in jobs:
                value = job[key]
                if value is not None:
                    family.add_metric([str(job["job"])], float(value))  # type: ignore[arg-type]
            yield family
        level = GaugeMetricFamily("leveller_level", "Highest level of a job's flows", labels=["job"])
        for job in jobs:
            levels: list[int] = job["levels"]  # type: ignore[assignment]
            level.add_metric([str(job["job"])], max(levels, default=0))
        yield level
        refused = GaugeMetricFamily("leveller_marks_refused", "Flows not marked as asked", labels=["host"])
        for host in hosts:
            refused.add_metric([str(host["host"])], float(host["refused"]))  # type: ignore[arg-type]
        yield refused
        yield GaugeMetricFamily("leveller_agents", "Agents connected", value=len(hosts))
        yield GaugeMetricFamily("leveller_rounds", "Rounds so far", value=self._server.state.rounds)
        yield GaugeMetricFamily("leveller_round_seconds", "The last round", value=self._server.round_seconds)


def publish(server: ControllerServer, port: int, address: str = "127.0.0.1") -> None:
    """Serves the figures by HTTP, from a thread of their own. OSError: the port is taken."""
    registry = CollectorRegistry()
    registry.register(_Collector(server))
    start_http_server(port, address, registry)
