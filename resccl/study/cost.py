"""The cost model of the three granularities, in closed form (ResCCL, section 3, equations 3 to 5).

Symbols, the same everywhere in the study:

    n      micro-batches
    m      tasks that the busiest link has in one micro-batch; it sets the time of the whole, max over links of T_i
    alpha  start-up seconds of a task
    c      bytes of a chunk, that is, of one task of one micro-batch
    beta   seconds a byte, the inverse of the bandwidth
    B_j    bubble: seconds for which the link is idle before task j, since what it depends on is not done
    k      a stage; m_k are its tasks on the link
    z_k    how many times a link's capacity the thread blocks of a stage put on it: 1 where one uses it at a time
    gamma  seconds that a unit of contention costs; L(z) units at z
    t_Load seconds to fill the pipeline: until the busiest link has its first task
    m'     those of the m bubbles that scheduling cannot remove

`alpha + c beta` may differ from task to task, so functions take `task_seconds`, one value or one a task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


def linear_contention(z: float) -> float:
    """Return L(z) = z - 1 above 1, else 0: what flowsim's links do. The paper leaves L open."""
    return max(0.0, z - 1.0)


@dataclass(frozen=True)
class Stage:
    """A stage on the busiest link: its tasks, their bubbles, and z, how many times its capacity is asked for."""

    task_seconds: ArrayLike
    bubbles: ArrayLike = 0.0
    z: float = 1.0


def task_seconds(alpha: float, c: float, beta: float) -> float:
    """Return alpha + c beta."""
    return alpha + c * beta


def algorithm_level(n: int, tasks: ArrayLike, bubbles: ArrayLike) -> float:
    """Return T_A = n sum_j (alpha + c beta + B_j): every micro-batch pays every bubble.

    tasks, bubbles: seconds of each of the m tasks of the busiest link, shape (m,).
    """
    seconds, idle = _aligned(n, tasks, bubbles)
    return float(n * (seconds + idle).sum())


def stage_level(
    n: int, stages: Sequence[Stage], gamma: float, contention: Callable[[float], float] = linear_contention
) -> float:
    """Return T_S = max_k n sum_j (z_k (alpha + c beta) + gamma L(z_k) + B_j): stages go side by side, and contend."""
    if not stages:
        raise ValueError("stage level: there is no stage")
    times = []
    for stage in stages:
        if stage.z < 0 or gamma < 0:
            raise ValueError(f"stage level: z = {stage.z} and gamma = {gamma} must not be negative")
        seconds, idle = _aligned(n, stage.task_seconds, stage.bubbles)
        times.append(n * float((stage.z * seconds + gamma * contention(stage.z) + idle).sum()))
    return max(times)


def task_level(n: int, tasks: ArrayLike, remaining_bubbles: ArrayLike = (), load: float = 0.0) -> float:
    """Return T_P = t_Load + n sum_j (alpha + c beta) + n sum_{j <= m'} B_j.

    tasks: seconds of the m tasks of the busiest link. remaining_bubbles: those m' that stay. load: t_Load.
    """
    seconds, _ = _aligned(n, tasks, 0.0)
    left = np.atleast_1d(np.asarray(remaining_bubbles, dtype=np.float64))
    if load < 0 or (left < 0).any():
        raise ValueError("task level: neither t_Load nor a bubble is negative")
    return float(load + n * seconds.sum() + n * left.sum())


def break_even(tasks: ArrayLike, bubbles: ArrayLike, remaining_bubbles: ArrayLike, load: float) -> float:
    """Return the n from which on T_P <= T_A; infinite where task level never gets ahead."""
    _, idle = _aligned(1, tasks, bubbles)
    gain = float(idle.sum() - np.asarray(remaining_bubbles, dtype=np.float64).sum())
    if gain <= 0:
        return 0.0 if load == 0 and gain == 0 else float("inf")
    return load / gain


def _aligned(n: int, tasks: ArrayLike, bubbles: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    if n < 1:
        raise ValueError(f"there is at least one micro-batch, not {n}")
    seconds = np.atleast_1d(np.asarray(tasks, dtype=np.float64))
    idle = np.broadcast_to(np.asarray(bubbles, dtype=np.float64), seconds.shape)
    if (seconds < 0).any() or (idle < 0).any():
        raise ValueError("neither a task nor a bubble takes less than no time")
    return seconds, idle
