"""A plain fluid simulator: progressive filling from scratch at every event. Slow, short, and its own judge of right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from flowsim import Flow, Task


@dataclass
class Scenario:
    """What is simulated, in the words of flowsim."""

    capacities: list[float]
    activities: list[Flow | Task]
    executors: int = 0
    changes: list[tuple[int, float, float]] = field(default_factory=list)  # link, time, capacity
    contention: float = 0.0  # of every link


def fair_rates(flows: Sequence[tuple[Sequence[int], int, float]], capacities: Sequence[float]) -> list[float]:
    """Rates of flows (path, priority, weight): all of a priority grow together until they meet a full link."""
    rates = [0.0] * len(flows)
    left = list(capacities)
    for priority in sorted({each[1] for each in flows}):
        growing = {i for i, each in enumerate(flows) if each[1] == priority}
        while growing:
            loads = [math.fsum(flows[i][2] for i in growing if link in flows[i][0]) for link in range(len(left))]
            step = min(left[link] / load for link, load in enumerate(loads) if load > 0)
            for i in growing:
                rates[i] += step * flows[i][2]
            for link, load in enumerate(loads):
                left[link] -= step * load
            full = {link for link, load in enumerate(loads) if load > 0 and left[link] <= 1e-12 * capacities[link]}
            for link in full:
                left[link] = 0.0
            growing = {i for i in growing if not full & set(flows[i][0])}
    return rates


class Reference:
    """Runs a scenario; `start` and `finish` by activity, infinite for what never came to it."""

    def __init__(self, scenario: Scenario) -> None:
        count = len(scenario.activities)
        self.start = [math.inf] * count
        self.finish = [math.inf] * count
        self._scenario = scenario
        self._left = [each.size if isinstance(each, Flow) else each.duration for each in scenario.activities]
        self._queued: dict[int, float] = {}  # task: since when
        self._moving_from: dict[int, float] = {}  # flow: when its latency is over
        self._running: dict[int, float] = {}  # task: when it ends
        self._capacities = list(scenario.capacities)
        self._changes = sorted(scenario.changes, key=lambda change: change[1])
        self._now = 0.0
        self._run()

    def _run(self) -> None:
        while True:
            # Executors choose once all that is ready at this instant has queued.
            while self._settle() or self._dispatch():
                pass
            rates = self._rates()
            next_time = min(self._times(rates), default=math.inf)
            if next_time == math.inf:
                return
            for flow, rate in rates.items():
                self._left[flow] -= rate * (next_time - self._now)
            self._now = next_time
            for flow, rate in rates.items():
                # One who would end within the next 1e-9 of the present time ends now.
                if self._left[flow] <= rate * 1e-9 * self._now:
                    self._left[flow] = 0.0

    def _settle(self) -> bool:
        """Do what is due now; True if anything was."""
        before = (list(self.start), list(self.finish), len(self._queued), len(self._moving_from), len(self._changes))
        while self._changes and self._changes[0][1] <= self._now:
            link, _, capacity = self._changes.pop(0)
            self._capacities[link] = capacity
        for i, each in enumerate(self._scenario.activities):
            ready = each.start <= self._now and all(self.finish[other] <= self._now for other in each.after)
            if not ready or self.finish[i] < math.inf:
                continue
            if isinstance(each, Flow):
                self._settle_flow(i, each)
            else:
                self._settle_task(i, each)
        after = (list(self.start), list(self.finish), len(self._queued), len(self._moving_from), len(self._changes))
        return before != after

    def _settle_flow(self, i: int, flow: Flow) -> None:
        if self.start[i] == math.inf:
            self.start[i] = self._now
            self._moving_from[i] = self._now + flow.latency
        if self._moving_from[i] <= self._now and (self._left[i] <= 0 or not flow.path):
            self.finish[i] = self._now

    def _settle_task(self, i: int, task: Task) -> None:
        if i in self._running:
            if self._running[i] <= self._now:
                self.finish[i] = self._now
                del self._running[i]
        elif task.executor is None:
            self.start[i] = self._now
            self._running[i] = self._now + task.duration
        else:
            self._queued.setdefault(i, self._now)

    def _dispatch(self) -> bool:
        """Give free executors a task; True if any got one."""
        before = len(self._running)
        tasks = self._scenario.activities
        for executor in range(self._scenario.executors):
            if any(tasks[i].executor == executor for i in self._running):  # type: ignore[union-attr]
                continue
            mine = [i for i in self._queued if tasks[i].executor == executor]  # type: ignore[union-attr]
            if mine:
                task = min(mine, key=lambda i: (tasks[i].priority, self._queued[i], i))
                del self._queued[task]
                self.start[task] = self._now
                self._running[task] = self._now + self._left[task]
        return len(self._running) > before

    def _rates(self) -> dict[int, float]:
        moving = [i for i, since in self._moving_from.items() if since <= self._now and self.finish[i] == math.inf]
        flows = [self._scenario.activities[i] for i in moving]
        asked = [(each.path, each.priority, each.weight) for each in flows if isinstance(each, Flow)]
        crowds = [sum(link in path for path, _, _ in asked) for link in range(len(self._capacities))]
        shrunk = [1 + self._scenario.contention * max(0, crowd - 1) for crowd in crowds]
        capacities = [capacity / by for capacity, by in zip(self._capacities, shrunk, strict=True)]
        return dict(zip(moving, fair_rates(asked, capacities), strict=True))

    def _times(self, rates: dict[int, float]) -> list[float]:
        """When something happens next, if nothing happens before."""
        times = [self._now + self._left[flow] / rate for flow, rate in rates.items() if rate > 0]
        times += [change[1] for change in self._changes]
        times += [each.start for each in self._scenario.activities]
        times += [*self._moving_from.values(), *self._running.values()]
        return [time for time in times if time > self._now and time < math.inf]
