"""LEVELLER and its baselines on a fluid network: what jobs and policies do to each other, without a cluster.

Simulations stand on flowsim. Links and flows are fluid, compute takes constant time, GPUs are a job's own: the model of
the paper (section 3.1).
"""

from leveller.sim.jobs import Job, Phase, Transfer
from leveller.sim.simulate import Outcome, simulate

__all__ = ["Job", "Outcome", "Phase", "Transfer", "simulate"]
