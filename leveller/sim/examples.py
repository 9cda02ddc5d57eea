"""The paper's worked examples, as jobs on one link that carries one unit in a second."""

from __future__ import annotations

from leveller.core.model import ClusterView, Flow, JobView
from leveller.sim.jobs import Job, Phase, Transfer

__all__ = ["LINK", "figure_6", "job", "three", "two"]

LINK = {"link": 1.0}


def job(name: str, compute: float, communicate: float, gpus: int = 1) -> Job:
    """Returns a job that computes, then sends for so long where it is alone."""
    return Job(name, [Phase(compute, (Transfer(("link",), communicate),))], gpus=gpus)


def two() -> list[Job]:
    """Figures 3 and 4: Job 1 computes 1 and communicates 1, Job 2 computes 1 and communicates 2. The best is 6/7."""
    return [job("Job 1", 1, 1), job("Job 2", 1, 2)]


def three() -> list[Job]:
    """Figure 1: twice 1 and 2, once 2 and 1, all of 3 alone. Fair sharing lets the third run a third ahead."""
    return [job("Job 1", 1, 2), job("Job 2", 1, 2), job("Job 3", 2, 1)]


def figure_6() -> ClusterView:
    """Four jobs on three links between four switches; two levels suffice for each link to have one of each."""
    jobs = {f"J{number}": JobView(f"J{number}", rate=number / 10) for number in range(1, 5)}
    flows = [
        Flow("f1", "J1", ("S1>S2", "S2>S3")),
        Flow("f21", "J2", ("S1>S2",)),
        Flow("f3", "J3", ("S2>S3",)),
        Flow("f22", "J2", ("S3>S4",)),
        Flow("f4", "J4", ("S3>S4",)),
    ]
    return ClusterView(0.0, jobs, flows)
