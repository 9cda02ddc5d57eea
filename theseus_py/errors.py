"""Exceptions: one class per error code of the runtime, all of them RuntimeErrors that carry `code` and `message`.

The codes are NCCL's ncclResult_t.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "InternalError",
    "InvalidArgument",
    "InvalidUsage",
    "RemoteError",
    "SystemError_",
    "TheseusError",
    "Timeout",
    "UnhandledCudaError",
    "from_code",
]


class TheseusError(RuntimeError):
    """What every failing call raises. `message` names the thing at fault and the way out."""

    code: ClassVar[int] = 3

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UnhandledCudaError(TheseusError):
    """The CUDA driver refused a call."""

    code = 1


class SystemError_(TheseusError):
    """The operating system refused something: memory, a descriptor, a socket."""

    code = 2


class InternalError(TheseusError):
    """A defect in Theseus itself."""

    code = 3


class InvalidArgument(TheseusError, ValueError):
    """An argument of the call is wrong by itself."""

    code = 4


class InvalidUsage(TheseusError):
    """The call is not allowed now, or ranks made calls that do not fit together."""

    code = 5


class RemoteError(TheseusError):
    """Another rank died, or the network to it failed."""

    code = 6


class Timeout(TheseusError, TimeoutError):
    """The time that the caller allowed has passed."""

    code = 8


_CLASSES: dict[int, type[TheseusError]] = {
    error.code: error
    for error in (UnhandledCudaError, SystemError_, InternalError, InvalidArgument, InvalidUsage, RemoteError, Timeout)
}


def from_code(code: int, message: str) -> TheseusError:
    """Return the exception for an error code of the runtime; an unknown code gives an InternalError that names it."""
    known = _CLASSES.get(code)
    if known is None:
        return InternalError(f"{message} (unknown error code {code})")
    return known(message)
