"""Buckets of merged gradients: what leaves when, and what ``grad`` is afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

import torch
from torch import distributed, nn

from byteprophet.paced.wfbp_worker import Buckets


@pytest.fixture
def alone() -> Iterator[None]:
    """A job of one rank."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_gradients_are_those_of_plain_training() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Linear(3, 1))
    last, *others = [*model.parameters()][::-1]
    buckets = Buckets([[last], others[:2], others[2:]])
    for _ in range(3):
        batch = torch.randn(4, 5)
        expected = torch.autograd.grad(model(batch).sum(), list(model.parameters()))
        model.zero_grad()
        model(batch).sum().backward()
        buckets.finish()
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            assert torch.equal(parameter.grad, gradient)


@pytest.mark.usefixtures("alone")
def test_buckets_leave_in_their_order_whatever_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that ranks on which gradients come in another order reduce the same."""
    sizes: list[int] = []
    reduce = distributed.all_reduce

    def noted(memory: torch.Tensor, **options: bool) -> object:
        sizes.append(memory.numel())
        return reduce(memory, **options)

    monkeypatch.setattr(distributed, "all_reduce", noted)
    one, two, three = (nn.Parameter(torch.ones(size)) for size in (1, 2, 3))
    buckets = Buckets([[one], [two], [three]])
    left = []
    for parameter in (three, one, two):
        parameter.sum().backward()
        left.append(list(sizes))
    buckets.finish()
    assert left == [[], [1], [1, 2, 3]]


@pytest.mark.usefixtures("alone")
def test_a_parameter_without_a_gradient_is_said() -> None:
    one, two = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    buckets = Buckets([[one], [two]])
    one.sum().backward()
    with pytest.raises(RuntimeError, match="without all gradients, or behind such buckets: 1"):
        buckets.finish()
