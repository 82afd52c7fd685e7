"""When gradients are complete under BytePS' ``DistributedDataParallel``, on one rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from byteprophet.torch.ddp.backward import ModelRules
from byteprophet.torch.ddp.byteps_backward import BytepsBackward

X = torch.ones(1, 2)


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class Watched:
    """A model of two layers, and which gradients were sent, in which order."""

    def __init__(self) -> None:
        self.one, self.two = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.sent: list[str] = []
        self.ends = 0
        named = {"one": self.one.weight, "two": self.two.weight}
        self._names = {id(parameter): name for name, parameter in named.items()}
        self.model = DistributedDataParallel(nn.Sequential(self.one, self.two))
        self.rules = BytepsBackward(self.model, named, self._submit)
        for parameter in named.values():
            parameter.register_hook(lambda _, p=parameter: self.rules.before(p))
            parameter.register_post_accumulate_grad_hook(self._added)

    def _added(self, parameter: Any) -> None:
        if self.rules.completes(parameter):
            self.sent.append(self._names[id(parameter)])

    def _submit(self, rules: ModelRules, missing: Iterable[Tensor]) -> None:
        assert rules is self.rules
        self.ends += 1
        self.sent += [f"late {self._names[id(parameter)]}" for parameter in missing]

    def train(self, output: Tensor) -> list[str]:
        self.sent = []
        output.sum().backward()
        return self.sent


def test_every_pass_sends_gradients_as_they_come() -> None:
    net = Watched()
    outputs = [net.two(net.one(X)) for _ in range(2)]
    for number, output in enumerate(outputs, 1):  # without a forward in between
        assert net.train(output) == ["two", "one"]
        assert net.ends == number


def test_skipped_layers_are_sent_by_synchronize() -> None:
    net = Watched()
    assert net.train(net.one(X)) == ["one"]
    assert net.ends == 0
    net.rules.synchronize()
    assert net.sent == ["one", "late two"]
    net.rules.check_finished()
    net.rules.synchronize()  # nothing is left to send
    assert net.ends == 1


def test_no_sync_is_about_backward() -> None:
    net = Watched()
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
    net = Watched()
    net.train(net.one(X))
    with pytest.raises(RuntimeError, match=r"no gradient of 'two' \(of 1 .*call synchronize\(\)"):
        net.rules.check_finished()
    with pytest.raises(RuntimeError, match="'one' was computed twice, and that of 'two' not yet"):
        net.train(net.one(X))
