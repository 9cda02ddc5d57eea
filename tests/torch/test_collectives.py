"""Every collective that torch.distributed offers, on worlds of 1, 2 and 3 ranks. The cases: cases_collectives.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CASES = re.findall(r"^def (case_\w+)\(", Path(__file__).with_name("cases_collectives.py").read_text(), re.MULTILINE)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_case(run: Callable[..., list[Any]], ranks: int, case: str) -> None:
    run(ranks, "cases_collectives", case)
