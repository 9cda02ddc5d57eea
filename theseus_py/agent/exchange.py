"""What the agents' monitors tell each other: small dicts, from every agent to the leader's, the latest only.

Nothing queues: while a host's last rows are still under way, newer ones take the place of those that wait.
"""

from __future__ import annotations

import json
from typing import Any

from theseus_py.agent.channel import Channel, Kind

__all__ = ["Exchange", "Rows"]

Rows = dict[str, Any]
_LONGEST_ROWS = 1 << 20


class Exchange:
    """One agent's part. At the leader's agent `rows` has the latest of every host, its own among them."""

    def __init__(self, host: str, channel: Channel) -> None:
        self._host = host
        self._channel = channel
        self.rows: dict[str, Rows] = {}
        self._latest: Rows | None = None

    def publish(self, rows: Rows) -> None:
        """Says what holds here now: anything JSON. It goes out with the next `send`."""
        self._latest = rows

    def send(self, leader: str | None) -> None:
        """Passes the latest rows on to the leader's agent, unless the last ones are still under way."""
        if self._latest is None or leader is None:
            return
        if leader == self._host:
            self.rows[self._host] = self._latest
        elif self._channel.backlog(leader) > 0:
            return
        else:
            payload = json.dumps(self._latest).encode()
            if len(payload) <= _LONGEST_ROWS:
                self._channel.send(leader, Kind.ROWS, payload)
        self._latest = None

    def receive(self, host: str, payload: bytes) -> None:
        """Takes another agent's rows. ValueError: they are none."""
        rows = json.loads(payload)
        if len(payload) > _LONGEST_ROWS or not isinstance(rows, dict):
            raise ValueError("rows are a dict")
        self.rows[host] = rows

    def forget(self, host: str) -> None:
        """Drops the rows of a host that cannot be reached."""
        self.rows.pop(host, None)
