"""Prometheus: what the agent knows, at a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from theseus_py.agent.status import status_of

if TYPE_CHECKING:
    from theseus_py.agent.agent import Agent

__all__ = ["families_of", "serve"]

_ANSWER_SECONDS = 2.0
_LONGEST_ARRAY = 1024  # elements of an attribute that are shown one by one
_Family = TypeVar("_Family", GaugeMetricFamily, CounterMetricFamily)


def families_of(status: dict[str, Any]) -> list[Metric]:
    """Returns a status as metric families."""
    labels = {"job": status["job"], "host": status["host"]}
    names, values = list(labels), list(labels.values())

    def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=names)
        family.add_metric(values, value)
        return family

    position = CounterMetricFamily("theseus_log_records", "Records of the job's log that are agreed on", labels=names)
    position.add_metric(values, status["position"])
    attributes = GaugeMetricFamily(
        "theseus_attribute", "Newest values of the exogenous attributes", labels=[*names, "attribute", "index"]
    )
    for attribute in status["attributes"]:
        if attribute["hook"] == "exogenous":
            for index, value in enumerate(attribute["values"][:_LONGEST_ARRAY]):
                attributes.add_metric([*values, attribute["name"], str(index)], value)
    members = status["members"]
    return [
        *_communicator_families(status["communicators"], names, values),
        position,
        attributes,
        gauge("theseus_log_readable_records", "Records that the local ranks can read", status["readable"]),
        gauge("theseus_log_frozen", "1 where the local ranks get no new records", float(bool(status["frozen"]))),
        gauge("theseus_agent_quorum", "1 where a majority of the agents is reached", float(status["has_quorum"])),
        gauge("theseus_agent_leader", "1 at the leader's agent", float(status["leader"] == status["host"])),
        gauge("theseus_agent_members", "Agents of the job", len(members)),
        gauge("theseus_agent_connected", "Agents that this one is connected to, itself included",
              sum(member["connected"] for member in members)),
        gauge("theseus_ranks", "Processes of the job on this host", len(status["ranks"])),
        gauge("theseus_schedules", "Schedules that are not removed",
              sum(not schedule["removed"] for schedule in status["schedules"])),
        gauge("theseus_plans_missing", "Plans that are still being fetched", len(status["missing_plans"])),
    ]  # fmt: skip


def _communicator_families(communicators: list[dict[str, Any]], names: list[str], values: list[str]) -> list[Metric]:
    """Of each communicator, by local rank; the schedules in use by collective and size."""
    names = [*names, "communicator", "name", "rank"]

    def family(kind: type[_Family], name: str, text: str, value: Callable[[dict[str, Any]], float]) -> _Family:
        made = kind(name, text, labels=names)
        for each in communicators:
            for rank in each["local"]:
                made.add_metric([*values, each["id"], each["name"], str(rank["rank"])], value(rank))
        return made

    tte = GaugeMetricFamily(
        "theseus_tte_seconds", "From a call to its first instruction, of sampled requests", labels=[*names, "quantile"]
    )
    in_use = GaugeMetricFamily(
        "theseus_schedule_in_use",
        "Request id since which requests of these sizes run this schedule",
        labels=[*names[:-1], "collective", "from_bytes", "to_bytes", "schedule", "origin"],
    )
    for each in communicators:
        of_communicator = [*values, each["id"], each["name"]]
        for rank in each["local"]:
            for quantile, key in (("0.5", "p50"), ("0.99", "p99")):
                if rank["tte"]["samples"] > 0:
                    tte.add_metric([*of_communicator, str(rank["rank"]), quantile], rank["tte"][key])
        for row in each["schedules"]:
            place = [row["collective"], str(row["from_bytes"]), str(row["to_bytes"]), row["schedule"], row["origin"]]
            in_use.add_metric([*of_communicator, *place], row["since"])
    gauge, counter = GaugeMetricFamily, CounterMetricFamily
    return [
        family(gauge, "theseus_context_epoch", "Changes of the installed context", lambda rank: rank["epoch"]),
        family(gauge, "theseus_context_installed_records", "Records of the log in the installed context",
               lambda rank: rank["installed"]),
        family(gauge, "theseus_context_read_records", "Records of the log that the rank has read",
               lambda rank: rank["read"]),
        family(counter, "theseus_agreements", "Agreements installed", lambda rank: rank["agreements"]),
        family(gauge, "theseus_agreement_interval_requests", "Requests from the last agreement to the next (K)",
               lambda rank: rank["next_k"]),
        family(gauge, "theseus_resource_bytes", "What the resource tree holds",
               lambda rank: rank["resources"]["bytes"]),
        family(gauge, "theseus_resource_nodes", "Nodes of the resource tree", lambda rank: rank["resources"]["nodes"]),
        family(gauge, "theseus_report_age_seconds", "Since the rank last reported", lambda rank: rank["age"]),
        tte,
        in_use,
    ]  # fmt: skip


class _Collector(Collector):
    """Asks the event loop, since the server has threads of its own."""

    def __init__(self, agent: Agent, loop: asyncio.AbstractEventLoop) -> None:
        self._agent, self._loop = agent, loop

    def describe(self) -> list[Metric]:
        """Says nothing beforehand: the registry asks from the loop itself, which must not wait for itself."""
        return []

    def collect(self) -> list[Metric]:
        async def ask() -> dict[str, Any]:
            return status_of(self._agent)

        return families_of(asyncio.run_coroutine_threadsafe(ask(), self._loop).result(_ANSWER_SECONDS))


@contextlib.contextmanager
def serve(agent: Agent, port: int) -> Iterator[None]:
    """Serves GET /metrics while the context lasts. Only on this host: what is shown is nobody else's business."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(agent, asyncio.get_running_loop()))
    server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
