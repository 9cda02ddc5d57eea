"""The shared ranks of the torch tests."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")


def load_pool() -> Any:
    """Load pool.py by path: a folder called torch must not become importable under that name."""
    name = "theseus_test_pool"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("pool.py"))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def _pools() -> Iterator[dict[int, Any]]:
    pools: dict[int, Any] = {}
    yield pools
    for pool in pools.values():
        pool.close()


@pytest.fixture
def run(_pools: dict[int, Any]) -> Callable[..., list[Any]]:
    """A function that runs a case on the shared ranks of a world size, and returns the results by rank."""

    def run_case(ranks: int, module: str, case: str, *arguments: Any, timeout: float = 90.0) -> list[Any]:
        if ranks not in _pools:
            _pools[ranks] = load_pool().Pool(ranks)
        try:
            return list(_pools[ranks].run(module, case, *arguments, timeout=timeout))
        except BaseException:
            _pools.pop(ranks).close(kill=True)
            raise

    return run_case


@pytest.fixture
def fresh_pool() -> Iterator[Callable[[int], Any]]:
    """Ranks of the test's own, for what breaks a group."""
    pools: list[Any] = []

    def make(ranks: int) -> Any:
        pools.append(load_pool().Pool(ranks))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close(kill=True)
