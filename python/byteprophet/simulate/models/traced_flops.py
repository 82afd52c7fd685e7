"""The FLOPs of an operator."""

from __future__ import annotations

from typing import NamedTuple


class Flops(NamedTuple):
    """Those of an operator.

    Attributes:
        forward: of the forward pass.
        backward: of the backward pass.
        weight: a part of ``backward``: of the gradients of parameters.
    """

    forward: int = 0
    backward: int = 0
    weight: int = 0

    def plus(self, other: Flops) -> Flops:
        """Both together."""
        return Flops(*(one + its for one, its in zip(self, other, strict=True)))

    def less(self, other: Flops) -> Flops:
        """What is left without ``other``."""
        return self.plus(other.times(-1))

    def times(self, count: int) -> Flops:
        """So many of these."""
        return Flops(*(one * count for one in self))


NO_FLOPS = Flops()
