"""When gradients are complete under BytePS' ``DistributedDataParallel``, on one rank."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from byteprophet.torch.ddp.byteps_backward import BytepsBackward

from .watched import Watched, group  # noqa: F401 (fixture)

X = torch.ones(1, 2)


class OfByteps(Watched):
    """Under the rules of BytePS' wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self.model = DistributedDataParallel(nn.Sequential(self.one, self.two))
        self.rules = BytepsBackward(self.model, self.named, self._submit)
        self._watch(self.rules)

    def train(self, output: Tensor) -> list[str]:
        self.sent = []
        output.sum().backward()
        return self.sent


def test_every_pass_sends_gradients_as_they_come() -> None:
    net = OfByteps()
    outputs = [net.two(net.one(X)) for _ in range(2)]
    for number, output in enumerate(outputs, 1):  # without a forward in between
        assert net.train(output) == ["two", "one"]
        assert net.ends == number


def test_skipped_layers_are_sent_by_synchronize() -> None:
    net = OfByteps()
    assert net.train(net.one(X)) == ["one"]
    assert net.ends == 0
    net.rules.synchronize()
    assert net.sent == ["one", "late two"]
    net.rules.check_finished()
    net.rules.synchronize()  # nothing is left to send
    assert net.ends == 1


def test_no_sync_is_about_backward() -> None:
    net = OfByteps()
    output = net.two(net.one(X))
    with net.model.no_sync():
        assert net.train(output) == []
        within = net.two(net.one(X))
    assert net.train(within) == ["two", "one"]
    with net.model.no_sync():
        assert net.train(net.two(net.one(X))) == []
    net.rules.synchronize()
    assert sorted(net.sent) == ["late one", "late two"]


def test_a_forgotten_synchronize_is_an_error() -> None:
    net = OfByteps()
    net.train(net.one(X))
    with pytest.raises(RuntimeError, match=r"no gradient of 'two' \(of 1 .*call synchronize\(\)"):
        net.rules.check_finished()
    with pytest.raises(RuntimeError, match="'one' was computed twice, and that of 'two' not yet"):
        net.train(net.one(X))
