"""One rank of a training job that goes on until it is killed: `leveller_rank.py BACKEND BYTES COMPUTE TIMES PAUSE`.

Every iteration is a real step of a real model, whose gradients, padded to BYTES, are summed by one all-reduce. A sleep
fills what the step computes up to COMPUTE seconds, and stands for the time that a GPU would take. Rank 0 logs each
iteration to its output, as nanoGPT does, which is what LEVELLER's agent reads; and its end, by the system's monotonic
clock, to TIMES. As long as the file PAUSE is there, no iteration begins.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

_WIDTH, _BATCH = 64, 16


def main() -> None:
    """Entry point."""
    backend, size, compute, times, pause = sys.argv[1:]
    torch.set_num_threads(1)
    if backend == "theseus":
        import theseus_py.torch  # noqa: F401  (registers the backend, also where entry points are not read)
    dist.init_process_group(backend)
    torch.manual_seed(1)
    teacher, model = nn.Linear(_WIDTH, _WIDTH), nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    gradients = torch.zeros(int(size) // 4)
    used = sum(parameter.numel() for parameter in model.parameters())
    ends = open(times, "a") if dist.get_rank() == 0 else None  # noqa: SIM115
    step = 0
    while True:
        while os.path.exists(pause):
            time.sleep(0.005)
        begin = time.monotonic()
        inputs = torch.randn(_BATCH, _WIDTH)
        optimiser.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), teacher(inputs).detach())
        torch.autograd.backward(loss)
        gradients[:used] = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])  # type: ignore[union-attr]
        time.sleep(max(0.0, begin + float(compute) - time.monotonic()))
        dist.all_reduce(gradients)
        mean, at = gradients[:used] / dist.get_world_size(), 0
        for parameter in model.parameters():
            parameter.grad = mean[at : at + parameter.numel()].view_as(parameter).clone()
            at += parameter.numel()
        optimiser.step()
        end = time.monotonic()
        if ends is not None:
            print(f"iter {step}: loss {loss.item():.4f}, time {(end - begin) * 1e3:.2f}ms, mfu -100.00%", flush=True)
            ends.write(f"{end:.6f}\n")
            ends.flush()
        step += 1


if __name__ == "__main__":
    # In place of this file's own folder, whose names would hide others.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    main()
