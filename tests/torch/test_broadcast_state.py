"""The state of an optimizer that is broadcast: what the root sends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from byteprophet.torch import collectives


class OnGpu(Tensor):
    """Stands in for a tensor of a GPU. Its copy on the CPU is a plain one."""

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        return self.as_subclass(Tensor)


def test_the_root_sends_copies_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other ranks receive there, and both must choose the same exchange."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.state[weight]["momentum_buffer"] = torch.ones(2).as_subclass(OnGpu)
    sent: list[Tensor] = []
    monkeypatch.setattr(collectives.basics, "size", lambda: 2)
    monkeypatch.setattr(collectives.basics, "rank", lambda: 0)
    monkeypatch.setattr(collectives, "_broadcast_text", lambda text, *_: text)
    monkeypatch.setattr(
        collectives, "_broadcast", lambda named, *_: sent.extend(tensor for _, tensor in named)
    )
    collectives.broadcast_optimizer_state(optimizer, 0)
    assert [type(each) for each in sent] == [Tensor]
    assert type(optimizer.state[weight]["momentum_buffer"]) is OnGpu
