"""Training under DDP and FSDP2 on the backend. The cases: cases_training.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CASES = re.findall(r"^def (case_\w+)\(", Path(__file__).with_name("cases_training.py").read_text(), re.MULTILINE)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(run: Callable[..., list[Any]], case: str) -> None:
    run(2, "cases_training", case)


@pytest.mark.parametrize("case", ["case_ddp_equals_gloo", "case_fsdp2_equals_one_process"])
def test_other_worlds(run: Callable[..., list[Any]], case: str) -> None:
    run(1, "cases_training", case)
    run(3, "cases_training", case)
