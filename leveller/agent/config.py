"""The jobs file: what an operator says of jobs. Jobs that are in no file are found by LEVELLER_JOB all the same."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from leveller.agent.jobs import JobFacts
from leveller.jobs.processes import Rule
from leveller.tracker.source import format_of
from leveller.wire import Name, Positive, Seconds

__all__ = ["Config", "JobEntry", "read_config"]

_MOST_BYTES = 1 << 20


class JobEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One [[job]]: `name`; where its iterations are logged; which processes it has, unless they say LEVELLER_JOB."""

    name: Name
    log: str | None = None
    format: str = "auto"
    command: str | None = None
    cgroup: str | None = None
    pid: int | None = None
    port: int | None = None
    weight: Positive = 1.0
    gpus: Annotated[int, msgspec.Meta(ge=1)] = 1
    compute: Seconds | None = None
    communicate: Seconds | None = None
    ideal: Positive | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    job: list[JobEntry] = []


@dataclass(frozen=True)
class Config:
    """What a jobs file says, checked."""

    jobs: dict[str, JobEntry] = field(default_factory=dict)

    def rules(self) -> list[Rule]:
        """Returns the rules for finding processes."""
        return [
            Rule(each.name, each.command, each.cgroup, each.pid, each.port)
            for each in self.jobs.values()
            if (each.command, each.cgroup, each.pid, each.port) != (None,) * 4
        ]

    def facts(self) -> dict[str, JobFacts]:
        """Returns what is known of jobs beforehand."""
        return {
            each.name: JobFacts(each.weight, each.gpus, each.compute, each.communicate, each.ideal)
            for each in self.jobs.values()
        }


def read_config(file: Path | None) -> Config:
    """Reads a jobs file; without one there is nothing in it. ValueError names what is wrong, OSError the file."""
    if file is None:
        return Config()
    data = file.read_bytes()
    if len(data) > _MOST_BYTES:
        raise ValueError(f"{file} has more than {_MOST_BYTES >> 20} MiB")
    try:
        entries = msgspec.convert(tomllib.loads(data.decode()), _File).job
        for each in entries:
            format_of(each.format)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    config = Config({each.name: each for each in entries})
    if len(config.jobs) < len(entries):
        raise ValueError(f"{file}: two jobs have one name")
    try:
        config.rules()
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    return config
