"""What resccl raises. All wrong input is a ValueError as well, so that callers need no class of ours."""

from __future__ import annotations

from collections.abc import Sequence


class ResCCLError(Exception):
    """What all errors of this package are."""


class AlgorithmError(ResCCLError, ValueError):
    """An algorithm that cannot be: a rank or chunk out of range, a chunk sent by who does not hold it, ...

    `file` and `line` say which line of the user's program made the transfer at fault; None where nobody knows.
    """

    def __init__(self, message: str, file: str | None = None, line: int | None = None) -> None:
        where = "" if file is None else f"{file}:{line}: "
        super().__init__(where + message)
        self.file = file
        self.line = line


class VerificationError(ResCCLError, ValueError):
    """A plan that the verifier refuses.

    `kind` is the promise that it breaks: structure, limit, deadlock, rendezvous, race or value. `rank`, `tb`, `step`
    and `chunk` name the instruction at fault, `place` (buffer, index) the memory; None where it is no matter of one.
    `interleaving` is an order of (rank, TB, step, micro-batch) that shows it, with connections of `slots` slots
    (0: rendezvous), `micro_batches` micro-batches, in place or not; `reference` is, for a race, the Send whose
    reference is still read when its source is overwritten. csrc/compiler/verify.h says how an interleaving ends for
    each kind.
    """

    def __init__(  # lizard forgives: one field each
        self,
        message: str,
        *,
        kind: str | None = None,
        rank: int | None = None,
        tb: int | None = None,
        step: int | None = None,
        chunk: int | None = None,
        place: tuple[str, int] | None = None,
        interleaving: Sequence[tuple[int, int, int, int]] = (),
        slots: int = 0,
        micro_batches: int = 1,
        in_place: bool = False,
        reference: tuple[int, int, int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.rank = rank
        self.tb = tb
        self.step = step
        self.chunk = chunk
        self.place = place
        self.interleaving = list(interleaving)
        self.slots = slots
        self.micro_batches = micro_batches
        self.in_place = in_place
        self.reference = reference


class LimitError(ResCCLError, RuntimeError):
    """Something larger than a limit allows; the message says which one, and how to raise it."""
