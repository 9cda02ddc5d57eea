"""Starts an agent: name, folder, port, then the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from theseus_py.agent.server import bind
from theseus_py.agent.state import StateFolder, state_root
from theseus_py.agent.wire import socket_name

if TYPE_CHECKING:
    from theseus_py.agent.agent import Agent, MakeMonitor, Monitor

__all__ = ["Options", "run", "setting"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What an agent is told; the rest comes from the settings."""

    job: str
    host: str
    port: int = 0
    keep: bool = False
    stay: bool = False
    metrics_port: int | None = None  # None: the setting's


def setting(name: str) -> str:
    """Returns the value of a setting of the library."""
    from theseus_py import _core

    return next(value for each, value, *_ in _core.describe_settings() if each == name)


def healing_monitor() -> MakeMonitor | None:
    """Returns what makes the monitor that THESEUS_HEALING asks for; None for off."""
    rule = setting("THESEUS_HEALING")
    if rule == "off":
        return None

    def make(agent: Agent) -> Monitor:
        from theseus_py.agent.healing import HealingMonitor
        from theseus_py.healing.publish import GainRule, ThetaRule

        return HealingMonitor(agent, ThetaRule() if rule == "theta" else GainRule())

    return make


def run(options: Options, make_monitor: MakeMonitor | None = None) -> int:
    """Runs an agent to its end and returns an exit status: 0 also where another one serves this job and host.

    `make_monitor`: instead of the one of THESEUS_HEALING.
    """
    # First of all: of several processes that start one at once, all but one end here.
    listener = bind(socket_name(options.job, options.host))
    if listener is None:
        return 0
    try:
        state = StateFolder(state_root(setting("THESEUS_STATE_DIR")), options.job, options.host)
        asyncio.run(_serve(options, state, listener, make_monitor or healing_monitor()))
    except RuntimeError as error:
        _log.error("%s", error)
        return 1
    return 0


async def _serve(
    options: Options, state: StateFolder, listener: socket.socket, make_monitor: MakeMonitor | None
) -> None:
    from theseus_py.agent.agent import Agent, Life
    from theseus_py.agent.channel import Address

    if not state.belongs_to_living():
        state.forget()  # of a job that is over
    channel_listener = _listen(state, options.port)
    address = Address(_local_addresses(), channel_listener.getsockname()[1])
    agent = Agent(
        options.job,
        options.host,
        state,
        str(address),
        life=Life(keep=options.keep, stay=options.stay),
        make_monitor=make_monitor,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.stop)
    with _metrics(agent, options):
        await agent.run(listener, channel_listener)


def _metrics(agent: Agent, options: Options) -> contextlib.AbstractContextManager[object]:
    port = int(setting("THESEUS_METRICS_PORT")) if options.metrics_port is None else options.metrics_port
    if port == 0:
        return contextlib.nullcontext()
    from theseus_py.agent.metrics import serve

    return serve(agent, port)


def _listen(state: StateFolder, port: int) -> socket.socket:
    """Returns the channel's listener, at the port that the other agents may know already."""
    from theseus_py.agent.channel import listen_socket

    kept = state.load("port")
    wanted = port or (int(kept) if isinstance(kept, int) and 0 < kept < 65536 else 0)
    try:
        listener = listen_socket(wanted)
    except OSError:
        if port:
            raise RuntimeError(f"the agent cannot listen at port {port}: it is taken") from None
        listener = listen_socket(0)
    state.save("port", listener.getsockname()[1])
    return listener


def _local_addresses() -> list[str]:
    """Returns an address of each NIC that ranks here use: Raft, too, goes over all of them."""
    from theseus_py import _core

    found = []
    with contextlib.suppress(RuntimeError):
        for _, addresses in _core.local_rails():
            if addresses:
                found.append(addresses[0].rpartition(":")[0].strip("[]"))
    return found or ["127.0.0.1"]


def default_state_root() -> Path:
    """Returns where agents of this user keep their state."""
    return state_root(setting("THESEUS_STATE_DIR"))
