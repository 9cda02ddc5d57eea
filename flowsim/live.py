"""Flows under somebody else's control, one event after the other."""

from __future__ import annotations

from flowsim import _core


class Live:
    """Flows that are started any number of times, and given other priorities while they run (`Network.live`).

    Of the network it takes links, paths, weights and priorities; sizes, starts, dependencies and tasks do not count.
    What is changed between two calls of `advance` happens at one instant. Methods raise ValueError naming the thing at
    fault, and then change nothing.
    """

    def __init__(self, core: _core.Live) -> None:
        self._core = core

    @property
    def now(self) -> float:
        """The present time in seconds, from 0."""
        return self._core.now

    def start(self, flow: int, size: float) -> None:
        """Let a flow move `size` bytes, above 0, from now on. It must not be under way."""
        self._core.start(flow, size)

    def set_priority(self, flow: int, priority: int) -> None:
        """Give a flow a priority, 0 (first) to 255, whether it is under way or not."""
        self._core.set_priority(flow, priority)

    def set_capacity(self, link: int, capacity: float) -> None:
        """Let a link have another capacity, in bytes a second, from now on."""
        self._core.set_capacity(link, capacity)

    def next(self) -> float:
        """Return when the next flow will be done; infinity if none will as things are."""
        return self._core.next()

    def advance(self, time: float) -> list[int]:
        """Let time pass until `time`, not beyond `next()`, and return the flows that are done by then."""
        return self._core.advance(time)

    def rate(self, flow: int) -> float:
        """Return the bytes a second that a flow moves now."""
        return self._core.rate(flow)

    def left(self, flow: int) -> float:
        """Return the bytes that a flow has still to move; 0 if it is not under way."""
        return self._core.left(flow)
