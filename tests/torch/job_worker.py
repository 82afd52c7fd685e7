"""A worker of a real job beside training (which is ``cases.py``): ``job_worker.py CASE``.

CASE is a function below.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn


def failing(bps: Any) -> None:
    """One rank's script has a fault, while gradients are on their way."""
    model = nn.Linear(100, 100)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for iteration in range(100):
        optimizer.zero_grad()
        model(torch.ones(1, 100)).sum().backward()
        if iteration == 5 and bps.rank() == 1:
            raise ArithmeticError("a fault of this script")
        optimizer.step()


def operations(bps: Any) -> None:
    """What the module offers beside the optimizer."""
    rank, size = bps.rank(), bps.size()
    mean = (size - 1) / 2
    value = torch.full((1000,), float(rank))
    assert torch.equal(bps.push_pull(value, name="mean"), torch.full((1000,), mean))
    assert torch.equal(value, torch.full((1000,), float(rank)))
    handle = bps.push_pull_async(value, average=False, name="sum")
    assert torch.equal(bps.synchronize(handle), torch.full((1000,), mean * size))
    bps.synchronize(bps.push_pull_async_inplace(value, average=False, name="in place"))
    assert torch.equal(value, torch.full((1000,), mean * size))
    leaf = torch.full((3,), 2.0, requires_grad=True)
    bps.push_pull(leaf, name="differentiable").sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, torch.ones(3))

    odd = {
        "nan": torch.tensor([float("nan"), -0.0, 1.0]) if rank == 0 else torch.zeros(3),
        "bool": torch.tensor([rank == 0, False]),
        "brain": torch.full((5,), 1.5 - rank, dtype=torch.bfloat16),
        "scalar": torch.tensor(7 - rank),
        "empty": torch.zeros(0),
        "strided": torch.arange(6.0).reshape(2, 3).T.clone() * (1 - rank),
    }
    bps.broadcast_parameters(odd, root_rank=0)
    assert torch.equal(torch.signbit(odd["nan"]), torch.tensor([False, True, False]))
    assert odd["bool"].tolist() == [True, False]
    assert odd["brain"].tolist() == [1.5] * 5
    assert int(odd["scalar"]) == 7
    assert odd["strided"][2, 1] == 5.0

    for turn in range(10):  # a name's first journey takes longer, so some overtake others
        tied = torch.full((20000,), 1.5 - rank)
        named = {f"tied.{turn}.{name}": tied for name in range(16)}
        bps.broadcast_parameters(named, root_rank=0)
        assert tied.unique().tolist() == [1.5]

    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1 * (rank + 1), betas=(0.5, 0.6))
    before = [p.detach().clone() for p in layer.parameters()]
    if rank == 1:  # only the root has state, and it is not rank 0
        layer(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        before = [p.detach().clone() for p in layer.parameters()]
    bps.broadcast_optimizer_state(optimizer, root_rank=1)
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.6)
    assert all(torch.equal(p, b) for p, b in zip(layer.parameters(), before, strict=True))
    if rank != 1:
        state = optimizer.state_dict()["state"]
        assert [float(entry["step"]) for entry in state.values()] == [1.0, 1.0]
        assert all(entry["exp_avg"].abs().sum() > 0 for entry in state.values())


if __name__ == "__main__":
    import byteprophet.torch

    byteprophet.torch.init()
    globals()[sys.argv[1]](byteprophet.torch)
