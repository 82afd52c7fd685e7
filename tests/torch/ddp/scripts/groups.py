"""Process groups, and parallelism of other kinds, beside and within DistributedDataParallel."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from typing import Any

import torch
from common import STEPS, Net, batch, loss_of, script, start, train, wrap, wrapped
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_reduce
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from byteprophet.launcher.checks import root_port


def whole(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The values, whether or not they are spread over ranks."""
    return [
        each.full_tensor().detach() if isinstance(each, DTensor) else each.detach()
        for each in parameters
    ]


@script
def synchronised_batch_norm() -> Iterable[Tensor]:
    """Statistics of all ranks, as SyncBatchNorm has them, which refuses tensors on CPUs."""

    class Norm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            moments = torch.stack([x.mean(0), x.square().mean(0)])
            mean, square = all_reduce(moments) / distributed.get_world_size()
            result: Tensor = (x - mean) / (square - mean.square() + 1e-5).sqrt()
            return result

    model = Net()
    model.register_module("norm", Norm())
    ddp = wrap(model)
    train(ddp, torch.optim.AdamW(model.parameters(), lr=0.01))
    return model.parameters()


@script
def sync_batch_norm_is_refused_on_cpus() -> Iterable[Tensor]:
    refused = torch.tensor(0)
    try:
        wrap(nn.SyncBatchNorm.convert_sync_batchnorm(Net(norm=True)))
    except ValueError as error:
        refused += "only work with GPU" in str(error)
    return [refused]


@script
def collectives_of_the_script_in_between() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(ddp, step)
        loss.backward()
        of_all = loss.detach().clone()
        distributed.all_reduce(of_all)
        optimizer.step()
        distributed.barrier()
        seen.append(of_all)
    return [*model.parameters(), *seen]


@script
def a_group_of_the_same_ranks() -> Iterable[Tensor]:
    everybody = distributed.new_group([*range(distributed.get_world_size())])
    model, ddp = start(process_group=everybody, find_unused_parameters=True)
    model.uses_extra = False
    train(ddp, torch.optim.AdamW(model.parameters(), lr=0.01))
    del ddp
    return model.parameters()


@script
def a_group_of_some_ranks() -> Iterable[Tensor]:
    """The last rank has no part in the first model, and waits for the others before the second."""
    last = distributed.get_world_size() - 1
    some = distributed.new_group([*range(last)])
    alone = Net()
    model: Any = alone
    if distributed.get_rank() < last:
        model = wrap(alone, process_group=some)
    after = wrap(Net())
    train(model, torch.optim.SGD(alone.parameters(), lr=0.1))
    distributed.barrier()
    wrapped[:] = [after]
    train(after, torch.optim.AdamW(after.parameters(), lr=0.01))
    return [*alone.parameters(), *after.parameters()]


@script
def sharded_beside_it() -> Iterable[Tensor]:
    """A second model, which is fully sharded, trains in turn with the wrapped one."""
    model, ddp = start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    other = Net()
    for parameter in other.parameters():
        distributed.broadcast(parameter.detach(), 0)
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    fully_shard(other, mesh=mesh)
    its = torch.optim.AdamW(other.parameters(), lr=0.01)
    for step in range(STEPS):
        train(ddp, optimizer, [step])
        train(other, its, [step])
    return [*model.parameters(), *whole(other.parameters())]


@script
def tensor_parallel_beside_it() -> Iterable[Tensor]:
    """A second model is split over the ranks by layers' rows and columns."""
    model, ddp = start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    other = nn.Sequential(nn.Linear(6, 60), nn.Tanh(), nn.Linear(60, 3))
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    parallelize_module(other, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    its = torch.optim.AdamW(other.parameters(), lr=0.01, foreach=False)
    for step in range(STEPS):
        train(ddp, optimizer, [step])
        its.zero_grad()
        other(batch(step, 0)).square().mean().backward()
        its.step()
    return [*model.parameters(), *whole(other.parameters())]


@script
def the_group_is_destroyed_and_made_again() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(ddp, optimizer)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    # The reducer is gone before the group is (trial_script.py says why).
    wrapped.clear()
    del ddp
    gc.collect()
    options = _another_meeting()
    distributed.destroy_process_group()
    distributed.init_process_group("gloo", rank=rank, world_size=size, **options)
    train(wrap(model), optimizer, range(STEPS, 2 * STEPS))
    return model.parameters()


def _another_meeting() -> dict[str, Any]:
    """Where the ranks meet again: rank 0 names a free port, which no connection is given."""
    port = [0]
    if distributed.get_rank() == 0:
        port = [root_port(None, "127.0.0.1")]
    distributed.broadcast_object_list(port)
    return {"init_method": f"tcp://{os.environ['MASTER_ADDR']}:{port[0]}"}
