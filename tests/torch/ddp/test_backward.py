"""When gradients are complete, on one rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from byteprophet.torch.ddp.backward import Backward

from .watched import Watched, group  # noqa: F401 (fixture)


class OfTorch(Watched):
    """Under the rules of torch's wrapper."""

    def __init__(self, **options: bool) -> None:
        super().__init__()
        given = {"finds_unused": False, "is_static": False, **options}
        self.backward = Backward(self.named, None, self._submit, **given)
        self._watch(self.backward)

    def train(self, output: Tensor, expect: bool = True) -> list[str]:
        self.sent = []
        if expect:
            self.backward.check_finished()
            self.backward.expect([output])
        output.sum().backward()
        return self.sent


X = torch.ones(1, 2)


def test_gradients_are_sent_as_they_come() -> None:
    net = OfTorch()
    assert net.train(net.two(net.one(X))) == ["two", "one"]
    assert net.ends == 1
    assert net.train(net.two(net.one(X)), expect=False) == []
    assert net.train(net.two(net.one(X))) == ["two", "one"]


def test_only_one_pass_after_a_forward_sends() -> None:
    net = OfTorch()
    first, second = net.two(net.one(X)), net.two(net.one(X))
    assert net.train(first) == ["two", "one"]
    assert net.train(second, expect=False) == []


def test_a_missing_gradient_is_an_error_at_the_next_forward() -> None:
    net = OfTorch()
    assert net.train(net.one(X)) == ["one"]
    with pytest.raises(RuntimeError, match=r"no gradient of 'two' .*find_unused_parameters=True"):
        net.train(net.two(net.one(X)))


def test_a_gradient_that_comes_twice_is_an_error() -> None:
    net = OfTorch()
    net.train(net.one(X))
    with pytest.raises(RuntimeError, match="'one' was computed twice"):
        net.train(net.one(X), expect=False)


def test_what_no_rank_has_used_is_not_sent() -> None:
    net = OfTorch(finds_unused=True)
    assert net.train(net.one(X)) == ["one"]
    assert net.ends == 1
    assert net.train(net.two(net.one(X))) == ["two", "one"]


def test_what_was_used_before_the_last_pass_is_sent_at_its_end() -> None:
    net = OfTorch(finds_unused=True)
    assert net.train(net.two(net.one(X)), expect=False) == []
    assert net.train(net.one(X)) == ["one", "late two"]
    assert net.train(net.one(X)) == ["one"]


def test_the_end_is_that_of_the_outermost_pass() -> None:
    net = OfTorch(finds_unused=True)
    inner = checkpoint(net.two, net.one(X), use_reentrant=True)
    assert isinstance(inner, Tensor)
    assert net.train(inner) == ["two", "one"]
    assert net.ends == 1


@pytest.mark.parametrize("option", ["finds_unused", "is_static"])
def test_a_pass_that_adds_to_no_gradient_is_not_the_one_that_sends(option: str) -> None:
    net = OfTorch(**{option: True})
    inputs = X.clone().requires_grad_()
    output = net.two(net.one(inputs))
    net.backward.expect([output])
    (slope,) = torch.autograd.grad(output.sum(), inputs, create_graph=True)
    assert net.ends == 0
    sent = net.train(output + slope.square().sum(), expect=False)
    late = "" if option == "finds_unused" else "late "
    assert sorted(sent) == [f"{late}one", f"{late}two"]
    assert net.ends == 1


def test_a_static_graph_counts_in_its_first_pass() -> None:
    net = OfTorch(is_static=True)

    def output() -> Tensor:
        result = X
        for _ in range(2):
            result = checkpoint(net.one, result.requires_grad_(), use_reentrant=True)
        return result

    assert net.train(output()) == ["late one"]
    assert net.train(output()) == ["one"]
    assert net.ends == 2


def test_a_parameter_whose_gradient_is_undefined_is_unused() -> None:
    net = OfTorch(finds_unused=True)
    undefined: Any = torch._C._functions.UndefinedGrad()
    assert net.train(undefined(net.two(net.one(X)))) == []
    assert net.ends == 1
    assert net.one.weight.grad is None
    assert net.train(net.two(net.one(X))) == ["two", "one"]
