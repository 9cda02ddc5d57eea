"""Plans: what an executor runs, as bytes, as JSON, and as dicts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from resccl import _core
from resccl.errors import LimitError

_MAGIC = b"THSPLAN\0"
_FORMAT = "theseus plan"
_VERSION = 2
_MOST_BYTES = 1 << 32


class Plan:
    """A compiled algorithm: per rank thread blocks, each a list of instructions.

    It holds the plan file's bytes and nothing else, so a plan of a thousand ranks costs no Python objects until it is
    asked for them (`to_dict`, `rank_plan`). Two plans are equal if their bytes are.
    """

    def __init__(self, data: bytes) -> None:
        """Wrap bytes that the compiler or `from_bytes` made; they are checked when they are first read."""
        self._data = data

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """Return the plan of a plan file. ValueError: it is none, or broken."""
        plan = cls(bytes(data))
        _ = plan.summary
        return plan

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Plan:
        """Return the plan of to_dict's fields; those with a default may be left out. ValueError names a wrong one."""
        return cls(_core.encode_plan(dict(fields)))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan of to_json's text. ValueError says what is wrong with it."""
        try:
            fields = json.loads(text, object_pairs_hook=_unique)
        except RecursionError as error:
            raise ValueError("plan: the JSON is nested too deeply") from error
        if not isinstance(fields, dict):
            raise ValueError("plan: the JSON holds no object")
        if fields.pop("format", _FORMAT) != _FORMAT or fields.pop("version", _VERSION) != _VERSION:
            raise ValueError(f"plan: the JSON is no '{_FORMAT}' of version {_VERSION}")
        return cls.from_dict(fields)

    @classmethod
    def load(cls, path: Path | str) -> Plan:
        """Read a plan file or its JSON."""
        file = Path(path)
        if file.stat().st_size > _MOST_BYTES:
            raise LimitError(f"{file} has more than {_MOST_BYTES} bytes; no plan is that large")
        data = file.read_bytes()
        try:
            if data.startswith(_MAGIC):
                return cls.from_bytes(data)
            return cls.from_json(data.decode())
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: neither a plan file nor JSON") from error
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}: neither a plan file nor JSON ({error})") from error
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error

    def save(self, path: Path | str) -> None:
        """Write the plan: as JSON if the name ends in .json, else as a plan file."""
        file = Path(path)
        if file.suffix == ".json":
            file.write_text(self.to_json())
        else:
            file.write_bytes(self._data)

    def to_bytes(self) -> bytes:
        return self._data

    def to_dict(self) -> dict[str, Any]:
        """Return the whole plan in lists and dicts: head, and `rank_plans` with connections and thread blocks."""
        return _core.decode_plan(self._data)

    def rank_plan(self, rank: int) -> dict[str, Any]:
        """Return the part of one rank, reading nothing else. ValueError where the plan has none for it."""
        if rank < 0:
            raise ValueError(f"there is no rank {rank}")
        part: dict[str, Any] = _core.decode_plan(self._data, rank)["rank_plans"][0]
        return part

    def to_json(self) -> str:
        """Return the plan as JSON: an instruction a line, always the same text for the same plan."""
        fields = self.to_dict()
        parts = fields.pop("rank_plans")
        head = {"format": _FORMAT, "version": _VERSION, **fields}
        lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
        return "\n".join(["{", *lines, ' "rank_plans": [', ",\n".join(map(_part_text, parts)), " ]", "}"]) + "\n"

    @cached_property
    def summary(self) -> _core.PlanSummary:
        """Head and sizes, read without an object per instruction."""
        return _core.summarise_plan(self._data)

    @property
    def name(self) -> str:
        return self.summary["name"]

    @property
    def collective(self) -> str:
        return self.summary["collective"]

    @property
    def ranks(self) -> int:
        return self.summary["ranks"]

    @property
    def root(self) -> int:
        return self.summary["root"]

    @property
    def digest(self) -> int:
        """64 bits over every field: what peers compare."""
        return self.summary["digest"]

    @property
    def thread_blocks(self) -> int:
        """The most thread blocks that a rank has."""
        return max((part["thread_blocks"] for part in self.summary["rank_plans"]), default=0)

    def verify(self, **options: Any) -> None:
        """Prove the plan; VerificationError says why not, LimitError that it is too large for `work_limit`.

        Options: slots (8), in_place, out_of_place, equal_bits, scaled_input (all True), max_thread_blocks,
        max_connections (0: any number), work_limit. csrc/compiler/verify.h says what each means.
        """
        _core.verify(self._data, **options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self._data == other._data

    def __hash__(self) -> int:
        return hash(self._data)

    def __repr__(self) -> str:
        return f"Plan({self.name!r}, {self.collective}, {self.ranks} ranks, {self.thread_blocks} TBs)"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a field that is there twice: which one counts would be anybody's guess."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"plan: the field '{next(name for name in names if names.count(name) > 1)}' is there twice")
    return fields


def _part_text(part: dict[str, Any]) -> str:
    connections = [f"    {json.dumps(each)}" for each in part["connections"]]
    blocks = [
        "    [" + ",\n     ".join(json.dumps(instruction) for instruction in block) + "]"
        for block in part["thread_blocks"]
    ]
    return "\n".join(
        [
            f'  {{"rank": {part["rank"]}, "scratch_chunks": {part["scratch_chunks"]},',
            '   "connections": [',
            ",\n".join(connections),
            '   ], "thread_blocks": [',
            ",\n".join(blocks),
            "   ]}",
        ]
    )
