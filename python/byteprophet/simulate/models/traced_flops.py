"""The FLOPs of operators of an exported graph, as PyTorch counts them."""

from __future__ import annotations

from typing import Any, NamedTuple

from byteprophet.simulate.models.traced_axes import ELEMENTWISE, VIEWS, operator_name

_WITHOUT = VIEWS | ELEMENTWISE
"""Not worth asking: they have none."""


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

    def less(self, other: Flops, times: int = 1) -> Flops:
        """What is left without ``other``, so many times."""
        return Flops(*(one - times * its for one, its in zip(self, other, strict=True)))


NO_FLOPS = Flops()


def counted_flops(node: Any) -> int:
    """The FLOPs of the forward pass of the operator that an FX node calls, for its shapes."""
    import torch
    from torch.fx.node import map_arg
    from torch.utils.flop_counter import FlopCounterMode

    if operator_name(node) in _WITHOUT or not hasattr(node.target, "_schema"):
        return 0
    given: Any = map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        node.target(*given[0], **given[1])
    return int(counter.get_total_flops())
