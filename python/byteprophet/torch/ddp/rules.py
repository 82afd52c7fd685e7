"""The rules of all fronts that exchange gradients of ``DistributedDataParallel``.

A parameter of no model is never sent. So ``step()`` uses its gradient as it is, as beside plain
DistributedDataParallel.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from byteprophet.torch.ddp.backward import ModelRules


class Rules:
    """Asks the model of each parameter. ``BackwardRules`` describes the methods."""

    def __init__(self) -> None:
        self._backward_of: dict[int, ModelRules] = {}

    def follow(self, backwards: Iterable[ModelRules]) -> None:
        """From now on, ask ``backwards`` about their parameters, and nobody about others."""
        self._backward_of = {
            id(parameter): backward
            for backward in backwards
            for parameter in backward.parameters.values()
        }

    def before(self, parameter: Tensor) -> None:
        """See ``BackwardRules``."""
        backward = self._backward_of.get(id(parameter))
        if backward is not None:
            backward.before(parameter)

    def completes(self, parameter: Tensor) -> bool:
        """See ``BackwardRules``."""
        backward = self._backward_of.get(id(parameter))
        return backward is not None and backward.completes(parameter)
