"""The forward order of a model in regions is what ``ByParameter.keeps_buffers`` takes it to be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from byteprophet.job import Cluster, Host, Job, Model, Parameter, Policy, Strategy, Times
from byteprophet.job.region_costs import ModeCost, RegionCost, RegionCosts
from byteprophet.job.strategy import EAGER, Region
from byteprophet.optimize.by_parameter import ByParameter
from byteprophet.torch.front.order import ForwardOrder
from byteprophet.torch.front.slots import Slot
from byteprophet.torch.regions.cost import region_parameters
from byteprophet.torch.tensors import module_calls


class Block(nn.Module):
    """Calls ``first``, then ``second``; ``turned``: it registers them the other way round."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        names = ("second", "first") if turned else ("first", "second")
        for name in names:
            setattr(self, name, nn.Linear(4, 4))

    def forward(self, data: Tensor) -> Tensor:
        done: Tensor = self.second(self.first(data))
        return done


def order_of(model: nn.Module, compiled: list[nn.Module]) -> tuple[str, ...]:
    """The forward order; ``compiled`` modules run as one, and calls inside them are not seen."""
    slots = {
        id(parameter): Slot(name, parameter, index, 1)
        for index, (name, parameter) in enumerate(model.named_parameters())
    }
    inside = {inner for each in compiled for inner in each.modules() if inner is not each}
    if compiled:
        module_calls.run_together(compiled, compiled=True)
    order = ForwardOrder(slots)

    def before(module: nn.Module, _inputs: object) -> None:
        if module not in inside:
            order.touch(module)

    handle = nn.modules.module.register_module_forward_pre_hook(before)
    model(torch.ones(1, 4))
    handle.remove()
    order.settle()
    assert order.order is not None
    return tuple(slot.name for slot in order.order)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("paths", [("1",), ("1", "2"), ("0", "1", "2")])
def test_the_order_changes_where_it_is_said_to(turned: bool, paths: tuple[str, ...]) -> None:
    def made() -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 4), Block(turned), Block(False), nn.Linear(4, 4))

    recorded = order_of(made(), [])
    model = made()
    modules = dict(model.named_modules())
    region = [modules[path] for path in paths]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = tuple(names[id(each)] for each in region_parameters(region))
    eager = ModeCost(1, 1, (1,) * len(parameters))
    costs = RegionCosts((), {paths: RegionCost(parameters, {EAGER: eager}, {})})
    kept = sharing_all(recorded).keeps_buffers([Region(paths, compiled=True)], costs)
    assert kept == (order_of(model, region) == recorded)
    assert kept != turned


def sharing_all(order: tuple[str, ...]) -> ByParameter:
    """A job of these parameters, which all share a buffer."""
    zeros, one = np.zeros((1, 1, len(order)), np.int64), np.zeros((1, 1, 1), np.int64)
    times = Times(zeros, zeros, one[..., 0], zeros)
    job = Job(
        Model((Parameter(f"{order[0]} and {len(order) - 1} more", 4 * len(order)),)),
        Times(one, one, one[..., 0], one),
        Cluster((Host(1, 1),), (Host(1, 1),)),
        Strategy(partition_bytes=65536),
        Policy("fifo", {}),
    )
    model = Model(tuple(Parameter(name, 4) for name in order))
    return ByParameter.sharing(job, [order], model, times)
