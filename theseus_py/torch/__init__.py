"""The torch.distributed backend "theseus" for CPU tensors.

    import torch.distributed as dist
    dist.init_process_group("theseus")

Nothing needs to be imported where the package is installed: torch (2.5 and later) calls `autoload` when it is imported,
and torch 2.14 and later finds `register` by name. For older torch, `import theseus_py.torch` registers the backend.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = ["autoload", "monitored_barrier", "register"]

# torch imports this module by its entry points while it is itself being imported, and this module imports torch below:
# whatever comes first, everything above the last line is defined before torch looks for it.


def register() -> None:
    """Make the name "theseus" known to torch.distributed; does nothing where torch has none, or knows it."""
    import torch.distributed as dist

    if not dist.is_available() or "THESEUS" in dist.Backend._plugins:
        return
    dist.Backend.register_backend("theseus", _create, extended_api=True, devices=["cpu"])
    _accept_in_monitored_barrier()


def autoload() -> None:
    """Entry point of group torch.backends. Never raises: an import of torch must not fail because of us."""
    try:
        register()
    except Exception as error:
        import warnings

        warnings.warn(f"the torch backend 'theseus' is not available: {error}", stacklevel=2)


def _create(options: Any, backend_options: Any) -> Any:
    """Make the process group for torch.distributed; the heavy imports happen here."""
    from theseus_py.torch.backend import ProcessGroupTheseus

    return ProcessGroupTheseus(
        options.store, options.group_rank, options.group_size, options.timeout, name=options.group_id or ""
    )


def monitored_barrier(
    group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """Wait for all ranks; when some do not come in time, fail everywhere and name them, first on rank 0.

    `wait_all_ranks` names all that are missing, not only the first.
    """
    import torch.distributed as dist

    chosen: Any = dist.group.WORLD if group is None else group
    chosen.monitored_barrier(timeout, wait_all_ranks)


def _accept_in_monitored_barrier() -> None:
    """Let dist.monitored_barrier take groups of ours: torch compares the backend's name with gloo's before it asks."""
    import functools

    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    original = distributed_c10d.monitored_barrier

    @functools.wraps(original)
    def wrapper(group: Any = dist.group.WORLD, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        chosen = dist.group.WORLD if group is None else group
        backend = sys.modules.get("theseus_py.torch.backend")
        if backend is not None and isinstance(chosen, backend.ProcessGroupTheseus):
            return monitored_barrier(chosen, timeout, wait_all_ranks)
        return original(group, timeout, wait_all_ranks)

    distributed_c10d.monitored_barrier = wrapper
    dist.monitored_barrier = wrapper


# An explicit import without torch is an error; one that torch itself makes must not fail.
if importlib.util.find_spec("torch") is None:
    raise ModuleNotFoundError("theseus_py.torch needs PyTorch: pip install torch", name="torch")
autoload()
