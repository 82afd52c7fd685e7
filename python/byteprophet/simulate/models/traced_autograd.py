"""What autograd does for an operator of an exported graph: what it saves, and its backward FLOPs.

Autograd itself is asked: the operator runs on the meta device, where tensors have no memory. So no
table of operators is needed. Two operators have other kernels on GPUs than there (``_ON_GPUS``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from byteprophet.simulate.models.traced_axes import operator_name
from byteprophet.simulate.models.traced_flops import Flops


@dataclass(frozen=True)
class Learned:
    """What autograd does for a call.

    Attributes:
        outputs: for each output, whether a gradient can come by it.
        saved_inputs: the FX nodes whose tensors it saves, by name.
        saved_outputs: the numbers of the outputs that it saves.
        besides: what else it saves, such as masks.
        backward_flops: of the backward pass.
        weight_flops: a part of these: of the gradients of parameters.
    """

    outputs: Sequence[bool]
    saved_inputs: Sequence[str] = ()
    saved_outputs: Sequence[int] = ()
    besides: Sequence[Any] = ()
    backward_flops: int = 0
    weight_flops: int = 0


def learned(node: Any, differentiable: Collection[str], parameters: Collection[str]) -> Learned:
    """What autograd does for the operator that an FX node calls.

    Args:
        node: the FX node.
        differentiable: the names of the FX nodes that it reads and that need gradients.
        parameters: the names of those that are parameters.
    """
    values = _listed(node.meta["val"])
    if not differentiable:
        return Learned([False] * len(values))
    if not hasattr(node.target, "_schema"):  # a part of the graph that is called: all is kept
        floating = [one.dtype.is_floating_point for one in values]
        return Learned(floating, [one.name for one in node.all_input_nodes])
    on_gpus = _ON_GPUS.get(operator_name(node))
    if on_gpus is not None:
        return on_gpus(node, values)
    return _asked(node, differentiable, parameters)


def is_view(node: Any) -> bool:
    """Whether the outputs of an FX node's operator lie in the memory of its first input."""
    given, outputs = _called(node, ())
    first = next(iter(given.values()))
    return all(_memory(one) == _memory(first) for one in outputs)


def _asked(node: Any, differentiable: Collection[str], parameters: Collection[str]) -> Learned:
    import torch

    saved: list[Any] = []

    def keep(tensor: Any) -> Any:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        given, outputs = _called(node, differentiable)
    learns = [one.requires_grad for one in outputs]
    kept = {_memory(one): one for one in saved}
    made = [at for at, one in enumerate(outputs) if kept.pop(_memory(one), None) is not None]
    read = [name for name, one in given.items() if kept.pop(_memory(one), None) is not None]
    ends = [one for one in outputs if one.requires_grad]
    every = [given[name] for name in differentiable]
    activations = [given[name] for name in differentiable if name not in parameters]
    backward = _backward_flops(ends, every)
    weight = backward - _backward_flops(ends, activations) if backward else 0
    return Learned(learns, read, made, list(kept.values()), backward, weight)


def _backward_flops(outputs: Sequence[Any], inputs: Sequence[Any]) -> int:
    """The FLOPs of the gradients of ``inputs``."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    if not outputs or not inputs:
        return 0
    ones = [torch.empty_like(one) for one in outputs]
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(outputs, inputs, ones, retain_graph=True, allow_unused=True)
    return int(counter.get_total_flops())


def _called(node: Any, differentiable: Collection[str]) -> tuple[Mapping[str, Any], list[Any]]:
    """Run an FX node's operator: its inputs by name, and its outputs."""
    import torch
    from torch.fx.node import map_arg

    given: dict[str, Any] = {}
    in_place = node.target._schema.name.endswith("_")

    def tensor(one: Any) -> Any:
        value = one.meta["val"]
        if not isinstance(value, torch.Tensor):
            return value
        if one.name not in given:
            dtype = torch.float32 if value.dtype.is_floating_point else value.dtype
            made = torch.empty_strided(value.shape, value.stride(), dtype=dtype, device="meta")
            made.requires_grad_(one.name in differentiable)
            given[one.name] = made.clone() if in_place else made  # no leaf can be changed in place
        return given[one.name]

    arguments: Any = map_arg((node.args, node.kwargs), tensor)
    with torch.enable_grad():
        outputs = node.target(*arguments[0], **arguments[1])
    return given, _listed(outputs)


def _listed(value: Any) -> list[Any]:
    """The tensors among what an operator returns."""
    import torch

    values = value if isinstance(value, (tuple, list)) else [value]
    return [one for one in values if isinstance(one, torch.Tensor)]


def _memory(tensor: Any) -> int:
    """What is the same for tensors that share memory; on the meta device they have no addresses."""
    return int(tensor.untyped_storage()._cdata)


def _dropout(node: Any, values: Sequence[Any]) -> Learned:
    """GPUs keep a mask of one byte per element, other devices a factor."""
    import torch

    return Learned([True], besides=[torch.empty_like(values[0], dtype=torch.bool)])


def _attention(node: Any, values: Sequence[Any]) -> Learned:
    """Fused kernels keep what they read and write, and no scores."""
    return Learned([True], [one.name for one in node.all_input_nodes], [0])


_ON_GPUS: Mapping[str, Callable[[Any, Sequence[Any]], Learned]] = {
    "dropout": _dropout,
    "scaled_dot_product_attention": _attention,
}


def flops_of(target: str, forward: int, arguments: Mapping[str, Any], learned_of: Learned) -> Flops:
    """The FLOPs of an operator.

    PyTorch's counter takes all pairs of groups of a grouped convolution, and what it counts of
    attention depends on the device. So for these, products are counted.

    Args:
        target: the operator's name.
        forward: the FLOPs of its forward pass.
        arguments: the ``Tensor`` of each argument, by name.
        learned_of: what autograd does for it.
    """
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
    return Flops(forward, learned_of.backward_flops, learned_of.weight_flops)
