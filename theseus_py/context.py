"""The context of a job: attributes, and schedules with policies, from which every communicator selects.

    from theseus_py import context

    context.new_attr("skew")
    context.new_sched("balanced", "all_to_all", algorithm="pairwise", usable="skew > 1.4")
    context.set_exo("skew", 2.2)

Each call returns a handle at once and never holds up a request; ``handle.wait()`` says whether the job's log has taken
it. What it changes takes effect on all ranks of a communicator before one and the same request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from theseus_py import _core
from theseus_py.communicator import SupportsPlanBytes, Work
from theseus_py.dtypes import Collective

__all__ = ["new_attr", "new_sched", "remove_sched", "set_exo", "sync"]

_HOOKS = ("exogenous", "requests", "agreements", "seconds", "smooth", "hysteresis", "dwell")


def new_attr(
    name: str,
    hook: str = "exogenous",
    *,
    length: int = 1,
    initial: float = 0.0,
    source: str = "",
    first: float = 0.0,
    second: float = 0.0,
) -> Work:
    """Defines an attribute that policies may read.

    ``hook`` says what moves it: ``exogenous`` (:func:`set_exo`), ``requests``, ``agreements`` or ``seconds`` (counters
    of a communicator), ``smooth``, ``hysteresis`` or ``dwell`` (of the exogenous attribute ``source``). ``length``
    above 1 makes an array. ValueError for an unknown hook.
    """
    if hook not in _HOOKS:
        raise ValueError(f"hook '{hook}' is none of {', '.join(_HOOKS)}")
    return Work(_core.publish_attribute(name, _HOOKS.index(hook), length, initial, source, first, second))


def set_exo(name: str, value: float | Sequence[float] | Mapping[int, float]) -> Work:
    """Sets an exogenous attribute: a number, all elements of an array, or those that a mapping names."""
    if isinstance(value, Mapping):
        elements = [(int(index), float(element)) for index, element in value.items()]
    elif isinstance(value, Sequence):
        elements = [(index, float(element)) for index, element in enumerate(value)]
    else:
        elements = [(0, float(value))]
    return Work(_core.publish_values(name, elements))


def new_sched(
    name: str,
    collective: Collective | str,
    *,
    algorithm: str = "",
    plan: bytes | SupportsPlanBytes | None = None,
    root: int = -1,
    usable: str = "",
    score: str = "",
    replaces: str = "",
) -> Work:
    """Publishes a schedule: a built-in ``algorithm`` by name, or a compiled ``plan``.

    ``usable`` and ``score`` are policies (docs/guides/policies.md); empty: always usable, score 0. ``replaces`` names
    the schedule that this one adapts, and wins ties against.
    """
    if (plan is None) == (not algorithm):
        raise ValueError("a schedule is either a built-in algorithm or a plan: give one of both")
    body = b"" if plan is None else plan if isinstance(plan, bytes) else plan.to_bytes()
    number = int(Collective[collective.upper()] if isinstance(collective, str) else collective)
    return Work(_core.publish_schedule(name, number, root, algorithm, body, usable, score, replaces))


def remove_sched(name: str) -> Work:
    """Removes a schedule; requests under way end with it."""
    return Work(_core.publish_removal(name))


def sync(timeout: float | None = None) -> None:
    """Waits until all that this process published is taken; raises the first refusal since the last call."""
    _core.publish_sync(-1.0 if timeout is None else timeout)
