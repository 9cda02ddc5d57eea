"""Communication that can wait goes last until it cannot (paper section 4.2)."""

from __future__ import annotations

__all__ = ["slackened"]


def slackened(level: int, started: float, slack: float, now: float) -> int:
    """Returns the level of a flow whose communication began at `started` and can wait `slack` seconds.

    Inside that window the lowest one, 0; from its end on the `level` that the controller gave. The agent does that
    alone: nobody has to agree.
    """
    return 0 if started <= now < started + slack else level
