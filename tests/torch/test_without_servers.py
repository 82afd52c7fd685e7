"""What ``DistributedOptimizer`` refuses where there are no servers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed, nn

from byteprophet.torch import DistributedOptimizer


def make(**options: Any) -> Any:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return DistributedOptimizer(optimizer, model=model, **options)


@pytest.mark.parametrize("sync", ["allreduce", "dear", "dear-planned"])
def test_needs_a_process_group(sync: str) -> None:
    with pytest.raises(ValueError, match=r"call torch.distributed.init_process_group\(\) first"):
        make(sync=sync)


@pytest.mark.parametrize("fusion", ["often", 0, -1, True, 1.5])
def test_fusion_is_a_rule_or_a_size(fusion: Any) -> None:
    with pytest.raises(
        ValueError, match=f"fusion={fusion!r}: must be 'planned', 'tuned', 'near-layer' or"
    ):
        make(sync="dear", fusion=fusion)


def test_layers_need_names() -> None:
    """All parameters would be of one layer, and travel together."""
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"'near-layer': layers are known by .*: give model= or"):
        DistributedOptimizer(optimizer, sync="dear", fusion="near-layer")


def test_unknown_ways_are_named() -> None:
    with pytest.raises(ValueError, match="have byteps, allreduce, dear, dear-planned"):
        make(sync="gossip")


def test_alone_nothing_is_sent() -> None:
    """One rank: the optimizer's own steps."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        optimizer = make(sync="dear")
        (group,) = optimizer.param_groups
        weight, _ = group["params"]
        before = weight.detach().clone()
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert torch.equal(weight, before - 0.1)
    finally:
        distributed.destroy_process_group()
