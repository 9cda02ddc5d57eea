"""One rank of the run: a data-parallel training loop over Theseus with no word in it about NICs or healing.

What it reports beside that (schedules, first aid) is for the demo's picture alone.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from theseus_py import _core
from theseus_py.communicator import Communicator
from theseus_py.demo.healing.model import Model
from theseus_py.spawn import die_with_parent, end_with, report

_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class RankOptions:
    """`compute`: seconds of a step without the network. The run ends after `steps`, or when `stop_file` appears."""

    seed: int = 1
    compute: float = 0.0
    steps: int = 0
    stop_file: str = ""


def train(options: RankOptions) -> None:
    """Trains until told to stop; reports every step."""
    with Communicator.from_env() as communicator:
        rank, ranks = communicator.rank, communicator.ranks
        model = Model(options.seed)
        threading.Thread(target=_watch_first_aid, name="demo first aid", daemon=True).start()
        # Behind the gradient: a place for each rank's loss, and whether rank 0 wants to stop. Sums of one value and
        # zeros are exact, so all ranks get both with the gradients.
        vector = np.zeros(model.weights.size + ranks + 1, np.float32)
        gradient, losses = vector[: model.weights.size], vector[-ranks - 1 : -1]
        step = 0
        while True:
            begin = time.monotonic()
            losses[:] = 0
            losses[rank] = model.gradient(step, rank, gradient)
            vector[-1] = rank == 0 and _stops(options, step)
            worked = time.monotonic() - begin
            time.sleep(max(0.0, options.compute - worked))  # stands for a GPU's work
            computed = time.monotonic()
            communicator.all_reduce(vector)
            end = time.monotonic()
            model.update(gradient / np.float32(ranks))
            report(
                "step",
                step=step,
                begin=begin,
                computed=computed,
                end=end,
                worked=worked,
                loss=float(losses.astype(np.float64).mean()),
                schedule=communicator.explain("all_reduce", vector.size).chosen,
            )
            step += 1
            if vector[-1]:
                break
        report("done", steps=step, fingerprint=model.fingerprint(), bytes=vector.nbytes)


def _stops(options: RankOptions, step: int) -> bool:
    if options.steps:
        return step + 1 >= options.steps
    return Path(options.stop_file).exists()


def _watch_first_aid() -> None:
    """Reports when messages have gone over another NIC of this host than the plan says."""
    descriptor = _core.flow_page_fd()
    if descriptor < 0:
        return
    page, before = _core.FlowPage(descriptor), 0
    while True:
        time.sleep(_LOOK_SECONDS)
        rescued = sum(int(flow["rescued_bytes"]) for flow in page.read())
        if rescued > before:
            report("aid", at=time.monotonic(), rescued=rescued)
            before = rescued


def main() -> None:
    """Entry point of a rank: options as JSON in argv[1]; errors go to the parent as one sentence."""
    die_with_parent()
    try:
        train(RankOptions(**json.loads(sys.argv[1])))
    except Exception as error:
        end_with(error)
