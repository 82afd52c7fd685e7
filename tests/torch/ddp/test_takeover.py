"""What becomes of gradients at the end of a backward pass, on one rank."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch.ddp import takeover
from byteprophet.torch.optimizer import Uncompressed, distribute


class OfOne:
    """Rules by which every backward pass sends the gradient of one parameter."""

    def __init__(self, parameter: Tensor) -> None:
        self.parameters = {"weight": parameter}

    def named(self, parameters: Iterable[Tensor]) -> list[tuple[str, Tensor]]:
        ours = self.parameters["weight"]
        return [("weight", each) for each in parameters if each is ours]

    def before(self, parameter: Tensor) -> None:
        pass

    def completes(self, parameter: Tensor) -> bool:
        return True


def test_a_gradient_that_only_others_have_waits_for_the_update_of_the_last_one(
    monkeypatch: Any, network: Any
) -> None:
    """Forward has not waited for it, because it has skipped the layer."""
    model = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(model.weight)
    rules: Any = OfOne(model.weight)
    optimizer: Any = distribute(
        torch.optim.SGD(model.parameters(), lr=0.5),
        None,
        Uncompressed,
        1,
        model=None,
        separable=None,
        synchroniser=network.rank(),
        settings=RuntimeSettings(timeout_s=30.0),
        rules=rules,
    )
    monkeypatch.setattr(takeover, "fronts", lambda: [optimizer._front])
    updater = optimizer._front.updater
    for iteration in range(4):
        if iteration == 3:
            optimizer.finish()
            network.hold(lambda name: name == "Gradient.weight")
        optimizer.zero_grad(set_to_none=False)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert updater.outstanding
    optimizer.zero_grad(set_to_none=False)
    only_one = (lambda _: not updater.outstanding,)
    threading.Timer(0.2, network.hold, only_one).start()
    takeover._submit(rules, [model.weight])
    optimizer.step()
    network.release()
    optimizer.finish()
    assert torch.equal(model.weight.detach(), torch.full((2, 2), -4 * 0.5))
