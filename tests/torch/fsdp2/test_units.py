"""Which buckets are lists of modules, and so units of FSDP2."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from byteprophet.errors import UserError
from byteprophet.torch.fsdp2.units import Unit, check_parameters, check_types, units_of


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.second(self.first(inputs))
        return outputs


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.blocks = nn.ModuleList(_Block() for _ in range(2))
        self.head = nn.Linear(2, 3, bias=False)


def _names(model: nn.Module, *prefixes: str) -> list[str]:
    return [name for name, _ in model.named_parameters() if name.startswith(prefixes)]


def _units(model: nn.Module, buckets: Sequence[Sequence[str]]) -> list[Unit]:
    names = {id(each): name for name, each in model.named_parameters()}
    return units_of(model, names, buckets, "here")


def test_a_bucket_is_the_largest_modules_that_have_it_and_the_root_what_is_left() -> None:
    model = _Model()
    rest = _names(model, "embedding", "head")
    block, halves = _names(model, "blocks.0"), _names(model, "blocks.1")
    found = _units(model, [block, rest, halves[:2], halves[2:]])
    assert [unit.modules for unit in found] == [
        (model.blocks[0],),
        (),
        (model.blocks[1].first,),
        (model.blocks[1].second,),
    ]


def test_a_list_of_modules_is_no_module_that_is_called() -> None:
    model = _Model()
    found = _units(model, [_names(model, "embedding", "head"), _names(model, "blocks")])
    assert found[1].modules == tuple(model.blocks)


def test_all_of_a_model_is_the_root() -> None:
    model = _Model()
    assert _units(model, [_names(model, "")])[0].modules == ()


def test_only_one_bucket_may_be_no_list_of_modules() -> None:
    model = _Model()
    weights = [name for name in _names(model, "blocks") if name.endswith("weight")]
    others = [name for name in _names(model, "") if name not in weights]
    with pytest.raises(UserError, match=r"here: .* 'blocks.0.first.weight' has no module"):
        _units(model, [others, weights])


def test_a_parameter_that_another_module_has_too_stays_with_the_root() -> None:
    model = _Model()
    model.head.weight = model.embedding.weight
    blocks = _names(model, "blocks")
    assert _units(model, [["embedding.weight"], blocks])
    model.blocks[1].second.weight = model.blocks[0].first.weight
    with pytest.raises(UserError, match=r"'blocks.0.first.weight' is also 'weight' of 'blocks.1"):
        _units(model, [["embedding.weight"], _names(model, "blocks.0"), _names(model, "blocks.1")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda each: nn.Parameter(torch.ones(())), "is a scalar"),
        (lambda each: nn.Parameter(torch.ones(3, 2).t()), "has strides"),
        (lambda each: nn.Parameter(torch.ones(3, 2, device="meta")), "is on meta"),
        (lambda each: nn.Parameter(torch.ones(3, 2, dtype=torch.cfloat)), "'weight' is complex"),
    ],
)
def test_what_cannot_be_sharded_is_refused(change: object, message: str) -> None:
    model = nn.Linear(2, 3)
    assert callable(change)
    model.weight = change(model.weight)
    with pytest.raises(UserError, match=message):
        check_parameters(model, [*model.named_parameters()])


def test_sparse_gradients_and_hooks_are_refused() -> None:
    model: nn.Module = nn.Embedding(3, 2, sparse=True)
    with pytest.raises(UserError, match="is sparse"):
        check_parameters(model, [*model.named_parameters()])
    model = nn.Linear(2, 2)
    model.weight.register_hook(lambda gradient: gradient)
    with pytest.raises(UserError, match="'weight' has hooks"):
        check_parameters(model, [*model.named_parameters()])


def test_one_unit_has_gradients_of_one_type() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    unit = Unit(tuple(_names(model, "")))
    with pytest.raises(UserError, match=r"'0.weight' is of torch.float32 and '1.weight' of"):
        check_types([*model.named_parameters()], [unit], "here")
    model[1].requires_grad_(False)
    check_types([*model.named_parameters()], [unit], "here")
