"""A picture of what jobs did under several policies: the paper's Figure 1."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from leveller.sim.simulate import Outcome

__all__ = ["draw"]

_COLOURS = {"compute": "#b8c4d6", "send": "#2a6fb0", "share": "#7fb2dd", "wait": "#e9a15b", "idle": "#ffffff"}


def draw(file: Path, outcomes: Mapping[str, Outcome], until: float) -> None:
    """Draws the first `until` seconds, a row a job, into a PNG file. Needs matplotlib (extra `bench`)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import patches, pyplot

    figure, axes = pyplot.subplots(len(outcomes), 1, figsize=(9, 1.6 * len(outcomes)), sharex=True, squeeze=False)
    for axis, (name, outcome) in zip(axes[:, 0], outcomes.items(), strict=True):
        jobs = list(outcome.ideal)[:8]
        for each in outcome.timeline:
            if each.job in jobs and each.start < until:
                width = min(each.end, until) - each.start
                axis.barh(jobs.index(each.job), width, left=each.start, color=_COLOURS[each.kind], edgecolor="white")
        axis.set_yticks(range(len(jobs)), [f"{job}  R {outcome.rates[job]:.2f}" for job in jobs], fontsize=7)
        axis.set_title(name, fontsize=9, loc="left")
        axis.invert_yaxis()
    axes[-1][0].set_xlabel("seconds")
    shown = [patches.Patch(color=colour, label=kind) for kind, colour in _COLOURS.items() if kind != "idle"]
    axes[0][0].legend(handles=shown, fontsize=7, ncols=4, loc="upper right")
    figure.tight_layout()
    figure.savefig(file, dpi=130)
    pyplot.close(figure)
