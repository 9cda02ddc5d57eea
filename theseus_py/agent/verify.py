"""The compile service: proves plans in a process of its own, so that a large one keeps nobody waiting."""

from __future__ import annotations

import asyncio
import concurrent.futures

from theseus_py.agent.worker import make_worker

__all__ = ["Verifier", "fault_of"]


def fault_of(body: bytes, collective: str, root: int) -> str | None:
    """Returns why a plan file is not to be run for a collective; None where it is right, in place or out of place."""
    from resccl import Plan
    from resccl.errors import LimitError, VerificationError

    try:
        plan = Plan.from_bytes(body)
        if plan.collective != collective:
            return f"the plan is for {plan.collective}, not for {collective}"
        if collective in ("Broadcast", "Reduce", "Gather", "Scatter") and plan.root != root:
            return f"the plan is for root {plan.root}, not for root {root}"
        first: Exception | None = None
        for forms in ((True, True), (False, True), (True, False)):
            try:
                plan.verify(in_place=forms[0], out_of_place=forms[1], scaled_input=False)
                return None
            except VerificationError as error:
                first = first or error
        return f"the plan does not verify: {first}"
    except LimitError as error:
        return f"the plan is too large to verify: {error}"
    except ValueError as error:
        return f"the file is no plan: {error}"


class Verifier:
    """One worker process, started when it is first needed."""

    def __init__(self) -> None:
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None

    async def fault_of(self, body: bytes, collective: str, root: int) -> str | None:
        """Does the same there. A plan that kills the worker is refused, and the next one gets a new worker."""
        if self._pool is None:
            self._pool = make_worker(niceness=10)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, fault_of, body, collective, root)
        except concurrent.futures.process.BrokenProcessPool:
            self.close()
            return "the verifier died of the plan"

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
