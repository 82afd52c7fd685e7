"""What a module's forward needs, and in which order."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from byteprophet.torch.front.order import ForwardOrder
from byteprophet.torch.front.slots import Slot


@contextmanager
def recording(order: ForwardOrder) -> Iterator[None]:
    handle = nn.modules.module.register_module_forward_pre_hook(
        lambda module, _inputs: order.touch(module)
    )
    try:
        yield
    finally:
        handle.remove()
        order.settle()


def slots_of(model: nn.Module) -> dict[int, Slot]:
    return {
        id(parameter): Slot(name, parameter, index, 1)
        for index, (name, parameter) in enumerate(model.named_parameters())
    }


def names(slots: object) -> list[str]:
    return [slot.name for slot in slots]  # type: ignore[attr-defined]


class Backwards(nn.Module):
    """Calls its layers in another order than it declares them, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 3, bias=False)
        self.first = nn.Linear(3, 3, bias=False)
        self.unused = nn.Linear(3, 3, bias=False)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.first(self.last(self.first(x))) * self.scale


def test_order_is_the_order_of_calls() -> None:
    model = Backwards()
    order = ForwardOrder(slots_of(model))
    order.settle()
    assert order.order is None
    with recording(order):
        model(torch.ones(1, 3))
    assert order.order is not None
    assert names(order.order) == ["scale", "unused.weight", "first.weight", "last.weight"]
    assert order.orphans == []
    assert names(order.needed(model.first)) == ["first.weight", "first.weight"]
    assert "unused.weight" in names(order.needed(model))


def test_functionally_used_children_belong_to_the_module_that_is_called() -> None:
    attention = nn.MultiheadAttention(4, 2)
    model = nn.Sequential(nn.Linear(4, 4), attention)
    order = ForwardOrder(slots_of(model))
    with recording(order):
        attention(*[model[0](torch.ones(2, 1, 4))] * 3)
    assert order.order is not None
    assert names(order.order)[:2] == ["0.weight", "0.bias"]
    assert "1.out_proj.weight" in names(order.needed(attention))
    assert "1.out_proj.weight" not in names(order.needed(model[0]))


def test_shared_parameters_are_needed_wherever_they_are_owned() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    order = ForwardOrder(slots_of(model))
    with recording(order):
        model(torch.ones(1, 3))
    assert names(order.needed(model[1])).count("0.weight") >= 1
    assert order.order is not None
    assert names(order.order) == ["0.weight", "0.bias", "1.bias"]


def test_parameters_that_no_call_covers_are_orphans() -> None:
    layer, loose = nn.Linear(2, 2), nn.Parameter(torch.ones(2))
    slots = slots_of(layer) | {id(loose): Slot("loose", loose, 2, 1)}
    order = ForwardOrder(slots)
    with recording(order):
        layer(loose.unsqueeze(0))
    assert names(order.orphans) == ["loose"]
    assert order.order is not None
    assert names(order.order)[0] == "loose"


def test_a_module_called_for_the_first_time_needs_all_below_it() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    order = ForwardOrder(slots_of(model))
    with recording(order):
        model[0](torch.ones(1, 2))
    assert names(order.needed(model[1])) == ["1.0.weight", "1.0.bias", "1.1.weight", "1.1.bias"]
    with recording(order):
        model[1](torch.ones(1, 2))
    assert names(order.needed(model[1])) == []
    assert names(order.needed(model[1][0]))[0] == "1.0.weight"


def test_modules_are_not_kept_alive() -> None:
    parameters = slots_of(nn.Linear(2, 2))
    order = ForwardOrder(parameters)
    other = nn.ReLU()
    with recording(order):
        other(torch.ones(1))
    del other
    gc.collect()
    assert len(order._called) == 0


class Holder(nn.Module):
    """Runs another module."""

    def __init__(self, held: nn.Module) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        done: Tensor = self.held(x)
        return done


def test_modules_that_are_made_in_every_iteration_are_not_gathered() -> None:
    layer = nn.Linear(2, 2)
    order = ForwardOrder(slots_of(layer))
    for _ in range(5):
        holder, other = Holder(layer), nn.ReLU()
        with recording(order):
            other(holder(torch.ones(1, 2)))
    assert len(order._sequence) == 2  # the layer, and the last holder
    assert order.order is not None
    assert names(order.order) == ["weight", "bias"]
    assert names(order.needed(other)) == []
