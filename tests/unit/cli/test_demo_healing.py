"""The demo's second half without its job: sums that no order changes, the story of events, and the report."""

from __future__ import annotations

import json
import os
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from theseus_py.demo.healing import report
from theseus_py.demo.healing.model import Model, round_gradient
from theseus_py.demo.healing.run import FRACTION, LAYOUT, NIC, Outcome
from theseus_py.demo.healing.screen import Screen
from theseus_py.demo.healing.story import Step, Story

SLOW = NIC[0] * LAYOUT.rails + NIC[1]


def step(number: int, begin: float, schedule: str = "ring", network: float = 0.1) -> Step:
    return Step(number, begin, begin + 0.2, begin + 0.2 + network, 0.01, 1.0 / (1 + number), schedule)


def update(name: str, index: int, value: float) -> dict[str, Any]:
    return {"kind": "update", "name": name, "elements": [[index, value]]}


def take(story: Story, each: Step, ranks: range = range(LAYOUT.ranks)) -> None:
    for rank in ranks:
        story.take_step(rank, each)


def told_story() -> Story:
    """Six healthy iterations, two slow ones, three on a plan, one on it with the NIC whole, two back to normal."""
    story = Story(LAYOUT.ranks, NIC, LAYOUT.rails)
    for number in range(6):
        take(story, step(number, float(number)))
    story.capped(6.0, FRACTION)
    take(story, step(6, 6.0, network=1.0))
    story.take_aid(6.3)
    story.take_record(6.4, update("nic_health", SLOW, 0.0625))
    story.take_record(6.5, update("healing", 0, 3.0))
    take(story, step(7, 7.3, network=0.4))
    for number in range(8, 11):
        take(story, step(number, float(number), "heal.3.AllReduce.262144", network=0.11))
    story.restored(11.0)
    take(story, step(11, 11.0, "heal.3.AllReduce.262144", network=0.11))
    story.take_record(12.0, update("nic_health", SLOW, 1.0))
    for number in range(12, 14):
        take(story, step(number, float(number)))
    story.fingerprints = dict.fromkeys(range(LAYOUT.ranks), 7)
    return story


def outcome(story: Story) -> Outcome:
    return Outcome(story, list(story.losses), 7, [])


def test_rounded_gradients_add_up_to_the_same_bits_in_every_order() -> None:
    """What makes 'the same loss' exact: also for gradients that are too large or tiny."""
    numbers = np.random.default_rng(1)
    parts = (numbers.standard_normal((4, 4096)) * 10.0 ** numbers.integers(-7, 3, (4, 4096))).astype(np.float32)
    for part in parts:
        round_gradient(part)
    sums = {(((a + b) + c) + d).tobytes() for a, b, c, d in permutations(parts)}
    sums.add(((parts[0] + parts[3]) + (parts[1] + parts[2])).tobytes())
    assert len(sums) == 1
    assert np.isfinite(parts).all()


def test_the_model_learns_and_is_the_same_for_the_same_seed() -> None:
    """Two trainings of one seed end with the same weights; another seed gives others; the loss falls."""

    def train(seed: int) -> tuple[list[float], int]:
        model = Model(seed)
        gradient, losses = np.zeros_like(model.weights), []
        for number in range(12):
            losses.append(model.gradient(number, 0, gradient))
            model.update(gradient)
        return losses, model.fingerprint()

    losses, fingerprint = train(1)
    assert train(1) == (losses, fingerprint)
    assert train(2)[1] != fingerprint
    assert losses[-1] < losses[0] / 2


def test_the_story_is_told_in_order() -> None:
    """Every event once, each with a sentence, and iterations counted to the state they ran in."""
    story = told_story()
    names = [event.name for event in story.events]
    expected = ["capped", "first aid", "detected", "published", "switched", "restored", "cleared", "recovered"]
    assert names == expected
    assert all(event.sentence for event in story.events)
    assert {phase.name: len(phase.steps) for phase in story.phases()} == {
        "healthy": 3,
        "capped, before the switch": 2,
        "capped, after it": 3,
        "restored": 1,
        "recovered": 2,
    }
    assert story.delay("switched") == pytest.approx(2.2)


def test_what_other_nics_do_is_no_detection() -> None:
    """Another NIC's mark, and a plan that was in use before, count neither as found nor as switched."""
    story = Story(LAYOUT.ranks, NIC, LAYOUT.rails)
    take(story, step(0, 0.0))
    story.take_record(0.5, update("nic_health", SLOW + 1, 0.5))
    story.take_record(0.6, update("healing", 0, 1.0))
    story.capped(1.0, FRACTION)
    take(story, step(1, 1.0, "heal.1.AllReduce.262144"))
    assert [event.name for event in story.events] == ["capped"]
    assert not story.all_switched


def test_a_nic_that_was_marked_before_counts_as_found() -> None:
    """On a busy machine agents may have marked the very NIC already: nobody waits for a mark that never comes."""
    story = Story(LAYOUT.ranks, NIC, LAYOUT.rails)
    take(story, step(0, 0.0))
    story.take_record(0.5, update("nic_health", SLOW, 0.5))
    story.capped(1.0, FRACTION)
    take(story, step(1, 1.0, "heal.1.AllReduce.262144"))
    assert story.all_switched


def test_one_rank_on_another_schedule_is_a_fault() -> None:
    """All ranks have to switch."""
    story = Story(LAYOUT.ranks, NIC, LAYOUT.rails)
    story.capped(0.0, FRACTION)
    story.take_record(0.1, update("nic_health", SLOW, 0.0))
    take(story, step(0, 1.0, "heal.1.AllReduce.262144"), range(1, LAYOUT.ranks))
    take(story, step(0, 1.0), range(1))
    story.fingerprints = dict.fromkeys(range(LAYOUT.ranks), 7)
    assert "3 of 4 ranks switched" in outcome(story).faults()[0]


def test_other_losses_weights_or_agents_left_are_faults() -> None:
    good = outcome(told_story())
    assert good.faults() == []
    lost = outcome(told_story())
    lost.reference_losses[3] = np.nextafter(lost.reference_losses[3], 2.0)
    assert "losses" in lost.faults()[0]
    torn = outcome(told_story())
    torn.story.fingerprints[2] = 8
    assert "weights" in torn.faults()[0]
    left = outcome(told_story())
    left.agents_left = [4711]
    assert "4711" in left.faults()[0]


def test_the_table_compares_with_healthy_and_with_the_floor() -> None:
    """The floor of an iteration: compute stays, and the network's part gets slower by the floor of AllReduce."""
    lines = {line.name: line for line in report.lines(outcome(told_story()))}
    assert lines["healthy"].ratio == 1
    assert lines["capped, after it"].ratio == pytest.approx(0.31 / 0.3)
    least = lines["capped, after it"].floor
    assert least == pytest.approx(1 + (report.network_floor() - 1) / 3)
    assert 1.05 < report.network_floor() < 1.07
    assert lines["capped, before the switch"].ratio > 2


def test_report_shows_everything(tmp_path: Path) -> None:
    """Table, verdict, JSON, a trace with the events in it and a real PNG."""
    pytest.importorskip("matplotlib")
    whole = outcome(told_story())
    whole.contrast = told_story()
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(report.setup_text())
    console.print(report.render(whole))
    text = console.export_text()
    for part in ("stands for a GPU", "same cap, healing off", "switched 2200 ms", "OK: the job healed itself"):
        assert part in text.replace("\n", " ")
    assert json.loads(json.dumps(report.to_dict(whole)))["faults"] == []
    report.write_trace(whole, tmp_path / "trace.json")
    marks = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [mark["name"] for mark in marks] == [event.name for event in whole.story.events]
    report.write_picture(whole, tmp_path / "healing.png")
    assert (tmp_path / "healing.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("terminal", [True, False])
def test_the_screen_explains_each_event(terminal: bool) -> None:
    """On a terminal and in a file, every event's sentence is printed once."""
    with open(os.devnull, "w") as nowhere:
        console = Console(width=300, record=True, file=nowhere, force_terminal=terminal)
        story = told_story()
        with Screen(console) as screen:
            screen.look(story, "capped")
            screen.look(story, "restored")
        text = console.export_text()
    for event in story.events:
        assert text.count(event.sentence) == 1
