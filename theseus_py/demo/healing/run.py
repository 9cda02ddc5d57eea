"""Runs the job: a healthy stretch, a NIC that gets slow, one that is whole again, and the same run without all that."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import theseus_py
from theseus_py import _core
from theseus_py.demo.healing.model import HIDDEN, WIDTH
from theseus_py.demo.healing.rank import RankOptions
from theseus_py.demo.healing.story import WARM_UP, Step, Story
from theseus_py.demo.healing.watch import JobWatch, wait_for_agents_to_end
from theseus_py.spawn import Layout, Report, python_command, spawn

LAYOUT = Layout(ranks=4, hosts=4, rails=4)
RATE = 25_000_000  # bytes a second of each NIC: 200 Mbit/s
NIC = (1, 2)
FRACTION = 0.1
GRADIENT_BYTES = 4 * 2 * WIDTH * HIDDEN
# An all-reduce sends and receives 2 (n - 1) / n of the vector at each host.
NETWORK_SECONDS = 2 * (LAYOUT.hosts - 1) / LAYOUT.hosts * GRADIENT_BYTES / (LAYOUT.rails * RATE)
COMPUTE_SECONDS = 2 * NETWORK_SECONDS
# Only keeps a defect from hanging the demo.
_JOB_SECONDS = 180.0

Look = Callable[[Story, str], None]


@dataclass(frozen=True)
class Timeline:
    """Seconds of each stretch; `patience` more are waited for what has not happened by then."""

    healthy: float = 8.0
    capped: float = 8.0
    restored: float = 2.0  # after the normal schedule came back
    calm_patience: float = 10.0  # for NICs that look slow without a cap, as on a busy machine
    patience: float = 40.0
    return_patience: float = 25.0
    contrast_steps: int = 5  # under the cap, of a job that does not heal; 0: no such job


QUICK = Timeline(healthy=3.0, capped=3.0, restored=0.5, return_patience=2.0, contrast_steps=0)


@dataclass
class Outcome:
    """The run, and the two it is compared with."""

    story: Story
    reference_losses: list[float]
    reference_fingerprint: int
    trace: list[dict[str, Any]]
    contrast: Story | None = None
    seconds: float = 0.0
    agents_left: list[int] = field(default_factory=list)

    def faults(self) -> list[str]:
        """One sentence for each thing that is not right; empty when all is."""
        story, found = self.story, []
        if not story.all_switched:
            found.append(f"{len(story.switched)} of {story.ranks} ranks switched to a plan around the slow NIC")
        if story.losses != self.reference_losses:
            found.append("the losses are not those of the run without a slow NIC")
        if set(story.fingerprints.values()) != {self.reference_fingerprint}:
            found.append("the weights are not those of the run without a slow NIC")
        if self.agents_left:
            found.append(f"agents did not end with the job: processes {self.agents_left}")
        return found


class _Director:
    """Decides after each of rank 0's steps what happens next."""

    def __init__(self, job: str, timeline: Timeline, story: Story, watch: JobWatch, stop_file: Path) -> None:
        self._job, self._timeline, self._story, self._watch, self._stop_file = job, timeline, story, watch, stop_file
        self.phase = "starting"
        self._since = 0.0

    def after_step(self) -> None:
        now, story, times = time.monotonic(), self._story, self._timeline
        spent = now - self._since
        late = spent > times.patience
        if self.phase == "starting":
            self._enter("healthy", now)
        elif self.phase == "healthy" and spent >= times.healthy and (self._calm(spent) or late):
            set_speed(self._job, FRACTION)
            story.capped(now, FRACTION)
            self._enter("capped", now)
        elif self.phase == "capped" and spent >= times.capped and (story.all_switched or late):
            set_speed(self._job, 1.0)
            story.restored(now)
            self._enter("restored", now)
        elif self.phase == "restored":
            back = story.all_returned and now - story.times["recovered"] >= times.restored
            if back or spent > times.return_patience:
                self._stop_file.touch()
                self._enter("ending", now)

    def _calm(self, spent: float) -> bool:
        """Whether agents are there and all NICs look healthy to them; on a busy machine that may take a while."""
        calm = not self._story.healing or spent >= self._timeline.healthy + self._timeline.calm_patience
        return self._watch.ready and calm

    def _enter(self, phase: str, now: float) -> None:
        self.phase, self._since = phase, now


def set_speed(job: str, fraction: float) -> None:
    """Sets the speed of the NIC that the demo is about. What a failing cable does, the job's processes not knowing."""
    host, rail = NIC
    _core.set_nic_rate(f"{_prefix(job)}{host}", rail, RATE * fraction)


def _prefix(job: str) -> str:
    """Virtual hosts of equal names are one host, also those of another job: each job has names of its own."""
    return f"{job}-host"


def _layout(job: str) -> Layout:
    return replace(LAYOUT, prefix=_prefix(job))


def _new_job() -> str:
    return f"demo-{secrets.token_hex(4)}"


def run(timeline: Timeline, look: Look) -> Outcome:
    """The whole of it. Raises RankFailed, which names the rank and the reason. `look(story, phase)`: something new."""
    begin = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="theseus-demo-"))
    try:
        story = _new_story()
        left = _heal(timeline, story, folder, look)
        outcome = Outcome(story, [], 0, _trace_events(folder), agents_left=left)
        look(story, "the same run without a slow NIC")
        reference = _reference(len(story.losses), story.ranks)
        outcome.reference_losses = reference.losses
        outcome.reference_fingerprint = reference.fingerprints.get(0, 0)
        if timeline.contrast_steps:
            look(story, "the same cap without Theseus's healing")
            outcome.contrast = _contrast(timeline.contrast_steps, folder)
        outcome.seconds = time.monotonic() - begin
        return outcome
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _heal(timeline: Timeline, story: Story, folder: Path, look: Look) -> list[int]:
    """The run that heals; returns agents that do not end, which are then stopped."""
    job = _new_job()
    state, stop_file = folder / "state", folder / "stop"
    environment = {
        "THESEUS_JOB_ID": job,
        "THESEUS_STATE_DIR": str(state),
        "THESEUS_AGENT": theseus_py.AGENT_COMMAND,
        "THESEUS_ADAPT": "on",
        "THESEUS_FIRST_AID": "1",
        "THESEUS_TRACE": str(folder / "trace.%p.json"),
    }
    left: list[int] = []
    try:
        with JobWatch(job, story.take_record) as watch:
            director = _Director(job, timeline, story, watch, stop_file)

            def on_report(rank: int, message: Report) -> None:
                _take(story, rank, message)
                if rank == 0 and message["kind"] == "step":
                    director.after_step()
                    look(story, director.phase)

            options = RankOptions(compute=COMPUTE_SECONDS, stop_file=str(stop_file))
            _spawn(options, _layout(job), environment | {"THESEUS_NIC_RATE": _rate_text()}, on_report)
    finally:
        left = wait_for_agents_to_end(job)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
    return left


def _reference(steps: int, ranks: int) -> Story:
    """As many steps from the same seed in shared memory of one host, with no pauses and nothing slow."""
    story = _new_story()
    _spawn(
        RankOptions(steps=steps),
        Layout(ranks),
        {"THESEUS_AGENT": "off", "THESEUS_ADAPT": "off", "THESEUS_TRACE": ""},
        lambda rank, message: _take(story, rank, message),
    )
    return story


def _contrast(steps: int, folder: Path) -> Story:
    """The same cap on a job with neither agents nor first aid: what any library with a fixed plan does."""
    job, story, stop_file = _new_job(), _new_story(), folder / "stop-contrast"

    def on_report(rank: int, message: Report) -> None:
        _take(story, rank, message)
        if rank != 0 or message["kind"] != "step":
            return
        if message["step"] == 2 * WARM_UP:
            set_speed(job, FRACTION)
            story.capped(time.monotonic(), FRACTION)
        elif message["step"] == 2 * WARM_UP + steps:
            stop_file.touch()

    environment = {
        "THESEUS_AGENT": "off",
        "THESEUS_ADAPT": "off",
        "THESEUS_FIRST_AID": "0",
        "THESEUS_TRACE": "",
        "THESEUS_NIC_RATE": _rate_text(),
    }
    _spawn(RankOptions(compute=COMPUTE_SECONDS, stop_file=str(stop_file)), _layout(job), environment, on_report)
    return story


def _spawn(
    options: RankOptions, layout: Layout, environment: Mapping[str, str], on_report: Callable[[int, Report], None]
) -> None:
    command = python_command("theseus_py.demo.healing.rank", json.dumps(asdict(options)))
    spawn(command, layout, on_report=on_report, environment=environment, timeout=_JOB_SECONDS)


def _take(story: Story, rank: int, message: Report) -> None:
    if message["kind"] == "step":
        story.take_step(rank, Step(**{name: value for name, value in message.items() if name != "kind"}))
    elif message["kind"] == "aid":
        story.take_aid(message["at"])
    elif message["kind"] == "done":
        story.fingerprints[rank] = message["fingerprint"]


def _new_story() -> Story:
    return Story(LAYOUT.ranks, NIC, LAYOUT.rails)


def _rate_text() -> str:
    return f"{8 * RATE // 1_000_000}Mbit"


def _trace_events(folder: Path) -> list[dict[str, Any]]:
    """The Chrome traces of all ranks."""
    events: list[dict[str, Any]] = []
    for file in sorted(folder.glob("trace.*.json")):
        with contextlib.suppress(ValueError, KeyError):
            events += json.loads(file.read_text())["traceEvents"]
    return events
