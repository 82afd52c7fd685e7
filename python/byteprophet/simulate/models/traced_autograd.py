"""What autograd does for an operator of an exported graph: what it saves, and its FLOPs.

Autograd itself is asked, by one run of the operator (``traced_runs.py``). So no table of operators
is needed. A few have other kernels on GPUs than on the meta device (``_ON_GPUS``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from byteprophet.simulate.models.traced_axes import operator_name
from byteprophet.simulate.models.traced_flops import Flops
from byteprophet.simulate.models.traced_runs import Run, tensors_among


@dataclass(frozen=True)
class Learned:
    """What autograd does for a call.

    Attributes:
        outputs: for each output, whether a gradient can come by it.
        saved_inputs: the FX nodes whose tensors it saves, by name.
        saved_outputs: the numbers of the outputs that it saves.
        besides: what else it saves, such as masks.
    """

    outputs: Sequence[bool]
    saved_inputs: Sequence[str] = ()
    saved_outputs: Sequence[int] = ()
    besides: Sequence[Any] = ()


def learned(node: Any, run: Run | None, *, learns: bool) -> Learned:
    """What autograd does for the operator that an FX node calls.

    Args:
        node: the FX node.
        run: a run of its operator; None: it has no schema, because it is a part of the graph.
        learns: whether any tensor that it reads needs a gradient.
    """
    values = tensors_among(node.meta["val"])
    if not learns:
        return Learned([False] * len(values))
    names = [one.name for one in node.all_input_nodes]
    if run is None:  # all is kept
        return Learned([one.dtype.is_floating_point for one in values], names)
    on_gpus = _ON_GPUS.get(operator_name(node))
    found = on_gpus(node, values) if on_gpus is not None else None
    if found is not None:
        return found
    saved = [names[at] for at in run.saved_inputs]
    return Learned(run.learns, saved, run.saved_outputs, run.besides)


def _dropout(node: Any, values: Sequence[Any]) -> Learned:
    """GPUs keep a mask of one byte per element, other devices a factor."""
    import torch

    return Learned([True], besides=[torch.empty_like(values[0], dtype=torch.bool)])


def _attention(node: Any, values: Sequence[Any]) -> Learned:
    """Fused kernels keep what they read and write, and for each row of scores a log-sum-exp."""
    import torch

    sums = torch.empty_like(values[0][..., 0], dtype=torch.float32)
    return Learned([True], [one.name for one in node.all_input_nodes], [0], [sums])


def _rms_norm(node: Any, values: Sequence[Any]) -> Learned | None:
    """The fused kernel keeps its input and a factor per row; it needs weights of the same type."""
    import torch

    given = node.all_input_nodes
    if len({one.meta["val"].dtype for one in given}) > 1:
        return None
    rows = given[0].meta["val"].shape[: -len(node.args[1])]
    factors = torch.empty(rows, dtype=torch.float32, device="meta")
    return Learned([True], [one.name for one in given], besides=[factors])


_ON_GPUS: Mapping[str, Callable[[Any, Sequence[Any]], Learned | None]] = {
    "dropout": _dropout,
    "rms_norm": _rms_norm,
    "scaled_dot_product_attention": _attention,
}


def flops_of(target: str, counted: Flops, arguments: Mapping[str, Any]) -> Flops:
    """The FLOPs of an operator.

    PyTorch's counter takes all pairs of groups of a grouped convolution, and what it counts of
    attention depends on the device. So for these, products are counted.

    Args:
        target: the operator's name.
        counted: what PyTorch counts.
        arguments: the ``Tensor`` of each argument, by name.
    """
    forward = counted.forward
    if target == "scaled_dot_product_attention":
        queries, keys, values = (
            arguments[name].differentiable for name in ("query", "key", "value")
        )
        products = values + (queries or keys) + queries + keys
        return Flops(forward, products * forward // 2)  # the forward pass has two
    if target.startswith("conv"):
        factors = [arguments[name] for name in ("input", "weight")]
        learns = [one for one in factors if one.differentiable]
        weights = [one for one in learns if one.kind == "parameter"]
        return Flops(forward, len(learns) * forward, len(weights) * forward)
    return counted
