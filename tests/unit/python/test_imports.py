"""Importing the package costs next to nothing, and an import of torch never fails because of it."""

from __future__ import annotations

import subprocess
import sys

import pytest


def python(program: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", program]
    # Elsewhere, so that the package is the one the environment names and not the folder we happen to be in.
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_loads_neither_numpy_nor_the_core_nor_torch() -> None:
    program = "import sys, theseus_py; print([m for m in ('numpy', 'torch', 'theseus_py._core') if m in sys.modules])"
    assert python(program) == "[]"


def test_every_public_name_can_be_had() -> None:
    assert python("import theseus_py; print([n for n in theseus_py.__all__ if not hasattr(theseus_py, n)])") == "[]"


def test_unknown_name_is_an_attribute_error() -> None:
    import theseus_py

    with pytest.raises(AttributeError, match="no_such_name"):
        theseus_py.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    "order",
    [
        "import torch; import theseus_py.torch",
        "import theseus_py.torch; import torch",
        "import torch; from theseus_py.torch import autoload; autoload(); autoload()",
    ],
)
def test_backend_is_registered_once_whatever_comes_first(order: str) -> None:
    pytest.importorskip("torch")
    look = "import sys, torch.distributed as d; print(d.Backend('theseus'), 'theseus_py._core' in sys.modules)"
    assert python(f"{order}; {look}") == "theseus False"


def test_autoload_warns_and_does_not_raise_when_registration_fails() -> None:
    pytest.importorskip("torch")
    program = """
import warnings, theseus_py.torch as backend
def broken():
    raise RuntimeError("no such thing")
backend.register = broken
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    backend.autoload()
print([str(w.message) for w in caught])
"""
    assert "no such thing" in python(program)
