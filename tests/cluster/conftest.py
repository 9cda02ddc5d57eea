"""Testbeds for the tests here; skipped with the reason where the machine cannot make them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from theseus_py.testbed import Testbed, missing

RATE = 100e6


@pytest.fixture(autouse=True, scope="session")
def _can_make_testbeds() -> None:
    lacking = [line for line in missing() if not line.startswith("strict priorities")]
    if lacking:
        pytest.skip("; ".join(lacking))


@pytest.fixture
def bed() -> Iterator[Testbed]:
    """Three hosts with two NICs of 100 Mbit/s each."""
    with Testbed(hosts=3, nics=2, rate=RATE) as made:
        yield made
