"""What happened in the run, put together from what the ranks and the job's log say. Pure: it is told everything.

Times are seconds of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

HEALING = "heal."  # how the schedules begin that agents publish
WARM_UP = 3  # steps that do not count: connections are made when first used


@dataclass(frozen=True)
class Step:
    """One iteration of one rank: it computes from `begin` to `computed`, and sums gradients up to `end`."""

    step: int
    begin: float
    computed: float
    end: float
    worked: float  # seconds of `computed` - `begin` in which it did compute
    loss: float
    schedule: str

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def network(self) -> float:
        return self.end - self.computed


@dataclass(frozen=True)
class Event:
    """Something that happened, with a sentence that says why it matters."""

    at: float
    name: str
    sentence: str


@dataclass(frozen=True)
class Phase:
    """Iterations of one state of the NIC and the schedule."""

    name: str
    steps: Sequence[Step]

    def median(self, what: str) -> float | None:
        """Returns the median of `seconds` or `network`; None without a step."""
        return statistics.median(getattr(step, what) for step in self.steps) if self.steps else None


@dataclass
class Story:
    """Takes steps, health and events as they come; knows at any time how far the healing is."""

    ranks: int
    nic: tuple[int, int]  # host and rail of the one that gets slow
    rails: int
    steps: list[list[Step]] = field(default_factory=list)  # by rank
    events: list[Event] = field(default_factory=list)
    health: dict[int, float] = field(default_factory=dict)  # host * rails + rail: value, where the log has one
    times: dict[str, float] = field(default_factory=dict)  # first time of capped, aided, marked, published, ...
    switched: dict[int, float] = field(
        default_factory=dict
    )  # by rank: begin of the first request on a healing schedule
    returned: dict[int, float] = field(default_factory=dict)  # by rank: begin of the first one on the normal schedule
    healing: int = 0
    fingerprints: dict[int, int] = field(default_factory=dict)
    maps: list[tuple[float, dict[int, float]]] = field(default_factory=list)  # changes of health, by time

    def __post_init__(self) -> None:
        self.steps = [[] for _ in range(self.ranks)]

    # --- What comes in.

    def note(self, name: str, at: float, sentence: str) -> None:
        """An event; of each name the first counts."""
        if name not in self.times:
            self.times[name] = at
            self.events.append(Event(at, name, sentence))

    def capped(self, at: float, fraction: float) -> None:
        host, rail = self.nic
        self.note(
            "capped",
            at,
            f"NIC {rail} of host{host} now gets {fraction:.0%} of its speed. The job is told nothing: its plan still "
            "sends a quarter of the data over it, and everybody waits for that quarter.",
        )
        marked = self.health.get(host * self.rails + rail, 1.0)
        if marked < 1:
            self.note(
                "detected",
                at,
                f"The agents had taken it for {marked:.2f} of healthy already: on a machine too busy to drive its "
                "virtual NICs, they look slow without any cap.",
            )

    def restored(self, at: float) -> None:
        host, rail = self.nic
        self.note("restored", at, f"NIC {rail} of host{host} is whole again. The job is told nothing of that, either.")

    def take_step(self, rank: int, step: Step) -> None:
        """The next step of a rank."""
        self.steps[rank].append(step)
        healing = step.schedule.startswith(HEALING)
        if healing and rank not in self.switched and step.computed > self.times.get("detected", float("inf")):
            self.switched[rank] = step.computed
            if len(self.switched) == self.ranks:
                self.note(
                    "switched",
                    max(self.switched.values()),
                    f"All ranks run {step.schedule}, from the same request on: they had agreed on which one. "
                    "No restart, no lost step, no line of code.",
                )
        if not healing and rank not in self.returned and step.computed > self.times.get("restored", float("inf")):
            self.returned[rank] = step.computed
            if len(self.returned) == self.ranks:
                self.note("recovered", max(self.returned.values()), f"All ranks are back on '{step.schedule}'.")

    def take_aid(self, at: float) -> None:
        """A rank's messages went over another NIC than the plan says."""
        if at > self.times.get("capped", float("inf")):
            self.note(
                "first aid",
                at,
                "Messages that wait for the slow NIC go out on other NICs of the same host. Beneath the plan, "
                "asking nobody: it keeps the job going until there is a better plan.",
            )

    def take_record(self, at: float, record: Mapping[str, Any]) -> None:
        """The next record of the job's log."""
        if record["kind"] != "update":
            return
        if record["name"] == "nic_health":
            changed = {int(index): float(value) for index, value in record["elements"]}
            self.maps.append((at, changed))
            self.health |= changed
            self._judge_health(at)
        elif record["name"] == "healing":
            self.healing = int(record["elements"][0][1])
            if self.healing and "detected" in self.times:
                self.note(
                    "published",
                    at,
                    f"The leader's agent published plans for this map (heal.{self.healing}.*): a linear program "
                    "chose how much each NIC carries, and Raft put them into every host's log.",
                )

    def _judge_health(self, at: float) -> None:
        host, rail = self.nic
        value = self.health.get(host * self.rails + rail, 1.0)
        if value < 1 and "capped" in self.times and "restored" not in self.times:
            self.note(
                "detected",
                at,
                f"The agents blame NIC {rail} of host{host} and take it for {value:.2f} of healthy: whatever goes "
                "through it is slow while data waits, and its peers are fine elsewhere.",
            )
        if value == 1 and "restored" in self.times and "detected" in self.times:
            self.note(
                "cleared", at, f"NIC {rail} of host{host} was tried again, was steady for a second, and is trusted."
            )

    # --- What comes out.

    @property
    def all_switched(self) -> bool:
        return len(self.switched) == self.ranks

    @property
    def all_returned(self) -> bool:
        return len(self.returned) == self.ranks

    @property
    def losses(self) -> list[float]:
        return [step.loss for step in self.steps[0]]

    def phases(self) -> list[Phase]:
        """Returns rank 0's iterations: healthy, slow (capped, before the switch), healed, restored, recovered."""
        late = float("inf")
        capped, restored = self.times.get("capped", late), self.times.get("restored", late)
        switched, returned = self.switched.get(0, late), self.returned.get(0, late)
        parts: dict[str, list[Step]] = {
            name: [] for name in ("healthy", "capped, before the switch", "capped, after it", "restored", "recovered")
        }
        for step in self.steps[0][WARM_UP:]:
            if step.end <= capped:
                name = "healthy"
            elif step.end <= restored:
                name = "capped, after it" if step.computed >= switched else "capped, before the switch"
            else:
                name = "recovered" if step.computed >= returned else "restored"
            parts[name].append(step)
        return [Phase(name, steps) for name, steps in parts.items()]

    def delay(self, event: str) -> float | None:
        """Returns the seconds from the cap to an event; None where there was none."""
        return self.times[event] - self.times["capped"] if {event, "capped"} <= self.times.keys() else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "steps": [[asdict(step) for step in steps] for steps in self.steps],
            "events": [asdict(event) for event in self.events],
            "health_changes": self.maps,
            "switched": self.switched,
            "returned": self.returned,
            "fingerprints": self.fingerprints,
        }
