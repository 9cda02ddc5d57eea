"""Policies from Python: what the guide says is so, and Python reads the same arithmetic the same way."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import pytest

from theseus_py import _core, errors

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "policies.md"
REQUEST = {
    "collective": "allreduce",
    "dtype": "float32",
    "op": "sum",
    "root": 0,
    "bytes": 1 << 20,
    "count": 1 << 18,
    "ranks": 16,
    "hosts": 4,
    "rails": 4,
}
ATTRIBUTES: dict[str, float | list[float]] = {
    "nic_health": [1, 0.5, 0.25, 1],
    "healing": 3,
    "link-load": 0.5,
    "sum": 2,
}


def evaluate(text: str) -> float:
    return _core.evaluate_policy(text, REQUEST, ATTRIBUTES)


def blocks() -> list[str]:
    return re.findall(r"^```policy\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def rows() -> list[tuple[str, float]]:
    examples = GUIDE.read_text().partition("## Examples")[2]
    return [
        (text, float(result)) for text, result in re.findall(r"^\| `(.+)` \| (-?[\d.]+) \|$", examples, re.MULTILINE)
    ]


@pytest.mark.parametrize("text", blocks())
def test_blocks_of_the_guide_are_policies(text: str) -> None:
    """Every block parses, reads what its example has, and gives a number."""
    assert set(_core.check_policy(text)) <= set(ATTRIBUTES)
    assert math.isfinite(evaluate(text))


@pytest.mark.parametrize(("text", "result"), rows())
def test_examples_of_the_guide_give_what_it_says(text: str, result: float) -> None:
    assert evaluate(text) == result


def test_the_guide_has_examples() -> None:
    """The two tests above look at something."""
    assert len(blocks()) >= 7
    assert len(rows()) >= 10


def test_the_guide_names_every_word() -> None:
    """Names of collectives, dtypes and ops that the guide lists are those that requests take."""
    table = GUIDE.read_text()
    for field in ("collective", "dtype", "op"):
        row = re.search(rf"^\| `{field}` \| (.*) \|$", table, re.MULTILINE)
        assert row is not None
        listed = re.sub(r"where nothing is reduced|\b(also|and|or)\b", "", row[1])
        names = re.findall(r"\b[a-z]+\d\w*\b|\b[a-z]{3,}\b", listed)
        assert len(names) >= 5
        for name in names:
            assert _core.evaluate_policy(f"{field} == {name}", {field: name}, {}) == 1, name


def test_check_names_the_attributes() -> None:
    assert _core.check_policy("b > 1 and a[root] < b and bytes > 2 or `c-d`") == ["b", "a", "c-d"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bytes >= 1M and dtype == flaot32", "column 26: flaot32 is not a dtype"),
        ("bytes && 1", "column 7: '&&' is written 'and' here"),
        ("(bytes", "column 7: expected an operator or ')', found the end"),
        ("nothing", "no attribute 'nothing'"),
        ("nic_health", "column 1: the result is an array"),
        ("1 / (hosts - 4)", "column 3: division by zero"),
    ],
)
def test_faults_name_the_column(text: str, message: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=re.escape(message)):
        evaluate(text)


def test_requests_and_attributes_are_checked() -> None:
    with pytest.raises(errors.InvalidArgument, match="no field 'size'"):
        _core.evaluate_policy("1", {"size": 3}, {})
    with pytest.raises(errors.InvalidArgument, match="'ring' is no value of collective"):
        _core.evaluate_policy("1", {"collective": "ring"}, {})
    with pytest.raises(errors.InvalidArgument, match="'a' has 0 elements"):
        _core.evaluate_policy("1", {}, {"a": []})


def grow(source: random.Random, depth: int) -> str:
    """Return an expression that is both a policy and Python."""
    if depth == 0:
        return source.choice(["bytes", "hosts", "root", "healing", "0.1", "3", "7.5", "2", "1e6", "0"])

    def part() -> str:
        return grow(source, depth - source.randint(1, depth))

    shape = source.randrange(8)
    if shape == 0:
        return f"({part()} if {part()} else {part()})"
    if shape == 1:
        return f"{source.choice(['min', 'max'])}({part()}, {part()})"
    if shape == 2:
        return f"float({part()} < {part()} <= {grow(source, 0)})"
    if shape == 3:
        return f"float(not {part()})"
    if shape == 4:
        return f"float(bool({part()} {source.choice(['and', 'or'])} {part()}))"
    return f"({part()} {source.choice(['+', '-', '*', '/', '//', '%'])} -{part()})"


def test_python_reads_arithmetic_alike() -> None:
    """Random arithmetic gives the same bits as in Python, division and remainder of negative numbers included."""
    source = random.Random(5)
    names = {
        "bytes": 1048576.0,
        "hosts": 4.0,
        "root": 0.0,
        "healing": 3.0,
        "min": min,
        "max": max,
        "bool": bool,
        "float": float,
    }
    same = faults = 0
    for _ in range(20000):
        text = grow(source, source.randint(1, 5))
        numbers = re.sub(r"(?<![\w.])(\d+)(?![\w.])", r"\1.0", text)
        policy = text.replace("bool(", "(").replace("float(", "(")
        try:
            expected = float(eval(numbers, {"__builtins__": {}}, names))
        except ZeroDivisionError:
            with pytest.raises(errors.InvalidArgument):
                evaluate(policy)
            faults += 1
            continue
        assert repr(evaluate(policy)) == repr(expected), policy
        same += 1
    assert same > 10000
    assert faults > 500
