"""The pages say what is so: names and files exist, links lead somewhere, generated pages are those the tables give."""

from __future__ import annotations

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
REFERENCE = ROOT / "docs" / "reference"
# Pages that speak of our code by name; pytorch-suite.md names PyTorch's tests.
PAGES = [ROOT / "README.md", ARCHITECTURE, *sorted(set(REFERENCE.glob("*.md")) - {REFERENCE / "pytorch-suite.md"})]
ALL_PAGES = [
    *PAGES,
    REFERENCE / "pytorch-suite.md",
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
    ROOT / "tests" / "README.md",
]

SOURCES = ("csrc", "theseus_py", "leveller", "cmake", "tests", "benchmarks")
SUFFIXES = {".h", ".cc", ".c", ".def", ".py", ".pyi", ".cmake", ".map", ".in"}
TOP_FILES = ("setup.py", "pyproject.toml", "Makefile", "CMakeLists.txt")
# Names that only others bring.
FOREIGN = {"ulimit"}


def text_of(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def spans(page: Path) -> list[str]:
    """Return what a page sets in code type, once each."""
    found = re.findall(r"(?<!`)`([^`]+)`(?!`)", text_of(page))
    return sorted({re.sub(r"\s+", " ", span) for span in found})


@cache
def source_files() -> list[Path]:
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    return [*(file for file in files if file != Path(__file__)), *(ROOT / name for name in TOP_FILES)]


@cache
def words() -> frozenset[str]:
    """Return every word of the sources."""
    return frozenset(word for file in source_files() for word in re.findall(r"\w+", file.read_text()))


def fault_of(span: str) -> str | None:
    """Return what is wrong with a name in code type; None where it is right, or no name of ours."""
    if span.partition("/")[0] in (*SOURCES, "docs", ".ci") and re.fullmatch(r"[\w./-]+", span):
        return None if (ROOT / span).exists() else f"there is no {span}"
    if re.fullmatch(r"[\w.-]+\.(h|cc|def|py|md|cmake)", span):
        exists = any(file.name == span for file in source_files()) or (ROOT / span).exists()
        return None if exists else f"no file is called {span}"
    if re.fullmatch(r"[A-Za-z_]\w*((::|\.)[A-Za-z_~]\w*)*(\(\))?", span):
        unknown = [part for part in re.findall(r"\w+", span) if part not in words() | FOREIGN]
        return f"{span}: the sources know no {', '.join(unknown)}" if unknown else None
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_exist(page: Path) -> None:
    """Every file, folder, function, class and setting in code type is there in the sources."""
    assert [fault for span in spans(page) if (fault := fault_of(span))] == []


@pytest.mark.parametrize("page", [ROOT / "README.md", ARCHITECTURE], ids=lambda page: page.name)
def test_hops_name_functions_of_their_files(page: Path) -> None:
    """In the tables of the main path, each function is in the file beside it."""
    hops = re.findall(r"^\| [^|]+ \| `(csrc/[^`]+)` \| `([^`]+)` \|$", page.read_text(), re.MULTILINE)
    assert len(hops) >= 6
    missing = [
        f"{file}: {name}"
        for file, name in hops
        if not re.search(rf"\b{re.escape(name.rsplit('::', 1)[-1])}\(", (ROOT / file).read_text())
    ]
    assert missing == []


def test_architecture_describes_every_folder() -> None:
    """Each layer has a row of the table and a paragraph of its own; there is no row without a folder."""
    folders = sorted(path.name for path in (ROOT / "csrc").iterdir() if path.is_dir())
    text = ARCHITECTURE.read_text()
    assert sorted(re.findall(r"^\| `csrc/(\w+)/`", text, re.MULTILINE)) == folders
    assert [folder for folder in folders if not re.search(rf"^\*\*{folder}\*\* ", text, re.MULTILINE)] == []


def test_architecture_orders_the_layers_as_the_build_does() -> None:
    """The table stands in the order of cmake/Layers.cmake, highest first, and then what stands beside the layers."""
    text = (ROOT / "cmake" / "Layers.cmake").read_text()
    declared = dict(re.findall(r"set\((THESEUS_\w*LAYERS)\s+([\w\s]+)\)", text))
    rows = re.findall(r"^\| `csrc/(\w+)/`", ARCHITECTURE.read_text(), re.MULTILINE)
    order = ["bindings", *reversed(declared["THESEUS_LAYERS"].split()), *declared["THESEUS_SIDE_LAYERS"].split()]
    assert rows == [layer for layer in order if layer in rows]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    """Every link inside the repository leads to a file, and to a heading where it names one."""
    broken = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text_of(page)):
        if "://" in target:
            continue
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


@cache
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_fresh() -> None:
    """docs/reference says what the tables in csrc say; `python docs/generate.py` makes it so."""
    assert generator().stale_pages() == []


def test_generated_pages_leave_nothing_out() -> None:
    """Each row of the tables is a row of its page, counted without the generator's own reading."""
    counts = {
        "settings.md": ("csrc/base/env.def", r"^SETTING_\w+\(|^TOOL_VARIABLE\("),
        "nccl-api.md": ("csrc/nccl_api/nccl_api.def", r"^NCCL_FUNCTION\w*\("),
        "algorithms.md": ("csrc/compiler/registry.cc", r'^      \{"\w+", "'),
    }
    for page, (source, row) in counts.items():
        expected = len(re.findall(row, (ROOT / source).read_text(), re.MULTILINE))
        assert len(re.findall(r"^\| `", (REFERENCE / page).read_text(), re.MULTILINE)) == expected > 0, page


def test_every_setting_is_read() -> None:
    """The core, or Python by name, reads each setting: one that does nothing would be a promise not kept."""
    rows = re.findall(r'^SETTING_\w+\((\w+), "(\w+)"', (ROOT / "csrc" / "base" / "env.def").read_text(), re.MULTILINE)
    core = "".join(path.read_text() for path in (ROOT / "csrc").rglob("*.cc"))
    python = "".join(path.read_text() for path in (ROOT / "theseus_py").rglob("*.py"))
    assert rows
    assert [name for row, name in rows if f"settings::{row}()" not in core and f'"{name}"' not in python] == []


def test_errors_page_lists_every_code() -> None:
    """The table of errors has each code of base/result.h, with NCCL's name and Python's class for it."""
    result = (ROOT / "csrc" / "base" / "result.h").read_text()
    codes = dict(re.findall(r"^  (\w+) = (\d),$", result, re.MULTILINE))
    header = (ROOT / "csrc" / "nccl_api" / "include" / "nccl.h").read_text()
    nccl = {value: name for name, value in re.findall(r"\b(nccl\w+)\s*=\s*(\d),", header.split("ncclNumResults")[0])}
    python = {str(code): name for name, code in python_codes().items()}
    rows = {
        code: (theirs, ours)
        for code, theirs, ours in re.findall(
            r"^\| (\d) \| `(\w+)` \| (?:`(\w+)`)?[^|]*\|", (REFERENCE / "errors.md").read_text(), re.MULTILINE
        )
    }
    assert len(codes) == 9
    assert rows == {code: (nccl[code], python.get(code, "")) for code in codes.values()}


def python_codes() -> dict[str, int]:
    """Return the code that each exception class sets; read without importing, as the extension may not be built."""
    codes = {}
    for node in ast.parse((ROOT / "theseus_py" / "errors.py").read_text()).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for statement in node.body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "code":
                codes[node.name] = ast.literal_eval(statement.value)
    return codes


@pytest.mark.parametrize("span", ["csrc/base/nothing.h", "nothing.cc", "Star::levitate", "THESEUS_" + "NOTHING"])
def test_a_wrong_name_is_seen(span: str) -> None:
    """The check of names can fail."""
    assert fault_of(span) is not None
