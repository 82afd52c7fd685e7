"""Sparse gradients in one process: as plain torch has them, or named if they are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch.optimizer import Uncompressed, distribute
from byteprophet.torch.sync.alone import Alone
from byteprophet.torch.tensors.sparse import SparseParameters

STEPS = 3


def table() -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(20, 4, sparse=True)


def attached(model: nn.Module, optimizer: Optimizer, synchroniser: Any, **options: Any) -> Any:
    return distribute(
        optimizer,
        model.named_parameters(),
        Uncompressed,
        1,
        model=model,
        separable=None,
        synchroniser=synchroniser,
        settings=RuntimeSettings(overlap=False),
        sparse=SparseParameters(type(optimizer), model),
        **options,
    )


def loss_of(model: nn.Module, iteration: int) -> Tensor:
    rows = torch.tensor([iteration % 7, 3, 3, 11 - iteration % 5])
    return (model(rows).sin() * (1 + iteration)).sum()


@pytest.mark.parametrize("base", [SGD, Adagrad, SparseAdam])
@pytest.mark.parametrize("clears", [True, False], ids=["none", "zeros"])
def test_accumulated_steps_are_those_of_a_script_that_accumulates(base: Any, clears: bool) -> None:
    model, plain = table(), table()
    ours = attached(model, base(model.parameters(), lr=0.1), Alone(), accumulation=STEPS)
    other = base(plain.parameters(), lr=0.1)
    for iteration in range(4 * STEPS):
        ours.zero_grad(set_to_none=clears)
        loss_of(model, iteration).backward()
        ours.step()
        loss_of(plain, iteration).backward()
        if iteration % STEPS == STEPS - 1:
            assert plain.weight.grad is not None
            plain.weight.grad.div_(STEPS)
            other.step()
            other.zero_grad()
        assert torch.equal(model.weight, plain.weight)


def test_clipping_is_that_of_the_dense_gradient() -> None:
    model, dense = table(), nn.Embedding.from_pretrained(table().weight.detach(), freeze=False)
    ours = attached(model, SGD(model.parameters(), lr=0.1), Alone())
    for each in (model, dense):
        loss_of(each, 5).backward()
    norms = [
        nn.utils.clip_grad_norm_(each.parameters(), 0.1, order)
        for order in (2.0, 1.0, float("inf"))
        for each in (model, dense)
    ]
    torch.testing.assert_close(norms[::2], norms[1::2])
    assert model.weight.grad is not None
    torch.testing.assert_close(model.weight.grad.to_dense(), dense.weight.grad)
    ours.step()  # it has been alive until here


def test_a_table_that_is_also_a_layer_has_dense_gradients() -> None:
    results = []
    for with_front in (True, False):
        model = nn.Sequential(table(), nn.Linear(4, 20, bias=False))
        model[1].weight = model[0].weight
        optimizer: Any = SGD(model.parameters(), lr=0.1)
        if with_front:
            optimizer = attached(model, optimizer, Alone())
        for iteration in range(3):
            optimizer.zero_grad(set_to_none=iteration != 1)
            loss_of(model, iteration).backward()
            optimizer.step()
        results.append(model[0].weight.detach().clone())
    assert torch.equal(*results)


def test_servers_are_refused_at_the_start(make_network: Any) -> None:
    model = nn.Sequential(table())
    with pytest.raises(ValueError, match=r"parameter '0\.weight' are sparse, which servers cannot"):
        attached(model, SGD(model.parameters(), lr=0.1), make_network(size=2).rank(0))
    model[0].weight.requires_grad_(False)
    attached(model, SGD(model.parameters(), lr=0.1), make_network(size=2).rank(0))


def test_gradients_that_are_not_rows_are_named() -> None:
    model = table()
    ours = attached(model, SGD(model.parameters(), lr=0.1), Alone())
    model.weight.grad = torch.ones(20, 4).to_sparse()
    with pytest.raises(RuntimeError, match="'weight' is sparse, but not by rows"):
        ours.step()


def test_only_parameters_can_be_given() -> None:
    with pytest.raises(ValueError, match="sparse: give parameters, not str"):
        SparseParameters(SGD, None, ["weight"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="sparse: give a list of parameters"):
        SparseParameters(SGD, None, table().weight)
