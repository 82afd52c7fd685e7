"""Options of DistributedDataParallel: unused parameters, static graphs, bucket views, buffers."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from common import STEPS, Net, batch, loss_of, script, start, train
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


@script
def gradient_as_bucket_view() -> Iterable[Tensor]:
    model, ddp = start(gradient_as_bucket_view=True, bucket_cap_mb=0.05)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=bool(step % 2))
        loss_of(ddp, step).backward()
        optimizer.step()
    return model.parameters()


@script
def batch_norm_buffers() -> Iterable[Tensor]:
    model, ddp = start(lambda: Net(norm=True))
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1))
    ddp.eval()
    return [*model.state_dict().values(), ddp(batch(0, 0))]


@script
def buffers_are_not_broadcast() -> Iterable[Tensor]:
    model, ddp = start(lambda: Net(norm=True), forward_sync_buffers=False)
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1))
    return model.parameters()


@script
def evaluation_in_between() -> Iterable[Tensor]:
    model, ddp = start(lambda: Net(norm=True, dropout=0.1))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    seen = []
    for step in range(STEPS):
        train(ddp, optimizer, [step])
        if step % 3 == 1:
            ddp.eval()
            with torch.no_grad():
                seen.append(ddp(batch(step, 0)))
                seen.append(model(batch(step, 0)))
            ddp.train()
        with torch.inference_mode():
            seen.append(model.into.weight.sum().clone())
    return [*model.parameters(), *(each.clone() for each in seen)]


@script
def unused_on_all_ranks() -> Iterable[Tensor]:
    model, ddp = start(find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    seen = []
    for step in range(2 * STEPS):
        model.uses_extra = bool(step % 3 == 2)
        train(ddp, optimizer, [step])
        seen.append(torch.tensor(model.more.weight.grad is None))
    return [*model.parameters(), *seen]


@script
def unused_on_one_rank() -> Iterable[Tensor]:
    model, ddp = start(find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen = []
    for step in range(2 * STEPS):
        model.uses_extra = (step + distributed.get_rank()) % 3 == 0
        optimizer.zero_grad(set_to_none=step % 4 < 2)
        loss_of(ddp, step).backward()
        grad = model.more.weight.grad
        seen.append(torch.tensor(-1.0) if grad is None else grad.sum())
        optimizer.step()
    return [*model.parameters(), *seen]


@script
def unused_with_accumulation() -> Iterable[Tensor]:
    model, ddp = start(find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(3):
            model.uses_extra = (step + micro + distributed.get_rank()) % 4 == 0
            with ddp.no_sync() if micro < 2 else nullcontext():
                loss_of(ddp, 3 * step + micro).backward()
        optimizer.step()
    return model.parameters()


@script
def outputs_that_no_loss_uses() -> Iterable[Tensor]:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.one, self.two = nn.Linear(6, 40), nn.Linear(40, 2), nn.Linear(40, 3)

        def forward(self, x: Tensor) -> dict[str, Any]:
            x = self.body(x).tanh()
            return {"one": self.one(x), "others": [self.two(x), None]}

    model, ddp = start(Heads, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        outputs = ddp(batch(step))
        (outputs["one"] if step % 2 else outputs["others"][0]).square().mean().backward()
        optimizer.step()
    return model.parameters()


@script
def a_missing_gradient_is_an_error() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(ddp, optimizer, range(2))
    model.uses_extra = False
    raised = torch.tensor(0)
    try:
        train(ddp, optimizer, range(2, 4))
    except RuntimeError as error:
        raised += "find_unused_parameters=True" in str(error)
    return [raised]


@script
def static_graph() -> Iterable[Tensor]:
    model, ddp = start(static_graph=True)
    model.uses_extra = False
    train(ddp, torch.optim.AdamW(model.parameters(), lr=0.01))
    return [*model.parameters(), torch.tensor(model.more.weight.grad is None)]


@script
def static_graph_and_a_layer_checkpointed_twice() -> Iterable[Tensor]:
    class Twice(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = self.into(x).tanh()
            for _ in range(2):
                x = checkpoint(self.block, x, use_reentrant=True)
            result: Tensor = self.out(self.more(x))
            return result

    model, ddp = start(Twice, static_graph=True)
    train(ddp, torch.optim.AdamW(model.parameters(), lr=0.01))
    return model.parameters()


@script
def frozen_and_unfrozen_in_turn() -> Iterable[Tensor]:
    model, ddp = start(find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(2 * STEPS):
        model.more.requires_grad_(step % 4 < 2)
        train(ddp, optimizer, [step])
    return model.parameters()


@script
def copies_and_logging_data() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    train(ddp, optimizer)
    same = type(ddp) is DistributedDataParallel and ddp.module is model
    names = [*ddp.state_dict()] == [f"module.{name}" for name in model.state_dict()]
    logged = ddp._get_ddp_logging_data()
    twin = copy.deepcopy(ddp)
    return [
        torch.tensor([same, names, logged["world_size"] == distributed.get_world_size()]),
        *twin.parameters(),
    ]
