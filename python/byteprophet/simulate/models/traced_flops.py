"""The FLOPs of operators of an exported graph, as PyTorch counts them."""

from __future__ import annotations

from typing import Any

from byteprophet.simulate.models.traced_axes import ELEMENTWISE, VIEWS, operator_name

_WITHOUT = VIEWS | ELEMENTWISE
"""Not worth asking: they have none."""


def counted_flops(node: Any) -> int:
    """The FLOPs of the operator that an FX node calls, for its shapes."""
    import torch
    from torch.fx.node import map_arg
    from torch.utils.flop_counter import FlopCounterMode

    if operator_name(node) in _WITHOUT or not hasattr(node.target, "_schema"):
        return 0
    given: Any = map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        node.target(*given[0], **given[1])
    return int(counter.get_total_flops())
