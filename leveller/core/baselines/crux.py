"""Crux (SIGCOMM 2024): static priority to the job with the highest GPU intensity, for the cluster's utilisation."""

from __future__ import annotations

from leveller.core.levels import prune
from leveller.core.model import ClusterView, JobView, Levels

__all__ = ["Crux", "intensity"]


def intensity(job: JobView) -> float:
    """Returns a job's GPU intensity: GPU seconds that an iteration computes, for each second that its links work.

    A job of which that is not known has 0. Crux corrects by a factor k for how much of the communication is exposed;
    like the paper's panel, this takes k = 1.
    """
    if job.compute is None or not job.communicate:
        return 0.0
    return job.compute * job.gpus / job.communicate


class Crux:
    """Crux's order, folded into K levels.

    Crux cuts the order of jobs into levels so that few jobs that meet end up on one level; the pruning that LEVELLER
    uses does that by construction, so both are folded alike and differ in the order alone.
    """

    name = "crux"

    def __init__(self, levels: int = 6) -> None:
        if levels < 1:
            raise ValueError(f"there is at least 1 level, not {levels}")
        self._levels = levels

    def levels(self, view: ClusterView) -> Levels:
        """Returns levels by intensity; ties go by name."""
        jobs = {flow.job for flow in view.flows}
        order = sorted(jobs, key=lambda name: (-intensity(view.jobs.get(name) or JobView(name)), name))
        return prune(view, order, self._levels)
