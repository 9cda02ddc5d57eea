"""One host's agent as a program: `probing.py FOLDER HOST NICS ADDRESS...`, addresses NIC by NIC, host by host.

The leader's has host 0 probe its NIC 0 towards host 1, with NIC 1 as the reference; host 0's prints each result:
bytes a second, and those of the reference. Until killed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from theseus_py.agent.agent import Agent, Life
from theseus_py.agent.channel import Address, listen_socket
from theseus_py.agent.members import Members
from theseus_py.agent.server import bind
from theseus_py.agent.state import StateFolder

PORT = 7400


class Wants:
    """The monitor of these agents."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._said = 0

    def tick(self) -> None:
        agent = self._agent
        if agent.replica is not None and agent.replica.is_leader:
            agent.prober.want("h0", "h1", 0, 1)
        for _, _, rate, reference, at in agent.prober.rows():
            if at != self._said:
                self._said = at
                print(rate, reference, flush=True)

    def describe(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


async def serve(folder: Path, host: int, rows: list[tuple[str, str]]) -> None:
    name, address = rows[host]
    state = StateFolder(folder, "probing", name)
    agent = Agent("probing", name, state, address, life=Life(stay=True), make_monitor=Wants)
    asyncio.get_running_loop().call_soon(agent._join, Members.of(b"s" * 32, rows))
    await agent.run(bind("\0probing"), listen_socket(PORT))


if __name__ == "__main__":
    nics, addresses = int(sys.argv[3]), sys.argv[4:]
    hosts = [addresses[at : at + nics] for at in range(0, len(addresses), nics)]
    members = [(f"h{number}", str(Address(each, PORT))) for number, each in enumerate(hosts)]
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), members))
