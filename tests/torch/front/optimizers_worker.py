"""A rank that trains with every optimizer, and compares with one process: ``optimizers_worker.py``.

Rank and peers come from the environment, as torchrun sets it. Fails where a parameter, or the whole
state, is not what one process has that averages all ranks' gradients, or where a rank does not get
its own state back.
"""

from __future__ import annotations

from typing import Any

import torch
from test_view_step import OPTIMIZERS
from torch import Tensor, distributed, nn

from byteprophet.torch import DistributedOptimizer


def make(name: str, options: dict[str, Any]) -> tuple[nn.Module, Any]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(7, 33), nn.Tanh(), nn.Linear(33, 5), nn.LayerNorm(5)).double()
    first, *rest = model.parameters()
    own = {k: v.clone() if isinstance(v, Tensor) else v for k, v in options.items()}
    groups = [{"params": [first], "lr": own["lr"]}, {"params": rest}]
    return model, getattr(torch.optim, name)(groups, **own)


def loss(model: nn.Module, rank: int, iteration: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * iteration + rank)
    batch = torch.randn(4, 7, generator=generator, dtype=torch.float64)
    total: Tensor = (model(batch) - 1).square().mean()
    return total


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    for name, options in OPTIMIZERS:
        model, optimizer = make(name, options)
        optimizer = DistributedOptimizer(optimizer, model=model, sync="dear", fusion=400)
        alone, its = make(name, options)
        for iteration in range(4):
            optimizer.zero_grad()
            loss(model, rank, iteration).backward()
            optimizer.step()
            its.zero_grad()
            (sum(loss(alone, r, iteration) for r in range(size)) / size).backward()
            its.step()
        whole, expected = optimizer.state_dict(), its.state_dict()
        assert whole["state"].keys() == expected["state"].keys(), (name, options)
        for number, state in expected["state"].items():
            torch.testing.assert_close(whole["state"][number], state, rtol=1e-7, atol=1e-9)
        for one, other in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)
        optimizer.load_sharded_state_dict(optimizer.sharded_state_dict())
        state = optimizer.state_dict()["state"]  # torch casts what it loads
        torch.testing.assert_close(state, whole["state"], rtol=0, atol=0, check_dtype=False)
        kept = sum(
            value.numel()
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor) and value.dim()
        )
        whole_elements = sum(
            value.numel()
            for state in whole["state"].values()
            for value in state.values()
            if isinstance(value, Tensor) and value.dim()
        )
        assert name == "Adafactor" or kept <= whole_elements / size + 40, (name, kept)


if __name__ == "__main__":
    main()
