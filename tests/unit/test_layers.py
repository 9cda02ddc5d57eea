"""The house holds: csrc's folders include only folders below them, pure folders do no I/O, and C++ knows no Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
CSRC = REPOSITORY / "csrc"

# Highest first; a folder may include itself and what stands after it.
# fmt: off
LAYERS = [
    "bindings", "nccl_api", "runtime", "executor", "resource", "observe", "policy", "transport", "compiler",
    "schedule", "context", "priority", "device", "net", "drivers", "base",
]
# fmt: on
# Beside the layers: on base alone, included by nothing but their own bindings.
SIDE_LAYERS = ["flowsim", "rdma"]
PURE = {"policy", "compiler", "schedule", "context", "priority", "flowsim"}
# What reads a clock, holds a thread or touches the world outside.
IMPURE_HEADERS = re.compile(
    r"sys/.*|unistd\.h|fcntl\.h|poll\.h|pthread\.h|netdb\.h|netinet/.*|arpa/.*|time\.h|signal\.h|dlfcn\.h|"
    r"thread|chrono|ctime|csignal|fstream|iostream|filesystem|future|mutex|shared_mutex|condition_variable|stop_token|semaphore"
)
PYTHON_HEADERS = re.compile(r"Python\.h|pybind11/.*|nanobind/.*|torch/.*")

Sources = dict[str, str]


def read_sources() -> Sources:
    """Return the text of every C++ file, by its path relative to csrc."""
    files = (path for suffix in ("h", "cc", "cuh", "def") for path in CSRC.rglob(f"*.{suffix}"))
    return {path.relative_to(CSRC).as_posix(): path.read_text() for path in sorted(files)}


def includes_of(text: str) -> list[tuple[str, str]]:
    """Return the includes of a file as (kind, name), kind being '"' or '<'; those in comments do not count."""
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.findall(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', code, flags=re.MULTILINE)


def resolve(file: str, name: str, sources: Sources) -> str | None:
    """Return the path, relative to csrc, of an included file of ours; None for anything else."""
    folder = file.split("/")[0]
    return next((path for path in (name, f"{folder}/include/{name}") if path in sources), None)


def may_include(file: str, target: str) -> bool:
    """Return whether the layers allow a file of csrc to include another."""
    folder, below = file.split("/")[0], target.split("/")[0]
    if below in SIDE_LAYERS:
        return folder == below or file.startswith(f"bindings/{below}/")
    if folder in SIDE_LAYERS or any(file.startswith(f"bindings/{side}/") for side in SIDE_LAYERS):
        return below == "base"
    return LAYERS.index(below) >= LAYERS.index(folder)


def layer_faults(sources: Sources) -> Iterator[str]:
    """Name each include that points upwards, out of csrc's folders, or at a file that does not exist."""
    for file, text in sources.items():
        folder = file.split("/")[0]
        if folder not in LAYERS + SIDE_LAYERS:
            yield f"{file}: csrc/{folder} has no place in the layers; add it to LAYERS here and in cmake/Layers.cmake"
            continue
        for kind, name in includes_of(text):
            target = resolve(file, name, sources)
            if target is None:
                if kind == '"':
                    yield f'{file}: "{name}" is no file of csrc; ours are named from csrc, as in "base/result.h"'
            elif not may_include(file, target):
                yield f"{file}: {folder} may not include {target}, which does not stand below it"


def impurity_faults(sources: Sources) -> Iterator[str]:
    """Name each way from a file of a pure folder to a header that reads a clock, holds a thread or does I/O."""
    for file in sources:
        if file.split("/")[0] not in PURE:
            continue
        ways: list[tuple[str, ...]] = [(file,)]
        seen = {file}
        while ways:
            way = ways.pop()
            for _, name in includes_of(sources[way[-1]]):
                target = resolve(way[-1], name, sources)
                if target is None and IMPURE_HEADERS.fullmatch(name):
                    yield f"{' > '.join(way)} > <{name}>: {file.split('/')[0]} is pure"
                elif target is not None and target not in seen:
                    seen.add(target)
                    ways.append((*way, target))


def python_faults(sources: Sources) -> Iterator[str]:
    """Name each file outside bindings that includes Python's world."""
    for file, text in sources.items():
        if not file.startswith("bindings/"):
            yield from (f"{file}: {name}" for _, name in includes_of(text) if PYTHON_HEADERS.fullmatch(name))


def test_arrows_only_go_down() -> None:
    """A folder of csrc includes only itself and the layers below it, by names that start at csrc."""
    sources = read_sources()
    assert sources, "csrc holds no source"
    assert list(layer_faults(sources)) == []


def test_pure_folders_do_no_io() -> None:
    """No folder of PURE reaches a clock, thread or system header, even through others."""
    assert list(impurity_faults(read_sources())) == []


def test_core_knows_no_python() -> None:
    """Only bindings may include Python or pybind11."""
    assert list(python_faults(read_sources())) == []


def test_cmake_links_the_same_layers() -> None:
    """The order of linking equals the order of including, so what compiles also links."""
    text = (REPOSITORY / "cmake" / "Layers.cmake").read_text()
    declared = dict(re.findall(r"set\((THESEUS_\w*LAYERS)\s+([\w\s]+)\)", text))
    assert declared["THESEUS_LAYERS"].split() == list(reversed(LAYERS))[:-1]
    assert declared["THESEUS_SIDE_LAYERS"].split() == SIDE_LAYERS


@pytest.mark.parametrize(
    ("check", "sources"),
    [
        (layer_faults, {"base/a.h": '#include "net/b.h"', "net/b.h": ""}),
        (layer_faults, {"base/a.h": "#include <net/b.h>", "net/b.h": ""}),
        (layer_faults, {"base/a.h": '#include "b.h"', "base/b.h": ""}),
        (layer_faults, {"attic/a.h": ""}),
        (layer_faults, {"flowsim/a.h": '#include "schedule/b.h"', "schedule/b.h": ""}),
        (layer_faults, {"runtime/a.h": '#include "flowsim/b.h"', "flowsim/b.h": ""}),
        (layer_faults, {"bindings/resccl/a.cc": '#include "flowsim/b.h"', "flowsim/b.h": ""}),
        (layer_faults, {"bindings/flowsim/a.cc": '#include "runtime/b.h"', "runtime/b.h": ""}),
        (impurity_faults, {"policy/a.h": "#include <thread>"}),
        (impurity_faults, {"compiler/a.cc": '#include "base/clock.h"', "base/clock.h": "# include <chrono>"}),
        (impurity_faults, {"schedule/a.cc": "#include <sys/mman.h>"}),
        (python_faults, {"base/a.h": "#include <Python.h>"}),
        (python_faults, {"runtime/a.cc": '#include "pybind11/pybind11.h"'}),
    ],
)
def test_each_check_sees_a_breach(check: Callable[[Sources], Iterator[str]], sources: Sources) -> None:
    """The checks above can fail: each kind of breach is found."""
    assert len(list(check(sources))) == 1


def test_side_layers_stand_on_base_below_their_bindings() -> None:
    """What the layers allow a side layer is not reported: base below it, its own bindings above."""
    sources = {
        "base/a.h": "",
        "flowsim/b.h": '#include "base/a.h"',
        "bindings/flowsim/c.cc": '#include "flowsim/b.h"\n#include "base/a.h"',
    }
    assert list(layer_faults(sources)) == []
