"""The agent's loops: look for jobs, read their logs, talk to the controller, mark. Decides nothing: see jobs.py."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from leveller.agent.config import Config
from leveller.agent.jobs import AgentJobs
from leveller.channel import Channel, Refused, connect
from leveller.core.marking import Marking
from leveller.core.model import FiveTuple
from leveller.enforce.effective import Effective, Enforcer
from leveller.jobs.processes import JobProcesses, Process
from leveller.jobs.sockets import connections, connections_of
from leveller.jobs.theseus import TheseusJobs
from leveller.probe.topology import Paths
from leveller.tracker.source import Tracker
from leveller.wire import VERSION, Ask, FlowReport, Hello, Levels, Marked, Refusal

__all__ = ["Agent", "AgentOptions"]

_log = logging.getLogger("leveller.agent")
_READ_SECONDS = 0.05
_LONGEST_RETRY = 5.0
_MOST_REFUSALS = 32


@dataclass(frozen=True)
class AgentOptions:
    """host: this host's name; `controller`: where that is; `scan`: seconds between looks for jobs and their flows;
    `fallback`: seconds without a controller after which marks are taken away; `window`: of R, None for the whole life.
    """

    host: str
    controller: tuple[str, int]
    scan: float = 0.5
    fallback: float = 300.0
    window: float | None = None


class Agent:
    """One host's agent. `run` goes on until it is cancelled; then `close` takes the marks away."""

    def __init__(
        self,
        options: AgentOptions,
        secret: bytes,
        config: Config,
        paths: Paths | None,
        enforcer: Enforcer,
        marking: Marking | None = None,
    ) -> None:
        self._options = options
        self._secret = secret
        self._config = config
        self._paths = paths
        self._enforcer = enforcer
        self._processes = JobProcesses(config.rules())
        self.jobs = AgentJobs(config.facts(), marking or Marking(), options.fallback, options.window)
        self._trackers: dict[str, tuple[Path, Tracker]] = {}
        self._channel: Channel | None = None
        self._retry = 0.1
        self._said = TheseusJobs(self._step)
        self._stepping: set[str] = set()
        self._steps: dict[str, int] = {}

    async def run(self) -> None:
        """All loops at once; where one fails, all end. OSError: another agent runs in this network namespace."""
        await self._said.listen()
        loops = [asyncio.ensure_future(each) for each in (self._look(), self._read(), self._talk())]
        try:
            await asyncio.gather(*loops)
        finally:
            for each in loops:
                each.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    def close(self) -> None:
        """Takes away what was made."""
        self._enforcer.close()
        self._said.close()
        for _, tracker in self._trackers.values():
            tracker.close()
        if self._channel is not None:
            self._channel.close()

    async def _look(self) -> None:
        while True:
            if self.look():
                self._enforce()
                if self._channel is not None:
                    self._say(self._channel, 0)
            await asyncio.sleep(self._options.scan)

    def look(self) -> bool:
        """Looks for jobs, their flows and logs once. Returns whether flows came or went."""
        found = self._processes.scan()
        for pid, job in self._said.processes.items():
            if all(pid != each.pid for each in found.setdefault(job, [])):
                found[job].append(Process(pid, 0))
        try:
            known = connections() if found else []
        except OSError as error:
            _log.warning("connections cannot be listed: %s", error)
            known = []
        flows: dict[str, dict[FiveTuple, tuple[str, ...]]] = {}
        for job, processes in found.items():
            mine = [each.flow for each in connections_of((process.pid for process in processes), known)]
            flows[job] = {flow: self._paths.path_of(flow) if self._paths else () for flow in sorted(mine)}
            self._find_log(job, processes)
        for job in self._trackers.keys() - found.keys():
            self._trackers.pop(job)[1].close()
        return self.jobs.flows(flows)

    def _find_log(self, job: str, processes: Iterable[Process]) -> None:
        """The file that the jobs file names, else what the job's first process writes its output to."""
        if job in self._trackers:
            return
        entry = self._config.jobs.get(job)
        if entry is not None and entry.log is not None:
            path: Path | None = Path(entry.log)
        else:
            path = next(filter(None, (_output_of(each.pid) for each in sorted(processes, key=lambda p: p.pid))), None)
        if path is not None:
            self._trackers[job] = (path, Tracker(path, entry.format if entry is not None else "auto"))

    async def _read(self) -> None:
        while True:
            now = time.monotonic()
            for job, (_, tracker) in self._trackers.items():
                for each in tracker.poll(now):
                    if job not in self._stepping:
                        self.jobs.iteration(job, each.step, each.time)
            if self._channel is None and self.jobs.alone(now):
                _log.warning("no controller for %g s: marks are taken away", self._options.fallback)
                self._enforce()
            await asyncio.sleep(_READ_SECONDS)

    def _step(self, job: str, step: int, seconds: float) -> None:
        """A process says itself how far it is, which is better than its log. The first rank that says a step counts."""
        self._stepping.add(job)
        if step > self._steps.get(job, 0):
            self._steps[job] = step
            self.jobs.iteration(job, step, seconds)

    async def _talk(self) -> None:
        while True:
            try:
                channel = await connect(*self._options.controller, self._secret)
            except (OSError, Refused) as error:
                _log.info("no controller: %s", error)
                await asyncio.sleep(self._retry)
                self._retry = min(_LONGEST_RETRY, 2 * self._retry)
                continue
            self._retry = 0.1
            try:
                channel.send(Hello(VERSION, self._options.host))
                self._channel = channel
                await self._serve(channel)
            except (OSError, Refused, asyncio.IncompleteReadError) as error:
                _log.info("the controller is gone: %s", error)
            finally:
                self._channel = None
                channel.close()
            await asyncio.sleep(self._retry)

    async def _serve(self, channel: Channel) -> None:
        while True:
            message = await channel.receive()
            if isinstance(message, Ask):
                self._say(channel, message.round)
            elif isinstance(message, Levels):
                if self.jobs.levels(message):
                    channel.send(_told(self._enforce()))
            else:
                raise Refused("a controller does not say that")

    def _say(self, channel: Channel, round: int) -> None:
        with suppress(OSError, Refused):
            channel.send(self.jobs.report(round, time.monotonic()))

    def _enforce(self) -> Mapping[FiveTuple, Effective]:
        return self._enforcer.apply(self.jobs.marks)


def _told(effective: Mapping[FiveTuple, Effective]) -> Marked:
    refused = [(flow, each) for flow, each in effective.items() if each.effective != each.requested]
    some = [
        Refusal(FlowReport(*flow), each.requested, each.effective, each.reason[:500])
        for flow, each in refused[:_MOST_REFUSALS]
    ]
    return Marked(len(effective) - len(refused), len(refused), some)


def _output_of(pid: int) -> Path | None:
    """The file that a process writes its output to, if it is one."""
    for descriptor in (1, 2):
        with suppress(OSError):
            entry = Path(f"/proc/{pid}/fd/{descriptor}")
            if stat.S_ISREG(os.stat(entry).st_mode):
                return Path(os.readlink(entry))
    return None
