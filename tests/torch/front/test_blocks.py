"""Updates in blocks: the same bits as torch's own step, and what is not cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from byteprophet.torch.front import blocks
from byteprophet.torch.front.view_step import FrozenStep
from byteprophet.torch.tensors.dense import flat

BLOCK_ELEMENTS = 512  # so that small tensors are cut; a multiple of all vectors
ELEMENTS = 5 * BLOCK_ELEMENTS + 77
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("Adam", {"lr": 1e-2, "amsgrad": True, "weight_decay": 1e-2}),
    ("Adam", {"lr": torch.tensor(1e-2), "maximize": True}),
    ("AdamW", {"lr": 1e-2}),
    ("RMSprop", {"lr": 1e-2, "momentum": 0.9, "centered": True}),
    ("Adagrad", {"lr": 1e-2, "lr_decay": 1e-3}),
    ("Adadelta", {"lr": 1.0}),
    ("NAdam", {"lr": 1e-2}),
    ("RAdam", {"lr": 1e-2}),
    ("Adamax", {"lr": 1e-2}),
    ("ASGD", {"lr": 1e-2, "t0": 2}),
    ("Rprop", {"lr": 1e-2}),
]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", BLOCK_ELEMENTS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def gradient_like(parameter: Tensor, seed: int) -> Tensor:
    made = torch.randn(parameter.numel(), generator=torch.Generator().manual_seed(seed))
    like = torch.empty_like(parameter, requires_grad=False)
    flat(like).copy_(made)
    return like


def cuts_of(optimizer: torch.optim.Optimizer, parameter: Tensor, gradient: Tensor) -> int:
    """How many blocks an update has; 0 if it is whole."""
    shadow = parameter.detach()
    shadow.grad = gradient
    if not blocks.may_cut(optimizer.param_groups[0]):
        return 0
    cut = blocks.cut(shadow, optimizer.state[parameter])
    return 0 if cut is None else len(cut.parameters)


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=lambda value: str(value))
@pytest.mark.parametrize("layout", ["flat", "channels last"])
def test_the_bits_are_those_of_the_normal_step(
    name: str, options: dict[str, Any], layout: str
) -> None:
    start = torch.linspace(-1, 1, ELEMENTS)
    if layout == "channels last":
        start = torch.linspace(-1, 1, 3 * 13 * 8 * 9).view(3, 13, 8, 9)
        start = start.contiguous(memory_format=torch.channels_last)
    parameter, plain_parameter = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer = getattr(torch.optim, name)([parameter], **options)
    plain = getattr(torch.optim, name)([plain_parameter], **options)
    for iteration in range(5):
        gradient = gradient_like(parameter, iteration)
        plain_parameter.grad = gradient
        if iteration > 0:  # in the first step, there is no state yet
            assert cuts_of(optimizer, parameter, gradient) == -(-start.numel() // BLOCK_ELEMENTS)
        FrozenStep.of(optimizer, type(optimizer)).apply(0, [(parameter, gradient, None)])
        plain.step()
    assert torch.equal(parameter, plain_parameter)
    own, its = optimizer.state[parameter], plain.state[plain_parameter]
    assert list(own) == list(its)
    for key, value in its.items():
        if isinstance(value, Tensor):
            assert torch.equal(own[key], value), key
            assert own[key].stride() == value.stride()
        else:
            assert own[key] == value


def test_a_shard_is_cut_and_the_rest_of_the_parameter_stays() -> None:
    start = torch.linspace(-1, 1, ELEMENTS)
    shard = slice(100, 100 + 3 * BLOCK_ELEMENTS)
    parameter, part = nn.Parameter(start.clone()), nn.Parameter(start[shard].clone())
    optimizer, plain = torch.optim.AdamW([parameter]), torch.optim.AdamW([part])
    for iteration in range(3):
        gradient = gradient_like(parameter, iteration)
        FrozenStep.of(optimizer, torch.optim.AdamW).apply(0, [(parameter, gradient, shard)])
        part.grad = gradient[shard]
        plain.step()
    assert torch.equal(parameter[shard], part)
    assert torch.equal(parameter[:100], start[:100])
    assert torch.equal(parameter[shard.stop :], start[shard.stop :])
    assert optimizer.state[parameter]["step"].item() == 3


def test_an_update_in_blocks_is_seen_by_autograd() -> None:
    weight = nn.Parameter(torch.ones(ELEMENTS))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    FrozenStep.of(optimizer, torch.optim.SGD).apply(0, [(weight, torch.ones(ELEMENTS), None)])
    loss = (weight * weight).sum()
    assert cuts_of(optimizer, weight, torch.ones(ELEMENTS)) > 1
    FrozenStep.of(optimizer, torch.optim.SGD).apply(0, [(weight, torch.ones(ELEMENTS), None)])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("option", ["fused", "foreach"])
def test_torchs_own_kernels_are_not_cut(option: str) -> None:
    weight = nn.Parameter(torch.ones(ELEMENTS))
    optimizer = torch.optim.AdamW([weight], **{option: True})
    weight.grad = torch.ones(ELEMENTS)
    optimizer.step()
    assert cuts_of(optimizer, weight, weight.grad) == 0


def test_what_has_another_order_in_memory_is_not_cut() -> None:
    weight = nn.Parameter(torch.ones(64, 64))
    optimizer = torch.optim.AdamW([weight])
    weight.grad = torch.ones(64, 64)
    optimizer.step()
    assert cuts_of(optimizer, weight, torch.ones(64, 64)) == 8
    assert cuts_of(optimizer, weight, torch.ones(64, 64).t()) == 0
    optimizer.state[weight]["exp_avg"] = torch.zeros(64)
    assert cuts_of(optimizer, weight, torch.ones(64, 64)) == 0


def test_several_threads_of_torch_are_left_alone() -> None:
    torch.set_num_threads(2)
    assert not blocks.may_cut({})
