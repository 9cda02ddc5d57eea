"""One rank of a training run: `training_rank.py theseus|gloo GRADIENT_BYTES COMPUTE_SECONDS`; it does steps when told.

DistributedDataParallel over a real model, whose gradients have about GRADIENT_BYTES, on batches that are small enough
for many ranks on few cores. A sleep before the backward pass fills the step up to COMPUTE_SECONDS, and stands for the
time that a GPU would compute; what the network takes is real.
"""

from __future__ import annotations

import hashlib
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if not __package__:
    # In place of this file's own folder, whose names would hide others.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.harness.nic_control import obey

_LAYERS = 4
_BATCH = 8
_PROBES = 4


class Training:
    """A model that learns what another one, with random weights, makes of random inputs."""

    def __init__(self, backend: str, gradient_bytes: int, compute: float) -> None:
        torch.set_num_threads(1)
        if backend == "theseus":
            import theseus_py.torch  # noqa: F401  (registers the backend, also where entry points are not read)
        dist.init_process_group(backend)
        torch.manual_seed(1)
        self._width = math.isqrt(gradient_bytes // 4 // _LAYERS)
        self._teacher = nn.Linear(self._width, self._width)
        layers = [layer for _ in range(_LAYERS) for layer in (nn.Linear(self._width, self._width), nn.Tanh())]
        self._model = DistributedDataParallel(nn.Sequential(*layers[:-1]))
        self._optimiser = torch.optim.SGD(self._model.parameters(), lr=0.05)
        self._data = torch.Generator().manual_seed(dist.get_rank() + 2)
        self._sleep = 0.0
        self._sleep = max(0.0, compute - self._own_seconds())

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        """Does steps, and answers with the seconds of each, the last loss, and a digest of the model."""
        seconds, loss = [], math.nan
        for _ in range(command["count"]):
            begin = time.monotonic()
            loss = self._step()
            seconds.append(time.monotonic() - begin)
        weights = hashlib.sha256()
        for parameter in self._model.parameters():
            weights.update(parameter.detach().numpy().tobytes())
        return {"seconds": seconds, "loss": loss, "weights": weights.hexdigest(), "sleep": self._sleep}

    def _own_seconds(self) -> float:
        """What a step takes without the network; the least of some, when the other ranks are not in the way."""
        least = math.inf
        for _ in range(_PROBES):
            begin = time.monotonic()
            with self._model.no_sync():
                self._step()
            least = min(least, time.monotonic() - begin)
        # Every rank has gone its own way so far.
        for parameter in self._model.parameters():
            dist.broadcast(parameter.data, 0)
        return least

    def _step(self) -> float:
        inputs = torch.randn(_BATCH, self._width, generator=self._data)
        self._optimiser.zero_grad(set_to_none=True)
        loss = (self._model(inputs) - torch.tanh(self._teacher(inputs)).detach()).square().mean()
        time.sleep(self._sleep)
        loss.backward()
        self._optimiser.step()
        return float(loss.detach())


if __name__ == "__main__":
    obey(Training(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])).obey)
