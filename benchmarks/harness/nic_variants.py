"""The ways to meet a slow NIC that failslow.py compares, each a job of its own."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness.nic_caps import Cap, capacities
from benchmarks.harness.nic_job import NicJob
from theseus_py.testbed import Shape

if TYPE_CHECKING:
    from theseus_py.healing import Collective

_FOLDER = Path(__file__).resolve().parent
GLOO = "gloo"
ADAPTED = "adapted"
GIVEN = "given"
_NAMES: dict[str, Collective] = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
}
# Without adaptation a dead NIC is not survived: only with patience can its end be seen.
_OFF = {"THESEUS_AGENT": "off", "THESEUS_ADAPT": "off", "THESEUS_FIRST_AID": "0", "THESEUS_HEARTBEAT_TIMEOUT": "600"}


@dataclass(frozen=True)
class Variant:
    """`missing()` says why it cannot be measured here, or None. `settles`: rounds of calls under new caps before any
    counts, for at least `settle_seconds`: what adapts may need time rather than calls.
    """

    name: str
    meaning: str
    missing: Callable[[], str | None]
    environment: Mapping[str, str] = field(default_factory=dict)
    kind: str = "theseus"
    settles: int = 0
    settle_seconds: float = 0.0
    plans: bool = False

    def start(self, shape: Shape, most_bytes: int, ranks_per_host: int) -> NicJob:
        """Starts a job that runs collectives. Raises JobError."""
        command = [sys.executable, str(_FOLDER / "nic_rank.py"), self.kind, str(most_bytes)]
        return NicJob(self.name, shape, command, ranks_per_host, self.environment)

    def train(self, shape: Shape, gradient_bytes: int, compute: float) -> NicJob:
        """Starts a job that trains. Raises JobError."""
        command = [sys.executable, str(_FOLDER / "training_rank.py"), self.kind, str(gradient_bytes), str(compute)]
        return NicJob(self.name, shape, command, environment=self.environment)


def known_variants() -> list[Variant]:
    """All of them, in the order in which they are shown."""
    return [
        Variant("unadapted", "the normal schedule, whatever happens", lambda: None, _OFF),
        Variant(
            "first aid",
            "the normal schedule; chunks take whichever rail is free",
            lambda: _lacks("THESEUS_FIRST_AID"),
            {**_OFF, "THESEUS_FIRST_AID": "1"},
            settles=1,
        ),
        Variant(
            GIVEN,
            "a schedule made for the caps, which are told",
            _no_planner,
            {**_OFF, "THESEUS_FIRST_AID": "1"},
            plans=True,
        ),
        Variant(
            ADAPTED,
            "agent and monitor find out by themselves",
            lambda: _lacks("THESEUS_AGENT"),
            {
                "THESEUS_AGENT": agent_command(),
                "THESEUS_ADAPT": "on",
                "THESEUS_FIRST_AID": "1",
            },
            settles=3,
            settle_seconds=10.0,  # what was slow before has to be found sound first
        ),
        Variant(GLOO, "torch.distributed's gloo, four pieces at once", _no_gloo, kind=GLOO),
    ]


def agent_command() -> str:
    """Returns the command that starts a node's agent, from where this package lies."""
    path = [os.path.abspath(entry) for entry in sys.path]
    code = f"import sys; sys.path[:] = {path!r}; from theseus_py.agent.__main__ import main; sys.exit(main())"
    return shlex.join([sys.executable, "-c", code])


def _lacks(setting: str) -> str | None:
    from theseus_py import _core

    names = {row[0] for row in _core.describe_settings()}
    return None if setting in names else f"this build has no {setting}"


def _no_planner() -> str | None:
    return None if importlib.util.find_spec("theseus_py.healing") else "this build has no theseus_py.healing"


def _no_gloo() -> str | None:
    return None if importlib.util.find_spec("torch") else "torch is not installed"


def plan_for(collective: str, size: int, shape: Shape, ranks_per_host: int, caps: Sequence[Cap]) -> bytes:
    """Returns the plan file of a schedule made for these caps. Raises ValueError where there is none."""
    from resccl import Topology, _core
    from theseus_py import healing

    name = _NAMES[collective]
    ranks = shape.hosts * ranks_per_host
    health = capacities(shape.hosts, shape.nics, caps)
    made = healing.plan_for(name, health, size, ranks_per_host=ranks_per_host)
    topology = Topology(tuple(rank // ranks_per_host for rank in range(ranks)), shape.nics)
    # Not by resccl.built_in: a generated schedule has more steps than people may write.
    algorithm = _core.built_in(made.algorithm, name, topology.to_dict(), 0)
    return _core.compile(algorithm, topology.to_dict(), scheduling="per_connection")
