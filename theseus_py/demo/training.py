"""One rank of the demo's training run: the same training, once over gloo and once over Theseus.

`theseus demo` starts one process a rank with main(). Both trainings start from one seed and see the same batches, so
that their losses may differ by rounding only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.nn.parallel import DistributedDataParallel

from theseus_py.demo.model import Digits, DigitTransformer, load_digits
from theseus_py.spawn import die_with_parent, end_with, report

_PROGRESS_EVERY = 5


@dataclass(frozen=True)
class TrainingOptions:
    """`batch` is images per rank and step; `backends` are trained in this order."""

    steps: int = 120
    batch: int = 16
    learning_rate: float = 2e-3
    seed: int = 1
    backends: tuple[str, ...] = ("gloo", "theseus")


def train(backend: str, options: TrainingOptions, digits: Digits) -> dict[str, Any]:
    """Trains over `backend`; on every rank the losses (mean over ranks), milliseconds a step, and accuracy."""
    torch.manual_seed(options.seed)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(DigitTransformer())
    optimiser = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    criterion = nn.CrossEntropyLoss()
    batches = torch.Generator().manual_seed(options.seed)
    losses, milliseconds = [], []
    for step in range(options.steps):
        picked = torch.randint(len(digits.train_labels), (ranks, options.batch), generator=batches)[rank]
        begin = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        loss = criterion(model(digits.train_images[picked]), digits.train_labels[picked])
        loss.backward()
        optimiser.step()
        milliseconds.append((time.perf_counter() - begin) * 1e3)
        losses.append(loss.detach())
        if (step + 1) % _PROGRESS_EVERY == 0 or step + 1 == options.steps:
            report("progress", backend=backend, done=step + 1, total=options.steps)
    mean_losses = torch.stack(losses)
    dist.all_reduce(mean_losses)
    return {
        "loss": (mean_losses / ranks).tolist(),
        "milliseconds": milliseconds,
        "accuracy": _accuracy(model.module, digits),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def _accuracy(model: nn.Module, digits: Digits) -> float:
    with torch.no_grad():
        right = model(digits.test_images).argmax(dim=1) == digits.test_labels
    return float(right.float().mean())


def _run(options: TrainingOptions) -> None:
    if "theseus" in options.backends:
        import theseus_py.torch  # noqa: F401  (registers the backend, also where entry points are not read)

    torch.set_num_threads(1)
    # All ranks are here; gloo would otherwise look up the machine's name, which containers often cannot resolve.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    digits = load_digits()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), ranks, is_master=rank == 0)
    for backend in options.backends:
        dist.init_process_group(backend, store=PrefixStore(backend, store), rank=rank, world_size=ranks)
        result = train(backend, options, digits)
        if rank == 0:
            report("result", backend=backend, **result)
        dist.barrier()
        dist.destroy_process_group()


def main() -> None:
    """Entry point of a rank: options as JSON in argv[1]; errors go to the parent as one sentence."""
    die_with_parent()
    try:
        values = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
        values["backends"] = tuple(values.get("backends", TrainingOptions.backends))
        _run(TrainingOptions(**values))
    except Exception as error:
        end_with(error)
    sys.stdout.flush()
    sys.stderr.flush()
    # All is closed and reported; taking torch's modules apart would cost every rank another second.
    os._exit(0)
