"""Every error code has a class of its own, which is also what Python's users would catch."""

from __future__ import annotations

import pytest

from theseus_py import errors


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, errors.UnhandledCudaError),
        (2, errors.SystemError_),
        (3, errors.InternalError),
        (4, errors.InvalidArgument),
        (5, errors.InvalidUsage),
        (6, errors.RemoteError),
        (8, errors.Timeout),
    ],
)
def test_code_gives_its_class_with_code_and_message(code: int, kind: type[errors.TheseusError]) -> None:
    error = errors.from_code(code, "rank 3 is gone")
    assert type(error) is kind
    assert (error.code, error.message, str(error)) == (code, "rank 3 is gone", "rank 3 is gone")
    assert isinstance(error, RuntimeError)


def test_builtin_kinds_catch_too() -> None:
    assert issubclass(errors.InvalidArgument, ValueError)
    assert issubclass(errors.Timeout, TimeoutError)


def test_unknown_code_is_named() -> None:
    error = errors.from_code(77, "odd")
    assert isinstance(error, errors.InternalError)
    assert "77" in str(error)
