"""The door for schedules of others: a file, whatever its format; a folder of files. The only part that reads files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from resccl.errors import ResCCLError
from resccl.formats.common import MAX_FILE_BYTES, FormatError, Imported
from resccl.formats.msccl_plan import import_msccl_xml
from resccl.formats.mscclpp_plan import import_mscclpp_json
from resccl.formats.teccl_json import import_teccl_json
from resccl.plan import Plan

MAX_FILES = 10_000
_SUFFIXES = (".xml", ".json", ".plan")


@dataclass
class Folder:
    """What a folder holds: schedules by file name, and why the other files were skipped."""

    loaded: dict[str, Imported] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def load(path: Path | str) -> Imported:
    """The schedule in the file `path`: MSCCL XML, MSCCL++ JSON, TE-CCL JSON, or a plan of ours, told by its content.

    Raises FormatError naming file, place and reason; OSError where the file cannot be read.
    """
    file = Path(path)
    if not file.is_file():
        raise FormatError(f"{file}: there is no such file" if not file.exists() else f"{file}: it is no file")
    with file.open("rb") as stream:
        data = stream.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise FormatError(f"{file}: it is larger than {MAX_FILE_BYTES >> 20} MB, which no schedule is")
    return load_bytes(data, file.name)


def load_bytes(data: bytes, name: str) -> Imported:
    """The schedule in `data`, as load() tells it; `name` stands for the file in messages."""
    reader = _reader_of(data)
    if reader is None:
        raise FormatError(f"{name}: it is neither MSCCL XML, nor MSCCL++ or TE-CCL JSON, nor a plan")
    return reader(data, name)


def _reader_of(data: bytes) -> Callable[[bytes, str], Imported] | None:
    if data.startswith(b"THSPLAN\0"):
        return _plan_file
    text = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"<"):
        return import_msccl_xml
    if not text.startswith(b"{"):
        return None
    if b'"rank_plans"' in text:
        return _plan_json
    if b'"gpus"' in text:
        return import_mscclpp_json
    return import_teccl_json if b'-Flows"' in text else None


def _plan_file(data: bytes, name: str) -> Imported:
    try:
        return _own(Plan.from_bytes(data))
    except ValueError as error:
        raise FormatError(f"{name}: {error}") from None


def _plan_json(data: bytes, name: str) -> Imported:
    try:
        return _own(Plan.from_json(data.decode()))
    except ValueError as error:
        raise FormatError(f"{name}: {error}") from None


def _own(plan: Plan) -> Imported:
    fields = plan.to_dict()
    meta = {"format": "plan", "name": fields["name"], "collective": fields["collective"]}
    return Imported("plan", plan=fields, meta=meta)


def load_folder(path: Path | str) -> Folder:
    """All schedules in a folder, not in folders below it. Never fails: what cannot be loaded is in `skipped`."""
    found = Folder()
    folder = Path(path)
    try:
        files = sorted(folder.iterdir(), key=lambda file: file.name)
    except OSError as error:
        found.skipped[str(folder)] = f"it cannot be listed: {error.strerror}"
        return found
    for file in files[:MAX_FILES]:
        if file.suffix.lower() not in _SUFFIXES or file.name.startswith("."):
            found.skipped[file.name] = f"its name does not end in {', '.join(_SUFFIXES)}, or begins with a dot"
            continue
        try:
            found.loaded[file.name] = load(file)
        except ResCCLError as error:
            found.skipped[file.name] = str(error)
        except OSError as error:
            found.skipped[file.name] = f"it cannot be read: {error.strerror}"
    for file in files[MAX_FILES:]:
        found.skipped[file.name] = f"it comes after the first {MAX_FILES} files"
    return found
