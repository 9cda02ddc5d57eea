"""What the tests of this folder share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from abi import binding


@pytest.fixture(scope="session")
def folder() -> Path:
    """Give the folder of the built libraries, or skip."""
    found = binding.library_folder()
    if found is None:
        pytest.skip("libnccl.so.2 is not built: run make test, or name its folder in THESEUS_LIB_DIR")
    return found


@pytest.fixture(scope="session")
def nccl(folder: Path) -> binding.Nccl:
    """Give the loaded library."""
    # A rank that waits for one which failed shall not outlast the test. Read by the library at its first call.
    os.environ.setdefault("THESEUS_INIT_TIMEOUT", "30")
    os.environ.setdefault("THESEUS_TIMEOUT", "60")
    return binding.Nccl(folder)
