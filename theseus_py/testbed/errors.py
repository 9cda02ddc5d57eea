"""How a testbed fails."""

from __future__ import annotations


class TestbedError(RuntimeError):
    """What could not be done and why, in one sentence."""

    __test__ = False  # not a class of tests, whatever pytest makes of its name
