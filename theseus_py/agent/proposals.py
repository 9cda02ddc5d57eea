"""From a record that somebody wants to one that all agents have, or a reason why not.

What can be seen from the record alone is looked at here, before anybody else hears of it: its form, its policies, its
plan. What depends on the log (names, ranges, cycles) is decided when it is applied, by all agents alike.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from theseus_py import _core
from theseus_py.agent.bodies import Bodies, read_descriptor
from theseus_py.agent.job import JobState, Outcome, entry_of
from theseus_py.agent.replica import Replica
from theseus_py.agent.verify import Verifier
from theseus_py.errors import InvalidArgument, TheseusError, Timeout

__all__ = ["ANSWER_SECONDS", "Proposals"]

# How long an append may take to be agreed on; csrc/net/agent_client.cc waits a little longer.
ANSWER_SECONDS = 6.0
# A proposal that nobody speaks of any more is made again.
_AGAIN_SECONDS = 0.7
_SOON_SECONDS = 0.05


class Proposals:
    """Takes records to agreement."""

    def __init__(self, job: JobState, bodies: Bodies, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._job = job
        self._bodies = bodies
        self._verifier = Verifier()
        self._answer_seconds = answer_seconds
        self._numbers = itertools.count()
        self.replica: Replica | None = None

    def close(self) -> None:
        self._verifier.close()

    async def examine(self, record: bytes, descriptor: int | None) -> None:
        """Raises what is wrong with a record by itself. Keeps its plan, which `descriptor` holds, where it has one."""
        fields = _core.decode_record(record)
        if fields["kind"] != "schedule":
            return
        for policy in ("usable", "score"):
            if fields[policy]:
                _check_policy(policy, fields[policy])
        if fields["algorithm"]:
            _check_algorithm(fields["algorithm"], fields["collective"])
        else:
            await self._keep_plan(fields, descriptor)

    async def _keep_plan(self, fields: dict[str, Any], descriptor: int | None) -> None:
        body_hash, size = fields["plan_hash"], fields["plan_bytes"]
        if descriptor is None:
            if not self._bodies.has(body_hash):
                raise InvalidArgument(f"the schedule '{fields['name']}' names a plan that did not come along")
            return
        body = read_descriptor(descriptor, size)
        if _core.hash_plan(body) != body_hash:
            raise InvalidArgument(f"the plan of schedule '{fields['name']}' does not have the hash that it names")
        fault = await self._verifier.fault_of(body, fields["collective"], fields["root"])
        if fault is not None:
            raise InvalidArgument(fault)
        self._bodies.store(body_hash, body)

    async def agree(self, ticket: bytes, record: bytes) -> Outcome:
        """Proposes a record until its fate is known, for `answer_seconds` at most."""
        decided: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        again = asyncio.Event()

        def on_outcome(outcome: Outcome) -> None:
            if not decided.done():
                decided.set_result(outcome)

        self._job.when_decided(ticket, on_outcome)
        deadline = asyncio.get_running_loop().time() + self._answer_seconds
        try:
            while not decided.done():
                if asyncio.get_running_loop().time() >= deadline:
                    return (Timeout.code, self._why_late())
                again.clear()
                if self.replica is not None:
                    self.replica.propose(entry_of(ticket, record), lambda _: again.set())
                await self._wait(decided, again)
            return decided.result()
        finally:
            self._job.forget(ticket)

    async def _wait(self, decided: asyncio.Future[Outcome], again: asyncio.Event) -> None:
        failed = asyncio.ensure_future(again.wait())
        either: list[asyncio.Future[Any]] = [decided, failed]
        try:
            await asyncio.wait(either, timeout=_AGAIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if failed.done() and not decided.done():
                await asyncio.wait([decided], timeout=_SOON_SECONDS)
        finally:
            failed.cancel()

    def _why_late(self) -> str:
        if self.replica is None:
            return "the agent does not know yet who takes part in the job: no communicator of several ranks is up"
        if not self.replica.has_quorum:
            return "the job's agents have no quorum: too many of them are out of reach; the context stays as it is"
        return "the job's agents did not come to an agreement in time; the record may yet be appended"


def _check_policy(which: str, text: str) -> None:
    check = getattr(_core, "check_policy", None)
    if check is None:
        return
    try:
        check(text)
    except TheseusError as error:
        raise InvalidArgument(f"{which} = {text!r}: {error.message}") from None


def _check_algorithm(algorithm: str, collective: str) -> None:
    """A generator's arguments are its own affair; a plain name must be a built-in's."""
    from resccl._core import built_in_names

    if ":" in algorithm:
        return
    known = sorted(name for name, _, collectives in built_in_names() if collective in collectives)
    if known and algorithm not in known:
        raise InvalidArgument(f"there is no built-in algorithm '{algorithm}' for {collective}: {', '.join(known)}")
