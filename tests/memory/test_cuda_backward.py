"""The backward pass of our own gives what autograd's gives."""

from __future__ import annotations

import copy
import functools
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from byteprophet.errors import UserError
from byteprophet.memory.cuda.backward import backward
from byteprophet.memory.training import checkpointed

from .small_models import BLOCKS, Convolutions


class Tied(nn.Module):
    """Sums of gradients of a tied weight and of a value that is used often; an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.body = nn.Linear(8, 8)
        self.unused = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.embedding(tokens)
        values = values + self.body(values) * values.detach() + values.mT.mT
        first, second = values.split(4, -1)
        result: Tensor = self.head(torch.cat((second, first.half().float()), -1))
        return result


@pytest.mark.parametrize("paths", [(), BLOCKS[1:3]], ids=["plain", "checkpointed"])
def test_convolutions(paths: tuple[str, ...]) -> None:
    compare(Convolutions(), torch.randn(4, 3, 8, 8), paths)


class _Scaled(torch.autograd.Function):
    """A function of the user's, of which one result is not used."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(values)
        return values**2, values + 1

    @staticmethod
    def backward(ctx: Any, squares: Tensor, sums: Tensor) -> Tensor:  # type: ignore[override]
        (values,) = ctx.saved_tensors
        return 2 * values * squares + sums


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, values: Tensor) -> Tensor:
        squares, _ = _Scaled.apply(self.first(values))
        result: Tensor = self.last(squares)
        return result


def test_functions_of_the_users() -> None:
    compare(Own(), torch.randn(4, 6))


def test_sums() -> None:
    compare(Tied(), torch.randint(11, (5, 3)))


def compare(model: nn.Module, batch: Tensor, paths: tuple[str, ...] = ()) -> None:
    """Two backward passes each, so that gradients are also accumulated into given ones."""
    other = copy.deepcopy(model)
    for _ in range(2):
        with checkpointed(model, paths):
            backward(loss_of(model, batch))
        with checkpointed(other, paths):
            loss_of(other, batch).backward()  # type: ignore[no-untyped-call]
    for (name, ours), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        if theirs.grad is None:
            assert ours.grad is None, name
            continue
        assert ours.grad is not None, name
        assert torch.equal(ours.grad, theirs.grad), name
        assert ours.grad.stride() == theirs.grad.stride(), name


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    result = model(batch).flatten(0, -2)
    return fn.cross_entropy(result, torch.arange(len(result)) % result.shape[-1])


def test_what_a_node_saved_ends_with_it() -> None:
    """Before the next node runs, although the loss is held. Autograd does the same."""
    for run in (backward, torch.Tensor.backward):
        weight = torch.ones(3, requires_grad=True)
        inner = weight * 2
        loss = (inner * inner).sum()
        saved = weakref.ref(inner.untyped_storage())
        del inner
        assert saved() is not None
        ended: list[bool] = []
        weight.register_post_accumulate_grad_hook(functools.partial(note, saved, ended))  # type: ignore[no-untyped-call]
        run(loss)
        assert ended == [True]


def note(saved: weakref.ref[Any], ended: list[bool], _: Tensor) -> None:
    ended.append(saved() is None)


@pytest.mark.parametrize("loss", [torch.zeros(()), torch.zeros(2, requires_grad=True) * 2])
def test_a_loss_must_be_one_number_of_parameters(loss: Tensor) -> None:
    with pytest.raises(UserError, match="a loss of one element"):
        backward(loss)
