"""One rank of a Pool: python worker.py ADDRESS STORE RANKS RANK."""

from __future__ import annotations

import faulthandler
import importlib.util
import signal
import sys
import traceback
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# The script's own folder is called torch's tests; what it holds is loaded by path, so that no name is taken.
sys.path.remove(str(HERE))


def load(name: str) -> Any:
    """Import a case module of this folder."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def main() -> None:
    address, store_file, ranks, rank = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    # kill -USR1 shows where a rank hangs.
    faulthandler.register(signal.SIGUSR1)
    pipe = Client(address, "AF_UNIX")
    pipe.send(rank)
    try:
        import datetime

        import torch
        import torch.distributed as dist

        import theseus_py.torch  # noqa: F401

        torch.set_num_threads(1)
        store = dist.FileStore(store_file, ranks)
        timeout = datetime.timedelta(seconds=60)
        dist.init_process_group("theseus", store=store, rank=rank, world_size=ranks, timeout=timeout)
        pipe.send((True, None))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
        return
    while (task := pipe.recv()) is not None:
        module, case, arguments = task
        try:
            pipe.send((True, getattr(load(module), case)(*arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
