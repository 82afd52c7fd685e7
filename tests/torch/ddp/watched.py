"""A process group of this process alone, and a model that tells which gradients were sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from torch import Tensor, distributed, nn


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class Watched:
    """A model of two layers, and which gradients were sent, in which order.

    ``_watch`` is given the rules that say when a gradient is complete.
    """

    def __init__(self) -> None:
        self.one, self.two = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.sent: list[str] = []
        self.ends = 0
        self.named: dict[str, Tensor] = {"one": self.one.weight, "two": self.two.weight}
        self._names = {id(parameter): name for name, parameter in self.named.items()}

    def _watch(self, rules: Any) -> None:
        self._rules = rules
        for parameter in self.named.values():
            parameter.register_hook(lambda _, p=parameter: rules.before(p))
            parameter.register_post_accumulate_grad_hook(self._added)

    def _added(self, parameter: Any) -> None:
        if self._rules.completes(parameter):
            self.sent.append(self._names[id(parameter)])

    def _submit(self, rules: Any, missing: Iterable[Tensor]) -> None:
        assert rules is self._rules
        self.ends += 1
        self.sent += [f"late {self._names[id(parameter)]}" for parameter in missing]
