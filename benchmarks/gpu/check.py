"""What the contract's checks are made of."""

from __future__ import annotations

from collections.abc import Callable

from theseus_py import _core
from theseus_py.errors import TheseusError

Check = Callable[[_core.Driver], None]


def expect(promise: bool, otherwise: str) -> None:
    """Raise AssertionError with `otherwise` where a promise is not kept."""
    if not promise:
        raise AssertionError(otherwise)


def code_of(call: Callable[[], object]) -> str:
    """The class of what a call fails with; empty where it does not."""
    try:
        call()
    except TheseusError as error:
        return type(error).__name__
    return ""


def refused(call: Callable[[], object], code: str = "") -> str:
    """What a call says that must fail, with the class `code` where one is given."""
    try:
        call()
    except TheseusError as error:
        expect(code in ("", type(error).__name__), f"{type(error).__name__} instead of {code}: {error}")
        return str(error)
    raise AssertionError(f"a call that must fail{' with ' + code if code else ''} went well")
