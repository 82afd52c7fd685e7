"""The rules of all fronts that exchange gradients of ``DistributedDataParallel``.

The fronts manage the parameters of models only. ``step()`` updates the others by their gradients as
they are, as beside plain DistributedDataParallel: each rank may have others of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from byteprophet.torch.ddp import models
from byteprophet.torch.ddp.backward import ModelRules


class Rules:
    """Asks the model of each parameter. ``SharedRules`` describes the methods."""

    def __init__(self) -> None:
        self._backward_of: dict[int, ModelRules] = {}

    def follow(self, backwards: Iterable[ModelRules]) -> None:
        """From now on, ask ``backwards`` about their parameters, and nobody about others."""
        self._backward_of = {
            id(parameter): backward
            for backward in backwards
            for parameter in backward.parameters.values()
        }

    def exchanges(self, parameter: Tensor) -> bool:
        """Whether some model's backward passes send the gradient of ``parameter``."""
        return id(parameter) in self._backward_of

    def named(self, parameters: Iterable[Tensor]) -> list[tuple[str, Tensor]]:
        """See ``SharedRules``."""
        return [(models.name_of(each), each) for each in parameters if self.exchanges(each)]

    def before(self, parameter: Tensor) -> None:
        """See ``BackwardRules``."""
        backward = self._backward_of.get(id(parameter))
        if backward is not None:
            backward.before(parameter)

    def completes(self, parameter: Tensor) -> bool:
        """See ``BackwardRules``."""
        backward = self._backward_of.get(id(parameter))
        return backward is not None and backward.completes(parameter)
