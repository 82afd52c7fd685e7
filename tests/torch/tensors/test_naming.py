"""Names of gradients follow from the script alone."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from byteprophet.torch.tensors.naming import Names, name_parameters, names_for_later


def names_of(parameters: list[torch.Tensor], taken: Names, **options: object) -> list[str]:
    defaults = {"named_parameters": None, "model": None, **options}
    return [name for name, _ in name_parameters(parameters, taken=taken, **defaults)]  # type: ignore[arg-type]


def test_given_names_win_over_the_models_and_numbers_are_the_last_resort() -> None:
    layer = nn.Linear(2, 2)
    parameters = list(layer.parameters())
    assert names_of(parameters, {}, named_parameters=[("w", layer.weight)], model=layer) == [
        "w",
        "push_pull.noname.0",
    ]
    assert names_of(parameters, {}, model=layer) == ["weight", "bias"]
    assert names_of(parameters, {}, first_unnamed=4) == ["push_pull.noname.4", "push_pull.noname.5"]


def test_one_name_stands_for_one_tensor() -> None:
    taken: Names = {}
    one, other, third = (nn.Linear(1, 1, bias=False) for _ in range(3))
    assert names_of(list(one.parameters()), taken, model=one) == ["weight"]
    assert names_of(list(other.parameters()), taken, model=other) == ["weight@2"]
    assert names_of(list(third.parameters()), taken, model=third) == ["weight@3"]
    assert names_of(list(one.parameters()), taken, model=one) == ["weight"]
    assert names_of(list(other.parameters()), taken, model=other) == ["weight@2"]


def test_a_name_is_free_again_once_its_tensor_is_unreachable() -> None:
    """Collected or not: cycles keep tensors alive for a while that differs between ranks."""
    taken: Names = {}
    layer = nn.Linear(1, 1, bias=False)
    assert names_of(list(layer.parameters()), taken, model=layer) == ["weight"]
    layer.itself = [layer]
    gc.disable()
    try:
        del layer
        layer = nn.Linear(1, 1, bias=False)
        assert names_of(list(layer.parameters()), taken, model=layer) == ["weight"]
    finally:
        gc.enable()


@pytest.mark.parametrize("other", [torch.ones(3), torch.ones(2, dtype=torch.float64)])
def test_a_free_name_keeps_its_size_and_type(other: torch.Tensor) -> None:
    taken: Names = {}
    names_of([torch.ones(2)], taken)
    assert names_of([other], taken) == ["push_pull.noname.0@2"]
    assert names_of([torch.ones(2)], taken) == ["push_pull.noname.0"]


def test_tied_parameters_have_the_first_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    named = list(model.named_parameters(remove_duplicate=False))
    assert names_of([model[1].weight], {}, named_parameters=named) == ["0.weight"]


@pytest.mark.parametrize("wrong", [["weight"], [("weight", 3)], [("a",)]])
def test_wrong_names(wrong: list[object]) -> None:
    with pytest.raises(ValueError, match="must be pairs of name and tensor"):
        names_of([], {}, named_parameters=wrong)


def test_names_are_kept_for_parameters_that_are_added_later() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    find = names_for_later([*one.named_parameters("one"), ("other.bias", other.bias)])
    assert find(other.parameters()) == [("other.bias", other.bias)]
    assert find(iter([one.bias])) == [("one.bias", one.bias)]
    held = weakref.ref(other.bias)
    del other
    assert held() is None
    assert find([one.weight]) == [("one.weight", one.weight)]
