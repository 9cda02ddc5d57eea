"""Cases that run on every rank: real training on the backend, equal to the same on gloo step by step."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embed(batch))
        return self.head(hidden + self.layers(hidden))  # type: ignore[no-any-return]


def batches(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    return [
        (torch.randn(6, 8, generator=generator), torch.randint(0, 4, (6,), generator=generator)) for _ in range(steps)
    ]


def train(model: Any, steps: int, clip: bool = True) -> list[float]:
    # Not Adam: it blows the rounding noise of a gradient that is zero (a bias before the norm) up to a full step.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for inputs, labels in batches(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


# One gloo group a process, never let go: torch destroys a group with the GIL held and joins gloo's threads, while such
# a thread may still wait for the GIL to drop what DDP's last call held.
_gloo_groups: list[Any] = []


def gloo_group() -> Any:
    if not _gloo_groups:
        _gloo_groups.append(dist.new_group(backend="gloo"))
    return _gloo_groups[0]


def case_ddp_equals_gloo() -> None:
    gloo = gloo_group()
    results = []
    for group in (None, gloo):
        torch.manual_seed(0)
        # Small buckets, so that several are under way at once.
        model = DistributedDataParallel(Model(), process_group=group, bucket_cap_mb=0.001)
        losses = train(model, 5)
        results.append((losses, [parameter.detach().clone() for parameter in model.parameters()]))
    (losses, parameters), (gloo_losses, gloo_parameters) = results
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(gloo_losses), rtol=1e-5, atol=1e-6)
    for one, other in zip(parameters, gloo_parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    # All ranks hold the same bits.
    for parameter in parameters:
        copies = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, parameter)
        assert all(torch.equal(copy, parameter) for copy in copies)


def case_ddp_options() -> None:
    for options in (
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        {"broadcast_buffers": False},
    ):
        torch.manual_seed(0)
        losses = train(DistributedDataParallel(Model(), **options), 2)
        assert all(loss == loss for loss in losses)


def case_ddp_no_sync_and_join() -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 4))
    data = batches(2)
    with model.no_sync():
        nn.functional.cross_entropy(model(data[0][0]), data[0][1]).backward()
    nn.functional.cross_entropy(model(data[1][0]), data[1][1]).backward()
    copies = [torch.empty_like(model.module.weight.grad) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, model.module.weight.grad)
    assert all(torch.equal(copy, copies[0]) for copy in copies)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # Ranks with fewer batches keep the others company.
    with model.join():
        for inputs, labels in batches(1 + dist.get_rank()):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()


def case_ddp_comm_hooks() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
        torch.manual_seed(0)
        model = DistributedDataParallel(Model())
        model.register_comm_hook(None, hook)
        train(model, 2)


def case_fsdp2_equals_one_process() -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    sharded = build()
    for layer in sharded:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    plain = DistributedDataParallel(build())
    losses, expected = train(sharded, 4, clip=False), train(plain, 4, clip=False)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-4, atol=1e-6)
    for parameter, other in zip(sharded.parameters(), plain.parameters(), strict=True):
        assert isinstance(parameter, DTensor)
        torch.testing.assert_close(parameter.full_tensor(), other.detach(), rtol=1e-3, atol=1e-5)


def case_fsdp2_state_dict() -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Linear(7, 5)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    fully_shard(model, mesh=mesh)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if dist.get_rank() == 0:
        for name, value in expected.items():
            assert torch.equal(state[name], value)


def case_device_mesh_2d() -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    size = dist.get_world_size()
    mesh = dist.init_device_mesh("cpu", (1, size), mesh_dim_names=("a", "b"))
    whole = torch.arange(float(size * 6)).reshape(size * 2, 3)
    spread = distribute_tensor(whole, mesh["b"], [Shard(0)])
    assert torch.equal(spread.full_tensor(), whole)
    assert torch.equal((spread * 2).full_tensor(), whole * 2)
