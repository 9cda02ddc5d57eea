"""What a command works on: algorithms from programs and by name, plans from files of all known formats."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from resccl.cli.console import Failure
from resccl.compiler import built_in, built_in_names
from resccl.errors import AlgorithmError
from resccl.lang import Algorithm
from resccl.plan import Plan
from resccl.topology import Topology

DEFAULT_FUNCTION = "algorithm"
PLAN_FILES = (".plan", ".json", ".xml")
"""Endings of files that hold plans, or schedules of other tools."""


@dataclass
class LoadedPlan:
    """A plan and what its importer had to say."""

    plan: Plan
    format: str = "plan"
    notes: list[str] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)


def load_algorithm(
    source: str, topology: Topology, collective: str | None = None, root: int = 0, settings: Sequence[str] = ()
) -> Algorithm:
    """Return the algorithm that `source` names: a Python file, MODULE:function, or a built-in one."""
    file, colon, name = source.rpartition(":") if ":" in source else (source, "", "")
    if file.endswith(".py"):
        module = _module_of_file(Path(file))
    elif colon:
        try:
            module = importlib.import_module(file)
        except ImportError as error:
            raise ValueError(f"{source}: there is no module '{file}' ({error})") from error
    else:
        return _built_in(source, topology, collective, root)
    function = getattr(module, name or DEFAULT_FUNCTION, None)
    if not callable(function):
        raise ValueError(f"{file} has no function '{name or DEFAULT_FUNCTION}'; name another one: {file}:NAME")
    return _call(function, source, _arguments(function, source, topology, settings))


def load_plan(path: Path, topology: Topology | None = None) -> LoadedPlan:
    """Read a plan of ours, or import what another tool wrote; an algorithm is compiled for `topology` (one host)."""
    with path.open("rb") as stream:
        begin = stream.read(8)
    if begin == b"THSPLAN\0":  # may be too large to be taken apart
        return LoadedPlan(Plan.load(path))
    from resccl import compiler, formats

    found = formats.load(path)
    if found.plan is not None:
        plan = Plan.from_dict(found.plan)
    else:
        assert found.algorithm is not None
        algorithm = Algorithm.from_dict(found.algorithm)
        plan = compiler.compile(algorithm, topology or Topology.uniform(1, algorithm.ranks), verify=False)
    return LoadedPlan(plan, str(found.meta.get("format", "plan")), list(found.notes), dict(found.meta))


def write_plan(loaded: LoadedPlan, output: Path) -> None:
    """Write a plan as what the file's name says. A plan goes to MSCCL XML only if the verifier accepts it."""
    check_output(output)
    if output.suffix == ".xml":
        from resccl.formats import export_msccl_xml

        loaded.plan.verify()
        output.write_bytes(export_msccl_xml(loaded.plan.to_dict(), loaded.meta))
    else:
        loaded.plan.save(output)


def check_output(output: Path) -> None:
    """Refuse a name that does not say what is to be written."""
    if output.suffix not in (".xml", ".json", ".plan"):
        raise ValueError(f"{output}: the name says what is written; end it in .plan, .json or .xml (MSCCL)")


def _built_in(name: str, topology: Topology, collective: str | None, root: int) -> Algorithm:
    names = [each for each, _, _ in built_in_names()]
    if name not in names:
        raise ValueError(
            f"'{name}' is neither a Python file (FILE.py:function), nor MODULE:function, nor a built-in algorithm "
            f"({', '.join(names)})"
        )
    if collective is None:
        raise ValueError(f"the built-in algorithm '{name}' needs --collective (AllReduce, AllGather, ...)")
    return built_in(name, collective, topology, root)


def _module_of_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file")
    spec = importlib.util.spec_from_file_location(f"resccl_program_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file}: Python cannot load it")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))  # as `python FILE` does
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failure_of_program(error, str(file)) from error
    finally:
        sys.path.pop(0)
    return module


def _arguments(
    function: Callable[..., object], source: str, topology: Topology, settings: Sequence[str]
) -> dict[str, Any]:
    sizes = {len(ranks) for ranks in topology.ranks_by_host()}
    known: dict[str, Any] = {
        "topology": topology,
        "ranks": topology.ranks,
        "hosts": topology.hosts,
        "gpus": sizes.pop(),
        "rails": topology.rails,
    }
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting}: write NAME=VALUE")
        known[name] = _number_or_text(value)
    parameters = inspect.signature(function).parameters
    unknown = [name for name in known if name not in parameters and any(s.startswith(name + "=") for s in settings)]
    if unknown:
        raise ValueError(f"--set {unknown[0]}: {source} takes {', '.join(parameters) or 'no arguments'}")
    missing = [name for name, each in parameters.items() if each.default is each.empty and name not in known]
    if missing:
        raise ValueError(f"{source} needs '{missing[0]}': --set {missing[0]}=VALUE")
    return {name: value for name, value in known.items() if name in parameters}


def _number_or_text(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _call(function: Callable[..., object], source: str, arguments: dict[str, Any]) -> Algorithm:
    try:
        made = function(**arguments)
    except Exception as error:
        raise _failure_of_program(error, source) from error
    if not isinstance(made, Algorithm):
        raise ValueError(f"{source} returned {type(made).__name__}, no resccl.Algorithm")
    return made


def _failure_of_program(error: Exception, source: str) -> Failure:
    """Say where a user's program failed: the innermost line that is none of this package's."""
    if isinstance(error, AlgorithmError) and error.line is not None:
        return Failure(str(error), exit_code=2)
    package = str(Path(__file__).parent.parent)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if (not frame.filename.startswith(package) or "examples" in frame.filename)
        and "importlib" not in frame.filename
    ]
    if isinstance(error, SyntaxError):
        return Failure(f"{error.filename}:{error.lineno}: {error.msg}", exit_code=2)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else source
    said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return Failure(f"{where}: {said}", exit_code=2)
