"""Parameters whose values a script has swapped for others are named before they are sent."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from byteprophet import job
from byteprophet.job.owners import Owners
from byteprophet.torch.sync.collective_synchroniser import CollectiveSynchroniser
from byteprophet.torch.sync.setup import Setup


class First(CollectiveSynchroniser):
    """Rank 0 of two, which compares nothing and sends nothing."""

    def __init__(self) -> None:
        owners = Owners.equal(2)
        setup = Setup("dear", True, 1, 1.0, {}, owners, job.Strategy())
        numbers = itertools.count()
        exchange: Any = SimpleNamespace(
            size=2, rank=0, device_type="cpu", numbers=numbers, carries=lambda _: True
        )
        super().__init__(exchange, setup, records=False)
        self.sent: list[Tensor] = []

    def _compare(self, named: Sequence[tuple[str, Tensor]]) -> None:
        pass

    def _submit(self, parameter: str, gradient: Tensor, done: Any) -> None:
        self.sent.append(gradient)


@pytest.mark.parametrize(
    ("change", "now"),
    [
        (lambda p: p.half(), "torch.float16 of shape (2, 3) on cpu"),
        (lambda p: p.new_ones(7), "torch.float32 of shape (7,) on cpu"),
        (lambda p: p.new_ones(3, 2), ""),
    ],
)
def test_a_parameter_that_is_another_now(change: Callable[[Tensor], Tensor], now: str) -> None:
    synchroniser, parameter = First(), nn.Parameter(torch.ones(2, 3))
    synchroniser.declare_parameters([("a.weight", parameter)])
    parameter.data = change(parameter.data)
    gradient = torch.ones_like(parameter)

    def submit() -> None:
        synchroniser.submit_gradient("a.weight", gradient, priority=0, done=lambda _: None)

    if not now:
        submit()
        assert len(synchroniser.sent) == 1
        return
    message = f"'a.weight' was torch.float32 of shape (2, 3) on cpu and is now {now}: make a new"
    with pytest.raises(RuntimeError, match=re.escape(message)):
        submit()
    assert not synchroniser.sent
