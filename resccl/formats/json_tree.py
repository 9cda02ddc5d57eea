"""JSON from strangers: no duplicate keys, no NaN, bounded depth; fields that name themselves when they are wrong."""

from __future__ import annotations

import json
from typing import Any

from resccl.formats.common import FormatError, shortened

MAX_DEPTH = 16


def read_json(data: bytes, name: str) -> Any:
    """The value of the JSON document `data`; `name` stands for it in messages. FormatError: why it is none."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise FormatError(f"{name}: the key {shortened(twice)!r} is there twice in one object")
        return found

    def constant(text: str) -> Any:
        raise FormatError(f"{name}: {text} is no number")

    _check_depth(data, name)
    try:
        return json.loads(data, object_pairs_hook=unique, parse_constant=constant)
    except FormatError:
        raise
    except ValueError as error:
        raise FormatError(f"{name}: it is no JSON: {error}") from None


def _check_depth(data: bytes, name: str) -> None:
    """Brackets inside of strings count as well, which costs nothing: schedules have none there."""
    depth = 0
    for byte in data.translate(None, _NO_BRACKETS):
        depth += 1 if byte in b"[{" else -1
        if depth > MAX_DEPTH:
            raise FormatError(f"{name}: its objects and lists nest deeper than {MAX_DEPTH}")


_NO_BRACKETS = bytes(b for b in range(256) if b not in b"[]{}")


class Fields:
    """An object of a JSON document; `where` is its place there, in messages."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise FormatError(f"{where} is no object")
        self.value = value
        self.where = where

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number between `low` and `high`; without a default it must be there."""
        value = self.value.get(key, default)
        if value is None:
            raise FormatError(f"{self.where} has no '{key}'")
        if isinstance(value, bool) or not isinstance(value, int):
            raise FormatError(f"{self.where}: '{key}' is no whole number")
        if not low <= value <= high:
            raise FormatError(f"{self.where}: '{key}' is {shortened(str(value), 40)}, not between {low} and {high}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.value.get(key, default)
        if value is None:
            raise FormatError(f"{self.where} has no '{key}'")
        if not isinstance(value, str):
            raise FormatError(f"{self.where}: '{key}' is no text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.value.get(key, default)
        if not isinstance(value, bool):
            raise FormatError(f"{self.where}: '{key}' is neither true nor false")
        return value

    def items(self, key: str) -> list[Any]:
        """A list; empty where it is not there."""
        value = self.value.get(key, [])
        if not isinstance(value, list):
            raise FormatError(f"{self.where}: '{key}' is no list")
        return value

    def objects(self, key: str) -> list[Fields]:
        return [Fields(item, f"{self.where}, {key}[{n}]") for n, item in enumerate(self.items(key))]

    def integers(self, key: str, low: int, high: int) -> list[int]:
        values = self.items(key)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise FormatError(f"{self.where}: '{key}' holds {shortened(repr(value), 40)}, not {low} to {high}")
        return values
