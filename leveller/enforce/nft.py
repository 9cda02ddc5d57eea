"""DSCP marks by nftables, in a table that is ours alone: see table.py for what is in it.

The table has the flag "owner": nobody else can change it, and the kernel removes it with our socket, after kill -9 too.
A kernel before 5.12 does not know that flag; there a guard removes the table: see guard.py.
Live connections are marked from the next packet on. Those that leave this host or pass through it are: who wants both
directions of a connection marked does so on the hosts of both its ends.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from contextlib import suppress

from leveller.core.model import FiveTuple
from leveller.enforce import table
from leveller.enforce.effective import Effective, compared, sorted_out
from leveller.enforce.guard import Guard, GuardError
from leveller.enforce.nfnetlink import Nfnetlink, NftError

__all__ = ["NftEnforcer", "NftError", "remove_leftover"]

#: What kernels say that do not know the flag "owner".
_UNKNOWN_FLAG = (errno.EINVAL, errno.EOPNOTSUPP)


class NftEnforcer:
    """Marks flows by five-tuple. One a network namespace; NftError where there is one already, or none can be.

    dscps: the marks there may be
    owner: try the flag "owner" first
    """

    def __init__(self, dscps: Iterable[int] = range(64), owner: bool = True) -> None:
        self._dscps = frozenset(dscps)
        self._netlink = Nfnetlink()
        self._guard: Guard | None = None
        self._owner = owner
        self._marked: dict[FiveTuple, int] = {}
        try:
            self._begin()
        except (NftError, GuardError) as error:
            self.close()
            raise NftError(error.errno, f"flows of other libraries cannot be marked: {error.strerror}") from None

    def _begin(self) -> None:
        _remove(self._netlink)
        if self._owner:
            try:
                self._netlink.change(table.make(self._dscps, True))
                return
            except NftError as error:
                if error.errno not in _UNKNOWN_FLAG:
                    raise
                self._owner = False
        self._guard = Guard("nft")
        _remove(self._netlink)
        self._netlink.change(table.make(self._dscps, False))

    def apply(self, marks: Mapping[FiveTuple, int]) -> Mapping[FiveTuple, Effective]:
        """Makes `marks` (DSCP by flow) all that is marked, in one transaction. What cannot be is refused alone.

        What is said to hold was read back from the kernel.
        """
        wanted, found = sorted_out(marks, self._dscps)
        try:
            marked = self._marked_as(wanted)
        except NftError as error:
            return {flow: Effective(dscp, None, str(error.strerror)) for flow, dscp in marks.items()}
        return {**found, **compared(wanted, marked)}

    def _marked_as(self, wanted: dict[FiveTuple, int]) -> dict[FiveTuple, int]:
        """Changes what differs; where the kernel then does not have what it should, all is made anew."""
        with suppress(NftError):
            self._change(wanted)
            if (marked := self.marked(wanted)) == wanted:
                return marked
        self._marked = {}
        there = [table.remove()] if self._netlink.get(table.ask()) is not None else []
        self._netlink.change([*there, *table.make(self._dscps, self._owner), *table.add(wanted)])
        self._marked = wanted
        return self.marked(wanted)

    def _change(self, wanted: dict[FiveTuple, int]) -> None:
        removed = [flow for flow, dscp in self._marked.items() if wanted.get(flow) != dscp]
        added = {flow: dscp for flow, dscp in wanted.items() if self._marked.get(flow) != dscp}
        if messages := [*table.delete(removed), *table.add(added)]:
            self._netlink.change(messages)
        self._marked = wanted

    def marked(self, flows: Iterable[FiveTuple]) -> dict[FiveTuple, int]:
        """Returns the marks that the kernel has for flows. NftError: it does not tell."""
        found: dict[bytes, int] = {}
        for family in table.FAMILIES:
            for message in self._netlink.dump(table.listing(family)):
                found.update(table.marks_in(message))
        keys = ((flow, table.place_of(flow)[1]) for flow in flows)
        return {flow: found[key] for flow, key in keys if key in found}

    def close(self) -> None:
        """Takes the table away."""
        self._marked = {}
        if self._guard is not None:
            with suppress(NftError):
                _remove(self._netlink)
            self._guard.close()
            self._guard = None
        self._netlink.close()


def remove_leftover() -> None:
    """Removes the table of an agent that has ended. NftError: it is that of one that lives."""
    netlink = Nfnetlink()
    try:
        _remove(netlink)
    finally:
        netlink.close()


def _remove(netlink: Nfnetlink) -> None:
    """A table without owner is what an agent left that has ended; one with an owner is a living one's."""
    if netlink.get(table.ask()) is None:
        return
    try:
        netlink.change([table.remove()])
    except NftError as error:
        if error.errno == errno.ENOENT:
            return
        if error.errno == errno.EPERM:
            raise NftError(errno.EBUSY, "another agent marks flows in this network namespace; stop it first") from None
        raise
