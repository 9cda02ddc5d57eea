"""What an agent says of itself."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from theseus_py.agent.reports import communicators_of

if TYPE_CHECKING:
    from theseus_py.agent.agent import Agent

__all__ = ["answer", "status_of"]


def answer(agent: Agent, subject: str) -> str:
    """Returns the JSON that answers a query."""
    if subject != "status":
        return json.dumps({"error": f"nobody knows what '{subject}' is"})
    return json.dumps(status_of(agent), allow_nan=True)


def status_of(agent: Agent) -> dict[str, Any]:
    """Returns everything that `theseus status` shows."""
    replica, log, members = agent.replica, agent.log, agent.members
    return {
        "job": agent.job,
        "host": agent.host,
        "pid": os.getpid(),
        "address": agent.address,
        "ranks": agent.rank_pids,
        "members": []
        if members is None
        else [
            {
                "host": host,
                "address": address,
                "votes": host in members.voters,
                "connected": host == agent.host or host in agent.channel.connected,
            }
            for host, address in members.rows
        ],
        "has_quorum": replica is not None and replica.has_quorum,
        "leader": None if replica is None or not replica.has_quorum else replica.leader,
        "term": 0 if replica is None else replica.term,
        "log_id": log.log_id,
        "position": log.position,
        "readable": log.written,
        "frozen": agent.trouble or log.frozen,
        "schedules": [] if log.context is None else log.context.schedules(),
        "attributes": [] if log.context is None else log.context.attributes(),
        "communicators": communicators_of(agent.rank_reports(), time.monotonic()),
        "monitor": agent.describe_monitor(),
        "missing_plans": [f"{each:016x}" for each in agent.bodies.missing],
    }
