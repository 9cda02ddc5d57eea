"""What the demo found out, and whether it is as it must be. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from theseus_py.perf.report import Row

REFERENCE = "gloo"
OURS = "theseus"
# Sums in another order differ in their last bits, which training carries on; a wrong sum shows in the first digits.
LOSS_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Training:
    """One training run: the loss of each step (mean over ranks), its duration, and the accuracy on unseen digits."""

    backend: str
    loss: list[float]
    milliseconds: list[float]
    accuracy: float
    parameters: int

    @property
    def typical_milliseconds(self) -> float:
        return statistics.median(self.milliseconds)


@dataclass(frozen=True)
class Results:
    """What the demo's first half measured; `trainings` is empty where torch is missing."""

    layout: str
    rows: Sequence[Row]
    trainings: dict[str, Training]
    seconds: float
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def wrong(self) -> int:
        """Elements of the sweep that were not what they must be."""
        return sum(timing.wrong or 0 for row in self.rows for timing in row.timings())

    @property
    def loss_difference(self) -> float:
        """The largest difference between the two trainings' losses at the same step; 0 where nothing was trained."""
        if not self.trainings:
            return 0.0
        ours, reference = self.trainings[OURS].loss, self.trainings[REFERENCE].loss
        return max(abs(a - b) for a, b in zip(ours, reference, strict=True))

    def faults(self) -> list[str]:
        """One sentence for each thing that is not right; empty when all is."""
        found = []
        if self.wrong:
            found.append(f"{self.wrong} elements of the AllReduce sweep were wrong")
        if not self.trainings:
            return found
        # Not "greater than": a loss that is not a number must not pass.
        if not self.loss_difference <= LOSS_TOLERANCE:
            found.append(
                f"the losses of {OURS} and {REFERENCE} differ by {self.loss_difference:.2g}, "
                f"more than rounding explains ({LOSS_TOLERANCE:g})"
            )
        if not self.trainings[OURS].loss[-1] < self.trainings[OURS].loss[0]:
            found.append("the training did not lower the loss")
        return found

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "layout": self.layout,
            "seconds": self.seconds,
            "environment": self.environment,
            "all_reduce": [asdict(row) for row in self.rows],
            "training": {name: asdict(training) for name, training in self.trainings.items()},
            "wrong_elements": self.wrong,
            "largest_loss_difference": self.loss_difference,
            "loss_tolerance": LOSS_TOLERANCE,
            "faults": self.faults(),
        }
