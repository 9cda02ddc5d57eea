"""DSCP marks by iptables, where the kernel has no nf_tables: a chain of ours in the table "mangle", a rule a flow.

Each packet is compared with each rule: this is for tens of flows. A change replaces the chain in one step. Rules of
others stay; we add one that calls our chain, and take it away again.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from leveller.core.model import FiveTuple
from leveller.enforce.effective import Effective, compared, sorted_out
from leveller.enforce.guard import Guard, GuardError
from leveller.enforce.table import place_of

__all__ = ["IptablesEnforcer", "IptablesError", "chain", "marks_in", "remove_leftovers"]

CHAIN = "LEVELLER"
_PROGRAMS = {4: "iptables", 6: "ip6tables"}
_FAMILIES = {4: "ip", 6: "ip6"}
_WAIT = ("-w", "5")
_LONGEST_RUN = 10.0
_PATH = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin"
_RULE = re.compile(
    rf"-A {CHAIN} -s (\S+?)(?:/\d+)? -d (\S+?)(?:/\d+)? -p (tcp|udp) -m \3 --sport (\d+) --dport (\d+) "
    r"-j DSCP --set-dscp (0x[0-9a-f]+)"
)


class IptablesError(OSError):
    """iptables refused, or is not there."""


def chain(marks: Mapping[FiveTuple, int]) -> str:
    """Returns the input of iptables-restore that makes `marks`, all of one family, the content of our chain."""
    rules = (
        f"-A {CHAIN} -p {flow.protocol} -s {ipaddress.ip_address(flow.source)} --sport {flow.source_port} "
        f"-d {ipaddress.ip_address(flow.destination)} --dport {flow.destination_port} -j DSCP --set-dscp {dscp}\n"
        for flow, dscp in marks.items()
    )
    return f"*mangle\n:{CHAIN} - [0:0]\n{''.join(rules)}COMMIT\n"


def marks_in(listed: str) -> dict[FiveTuple, int]:
    """Reads what `iptables -S` lists of our chain."""
    return {
        FiveTuple(protocol, str(ipaddress.ip_address(source)), int(sport), str(ipaddress.ip_address(to)), int(dport)): (
            int(dscp, 16)
        )
        for source, to, protocol, sport, dport, dscp in _RULE.findall(listed)
    }


class IptablesEnforcer:
    """Marks flows by five-tuple. One a network namespace; IptablesError where there is one already, or none can be."""

    def __init__(self) -> None:
        for program in _PROGRAMS.values():
            _found(f"{program}-restore")
        try:
            self._guard: Guard | None = Guard("iptables")
        except GuardError as error:
            raise IptablesError(error.errno, error.strerror) from None
        self._marked: dict[int, dict[FiveTuple, int]] = {}
        try:
            remove_leftovers()
            for version in _PROGRAMS:
                _restore(version, chain({}))
                _run(_PROGRAMS[version], *_WAIT, "-t", "mangle", "-A", "POSTROUTING", "-j", CHAIN)
        except IptablesError:
            self.close()
            raise

    def apply(self, marks: Mapping[FiveTuple, int]) -> Mapping[FiveTuple, Effective]:
        """Makes `marks` all that is marked, in one step a family. What cannot be is refused alone, with its family."""
        wanted, found = sorted_out(marks, range(64))
        for version in _PROGRAMS:
            some = {flow: dscp for flow, dscp in wanted.items() if place_of(flow)[0].name == _FAMILIES[version]}
            try:
                if self._marked.get(version, {}) != some:
                    self._marked.pop(version, None)
                    _restore(version, chain(some))
                    self._marked[version] = some
                found.update(compared(some, self._read(version)))
            except IptablesError as error:
                found.update({flow: Effective(dscp, None, str(error.strerror)) for flow, dscp in some.items()})
        return found

    def _read(self, version: int) -> dict[FiveTuple, int]:
        if not self._marked.get(version):
            return {}
        found = marks_in(_run(_PROGRAMS[version], *_WAIT, "-t", "mangle", "-S", CHAIN))
        if found != self._marked[version]:
            self._marked.pop(version)  # the next time all is written again
        return found

    def close(self) -> None:
        """Takes the chains away."""
        if self._guard is not None:
            with suppress(IptablesError):
                remove_leftovers()
            self._guard.close()
            self._guard = None


def remove_leftovers() -> None:
    """Removes our chains and what calls them, where they are. IptablesError: there are, and they cannot be removed."""
    for program in _PROGRAMS.values():
        listed = _run(program, *_WAIT, "-t", "mangle", "-S")
        if f"-N {CHAIN}\n" not in listed:
            continue
        for call in re.findall(rf"^-A (\S+) -j {CHAIN}$", listed, re.MULTILINE):
            _run(program, *_WAIT, "-t", "mangle", "-D", call, "-j", CHAIN)
        _run(program, *_WAIT, "-t", "mangle", "-F", CHAIN)
        _run(program, *_WAIT, "-t", "mangle", "-X", CHAIN)


def _restore(version: int, text: str) -> None:
    _run(f"{_PROGRAMS[version]}-restore", *_WAIT, "--noflush", given=text)


def _found(program: str) -> str:
    path = shutil.which(program) or shutil.which(program, path=_PATH)
    if path is None:
        raise IptablesError(errno.ENOENT, f"{program} is missing: install the package iptables")
    return path


def _run(program: str, *arguments: str, given: str = "") -> str:
    try:
        ended = subprocess.run(
            [_found(program), *arguments], input=given, capture_output=True, text=True, timeout=_LONGEST_RUN
        )
    except subprocess.TimeoutExpired:
        raise IptablesError(errno.ETIMEDOUT, f"{program} does not answer") from None
    if ended.returncode:
        said = ended.stderr.strip().splitlines()
        raise IptablesError(errno.EIO, f"{program} refused: {said[0] if said else f'status {ended.returncode}'}")
    return ended.stdout
