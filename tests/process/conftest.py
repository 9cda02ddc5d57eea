"""Fixtures of the tests over processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from process.agents import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[[int], Cluster]]:
    """Return a function that starts the agents of a job on so many hosts; they end with the test."""
    made: list[Cluster] = []

    def make(hosts: int) -> Cluster:
        made.append(Cluster(tmp_path / f"state{len(made)}", hosts))
        made[-1].ready()
        return made[-1]

    yield make
    for each in made:
        each.close()
