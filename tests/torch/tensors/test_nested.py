"""Tensors are found and replaced in dataclasses, and found to be hidden elsewhere."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from byteprophet.torch.tensors.nested import hidden_in, tensors_in, with_tensors


@dataclass
class Plain:
    logits: Any
    label: str = "kept"


@dataclass(frozen=True, slots=True)
class Frozen:
    logits: Any
    derived: Any = field(init=False, default=None)


class Named(NamedTuple):
    logits: Any


class Slotted:
    __slots__ = ("logits",)

    def __init__(self, logits: Any) -> None:
        self.logits = logits


class OwnList(list[Any]):
    pass


OPEN: list[Callable[[Tensor], Any]] = [
    lambda tensor: tensor,
    lambda tensor: {"a": [tensor, 3]},
    Plain,
    Frozen,
    Named,
    lambda tensor: [Plain({"a": Frozen((tensor,))})],
]
CLOSED: list[Callable[[Tensor], Any]] = [
    Slotted,
    lambda tensor: OwnList([tensor]),
    lambda tensor: UserDict(logits=tensor),
    lambda tensor: Plain(Slotted([tensor])),
    lambda tensor: Normal(tensor, torch.ones(2)),
]


@pytest.mark.parametrize("make", OPEN)
def test_opened_containers_give_their_tensors_and_take_others(
    make: Callable[[Tensor], Any],
) -> None:
    tensor = torch.ones(2, requires_grad=True)
    values = make(tensor)
    (found,) = tensors_in(values)
    assert found is tensor
    changed = with_tensors(lambda each: each * 2, values)
    assert type(changed) is type(values)
    (other,) = tensors_in(changed)
    assert torch.equal(other, torch.full((2,), 2.0))
    assert next(tensors_in(values)) is tensor
    assert not hidden_in(values, lambda each: True)


@pytest.mark.parametrize("make", CLOSED)
def test_other_objects_hide_their_tensors(make: Callable[[Tensor], Any]) -> None:
    values = [make(torch.ones(2, requires_grad=True))]
    assert not list(tensors_in(values))
    assert hidden_in(values, lambda each: each.requires_grad) in (
        "Slotted",
        "OwnList",
        "UserDict",
        "Normal",
    )
    assert not hidden_in(values, lambda each: each.dtype == torch.float64)


def test_what_holds_no_tensors_hides_none() -> None:
    itself: list[Any] = OwnList([1])
    itself.append(itself)
    values = (None, 3, "text", Plain(4), torch.nn.Linear(1, 1), torch.float32, itself, len)
    assert not hidden_in(values, lambda each: True)
