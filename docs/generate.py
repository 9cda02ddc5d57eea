"""Writes the pages of docs/reference that follow from tables in csrc: `python docs/generate.py`.

With `--check` nothing is written: the pages that are stale are named, and the exit status is 1. A test does the same,
so a page cannot say what the code does not.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"


def read(path: str) -> str:
    """Return the text of a file, named from the repository's root."""
    return (ROOT / path).read_text()


def without_comments(text: str) -> str:
    """Return C++ text without its comments. Strings that hold // do not occur in our tables."""
    return re.sub(r"//[^\n]*", "", text)


def macro_calls(text: str, name: str) -> list[tuple[str, list[str]]]:
    """Return each use of a macro whose name matches `name`, as (name, arguments), in the file's order.

    Arguments are split at the commas outside parentheses and strings.
    """
    calls = []
    for start in re.finditer(rf"^({name})\(", without_comments(text), re.MULTILINE):
        calls.append((start[1], split_arguments(without_comments(text), start.end())))
    return calls


def split_arguments(text: str, position: int) -> list[str]:
    """Return the arguments of a call whose opening parenthesis ends at `position`."""
    arguments, argument, depth = [], "", 0
    for token in re.findall(r'"(?:\\.|[^"\\])*"|.', text[position:], re.DOTALL):
        if token == ")" and depth == 0:
            break
        if token == "," and depth == 0:
            arguments.append(argument.strip())
            argument = ""
            continue
        depth += (token == "(") - (token == ")")
        argument += token
    return [*arguments, argument.strip()]


def literal(text: str) -> str:
    """Return what adjacent C++ string literals hold together."""
    return "".join(ast.literal_eval(part) for part in re.findall(r'"(?:\\.|[^"\\])*"', text))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def page(title: str, source: str, *parts: str) -> str:
    """Return a page: its title, where it comes from, then the parts, with blank lines between them."""
    note = f"<!-- Made by docs/generate.py from {source}. Change that, then run the script. -->"
    return "\n\n".join([f"# {title}", note, *(part.strip("\n") for part in parts)]) + "\n"


# --- Settings: csrc/base/env.def


_KINDS = {
    "INT": "integer",
    "DOUBLE": "number",
    "BOOL": "0 or 1",
    "SIZE": "bytes; `K`, `M`, `G` of 1024",
    "RATE": "rate: `200Mbit`, `25MB`; bytes a second",
    "STRING": "text",
}


def setting_row(kind: str, arguments: list[str]) -> list[str]:
    """Return a row of the settings' table for one row of env.def."""
    name, aliases, doc = literal(arguments[1]), literal(arguments[2]).split(), literal(arguments[-1])
    default = "0" if kind == "RATE" else literal(arguments[3]) if kind == "STRING" else arguments[3]
    default = {"true": "1", "false": "0"}.get(default, default)
    values = _KINDS[kind]
    if kind in ("INT", "DOUBLE"):
        values += f", {arguments[4]} to {arguments[5]}"
    others = ", ".join(f"`{alias[1:]}` (the opposite)" if alias.startswith("!") else f"`{alias}`" for alias in aliases)
    return [f"`{name}`", others, f"`{default}`" if default else "", values, doc]


def settings_page() -> str:
    """Return docs/reference/settings.md."""
    text = read("csrc/base/env.def")
    calls = macro_calls(text, r"SETTING_\w+")
    rows = [setting_row(name.removeprefix("SETTING_"), arguments) for name, arguments in calls]
    tools = [[f"`{literal(name)}`", literal(doc)] for _, (name, doc) in macro_calls(text, "TOOL_VARIABLE")]
    return page(
        "Settings",
        "csrc/base/env.def",
        """Environment variables, read once, at first use. A variable counts first; then `NAME=value` lines of the
file that `NCCL_CONF_FILE` names (else `~/.nccl.conf`) and of `/etc/nccl.conf`; then the default. A value that cannot be
read gives a warning that names it, and the default counts. A name that starts with `THESEUS_` and is none of these
gives a warning, too. `theseus env` shows the values in force and where each comes from.""",
        table(["name", "also honoured", "default", "values", "meaning"], rows),
        "Build, tests and benchmarks read variables of their own, which the library passes over:",
        table(["name", "read by"], tools),
    )


# --- The NCCL API: csrc/nccl_api/nccl_api.def


# What a native function does on host memory that its name does not say. Each is checked to be native.
_NOTES = {
    "ncclCommSuspend": "there is no GPU memory to give back; collectives are refused until `ncclCommResume`",
    "ncclCommMemStats": "all figures are of GPU memory: 0",
    "ncclCommRegister": "remembered; changes no speed (`ncclMemAlloc`'s memory is shared already)",
    "ncclCommWindowRegister": "on host memory remembered; on GPUs the real NCCL's, if all ranks have it",
    "ncclMemAlloc": "memory that peers on the host map: no copy is needed for it; on GPUs the real NCCL's, if any",
    "ncclSetEncryption": "mode NONE only; `ncclInvalidUsage` else",
    "ncclCommCuDevice": "0, or the number given to `ncclCommInitAll`",
    "ncclCommQueryProperties": "on host memory: device API, multicast and RMA are not there",
    "ncclTeamLsa": "on host memory a team of one: no kernel reaches another rank's memory",
    "ncclCommGrow": "blocking communicators, outside groups",
}


def version_text(code: str) -> str:
    """Return an NCCL version code as people write it; 21602 stands for all older ones too."""
    number = int(code)
    text = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return "2.16 or older" if number <= 21602 else text


def refusals() -> tuple[dict[str, str], str]:
    """Return why functions are unsupported, by name, and the reason for all others, from unsupported.cc."""
    body = read("csrc/nccl_api/unsupported.cc").split("const char* reason(", 1)[1].split("\n}\n", 1)[0]
    reasons: dict[str, str] = {}
    for condition, text in re.findall(r"if \((.*?)\) \{\s*return (.*?);", body, re.DOTALL):
        reasons.update(dict.fromkeys(re.findall(r'function == "(\w+)"', condition), literal(text)))
    return reasons, literal(body.rsplit("return", 1)[1])


def nccl_api_page() -> str:
    """Return docs/reference/nccl-api.md."""
    text = read("csrc/nccl_api/nccl_api.def")
    reasons, otherwise = refusals()
    sections: list[str] = []
    counts: dict[str, int] = {}
    noted = set()
    for part in re.split(r"^// ---- ", text, flags=re.MULTILINE)[1:]:
        rows = []
        for macro, arguments in macro_calls(part, r"NCCL_FUNCTION(?:_WITHOUT_TWIN)?"):
            disposition, version, _, name = arguments[:4]
            counts[disposition] = counts.get(disposition, 0) + 1
            refused = disposition in ("unsupported", "forward")
            note = reasons.get(name, otherwise) if refused else _NOTES.get(name, "")
            noted |= set() if refused else {name}
            if macro.endswith("TWIN"):
                note = "; ".join(filter(None, [note, "has no twin"]))
            rows.append([f"`{name}`", version_text(version), disposition, note])
        sections += [f"## {part.splitlines()[0]}", table(["function", "since NCCL", "disposition", "note"], rows)]
    strangers = set(_NOTES) - noted
    if strangers:
        raise ValueError(f"docs/generate.py has notes on what is no native function: {', '.join(sorted(strangers))}")
    total = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return page(
        "NCCL's functions",
        "csrc/nccl_api/nccl_api.def",
        f"""`libnccl.so.2` exports {sum(counts.values())} functions ({total}), each but one with its twin `pnccl…`.
*Native* functions work with NCCL's meaning. *Forward* are those that only the real NCCL has: where a communicator is
on a GPU and the real NCCL is there they go to it, on host memory they are refused. *Either* is native, but what the
real NCCL made (windows, and memory for them) goes back to it. *Unsupported* ones, and refused ones, return
`ncclInvalidUsage`, and `ncclGetLastError` gives the reason in the last column. None is missing: a program that links
against the newest NCCL links against this.""",
        *sections,
    )


# --- Built-in algorithms: csrc/compiler/registry.cc


def collectives_of(expression: str, names: dict[str, str]) -> list[str]:
    """Return the collectives of a mask such as `kAllReduce | bit(Collective::AllGather)`."""
    found: list[str] = []
    for term in re.split(r"\s*\|\s*", expression.strip()):
        direct = re.fullmatch(r"bit\(Collective::(\w+)\)", term)
        found += [direct[1]] if direct else collectives_of(names[term], names)
    return found


def algorithms_page() -> str:
    """Return docs/reference/algorithms.md."""
    text = without_comments(read("csrc/compiler/registry.cc"))
    masks = dict(re.findall(r"constexpr uint32_t (k\w+) = ([^;]+);", text))
    body = re.search(r"table = \{(.*?)\n  \};", text, re.DOTALL)
    entries = re.findall(r"\{(\"\w+\",.*?)\}", body[1] if body else "", re.DOTALL)
    rows = []
    for entry in entries:
        name, summary, mask, even, _ = split_arguments(entry + ")", 0)
        hosts = "as many ranks on each" if even == "true" else "any"
        rows.append([f"`{literal(name)}`", literal(summary), ", ".join(collectives_of(mask, masks)), hosts])
    if not rows:
        raise ValueError("docs/generate.py finds no table of algorithms in csrc/compiler/registry.cc")
    return page(
        "Built-in algorithms",
        "csrc/compiler/registry.cc",
        """An algorithm is a list of transfers between ranks (`csrc/schedule/algorithm.h`). These are built for any
number of ranks and rails; the compiler lowers each to a plan, and tests prove the plans over many shapes.""",
        table(["name", "how", "collectives", "ranks per host"], rows),
        """Which one runs is decided by `choose` in `csrc/policy/choose.cc`: a cost model over collective, bytes,
ranks, hosts and rails, which all ranks know alike. `theseus explain` shows the candidates of a request and their
predicted times.

`THESEUS_ALGO` (or `NCCL_ALGO`) narrows the choice, with NCCL's grammar: `ring,tree` allows two, `^tree` all but one,
`allreduce:ring;broadcast:^direct` is for single collectives. Where it leaves nothing usable it is set aside, and the
log says so. All ranks must have the same value: a difference is an error that names both.

Send, recv, all-to-all with uneven splits and the groups of NCCL's point-to-point calls have no plan: they run as
transfers between pairs (`csrc/runtime/p2p.cc`), cut over all rails. A barrier is an AllReduce of one byte.""",
    )


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "nccl-api.md": nccl_api_page,
    "algorithms.md": algorithms_page,
}


def stale_pages() -> list[str]:
    """Return the names of the pages that are missing or differ from what the tables give."""
    files = {name: REFERENCE / name for name in PAGES}
    return [name for name, file in files.items() if not file.exists() or file.read_text() != PAGES[name]()]


def main() -> int:
    """Write the pages that differ, or with --check only name them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a page is stale")
    check = parser.parse_args().check
    stale = stale_pages()
    for name in stale:
        if check:
            print(f"docs/reference/{name} is stale: run python docs/generate.py", file=sys.stderr)
        else:
            REFERENCE.mkdir(parents=True, exist_ok=True)
            (REFERENCE / name).write_text(PAGES[name]())
            print(f"wrote docs/reference/{name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
