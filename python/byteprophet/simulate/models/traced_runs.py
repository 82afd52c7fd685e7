"""Runs each operator of an exported graph once on the meta device, where tensors have no memory.

One run answers all questions: FLOPs, what autograd saves, whether an output is a view. Operators
that are called alike, as those of equal layers are, share a run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from byteprophet.simulate.models.traced_flops import Flops


@dataclass(frozen=True)
class Run:
    """What a run of an operator shows. Inputs are numbered as the FX node's ``all_input_nodes``.

    Attributes:
        learns: for each output, whether a gradient can come by it.
        saved_inputs: the numbers of the inputs that autograd saves.
        saved_outputs: the numbers of the outputs that it saves.
        besides: what else it saves, such as statistics.
        is_view: whether all outputs lie in the memory of the first input, which is not changed.
        flops: as PyTorch counts them.
    """

    learns: Sequence[bool]
    saved_inputs: Sequence[int]
    saved_outputs: Sequence[int]
    besides: Sequence[Any]
    is_view: bool
    flops: Flops


class Runs:
    """The runs of the operators of a graph."""

    def __init__(self) -> None:
        self._found: dict[Any, Run] = {}

    def of(self, node: Any, differentiable: Collection[str], parameters: Collection[str]) -> Run:
        """What a run of the operator that an FX node calls shows.

        Args:
            node: the FX node. Its target has a schema.
            differentiable: the names of the FX nodes that it reads and that need gradients.
            parameters: the names of those that are parameters.
        """
        from torch.fx.node import map_arg

        inputs = node.all_input_nodes
        place = {one.name: at for at, one in enumerate(inputs)}
        learns = tuple(one.name in differentiable for one in inputs)
        activations = tuple(one.name not in parameters for one in inputs)

        def standing(one: Any) -> Any:
            return _Place(place[one.name])

        called = repr(map_arg((node.args, node.kwargs), standing))
        described = repr([_described(one.meta["val"]) for one in inputs])
        key = (node.target, called, described, learns, activations)
        if key not in self._found:
            self._found[key] = _run(node, place, learns, activations)
        return self._found[key]


@dataclass(frozen=True)
class _Place:
    """Stands for an input among the arguments, in the key of a run."""

    number: int


def _described(value: Any) -> Any:
    """All that a run depends on, of an input."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    return tuple(value.shape), value.stride(), value.dtype


def _run(
    node: Any, place: dict[str, int], learns: Sequence[bool], activations: Sequence[bool]
) -> Run:
    import torch
    from torch.fx.node import map_arg
    from torch.utils.flop_counter import FlopCounterMode

    in_place = node.target._schema.name.endswith("_")
    given: list[Any] = []
    for one, with_gradient in zip(node.all_input_nodes, learns, strict=True):
        value = one.meta["val"]
        if isinstance(value, torch.Tensor):
            value = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="meta"
            ).requires_grad_(with_gradient)
            value = value.clone() if in_place else value  # no leaf can be changed in place
        given.append(value)
    arguments: Any = map_arg((node.args, node.kwargs), lambda one: given[place[one.name]])
    saved: list[Any] = []

    def keep(tensor: Any) -> Any:
        saved.append(tensor)
        return tensor

    with (
        torch.set_grad_enabled(any(learns)),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        FlopCounterMode(display=False) as counter,
    ):
        outputs = tensors_among(node.target(*arguments[0], **arguments[1]))
    kept = {memory_of(one): one for one in saved}
    made = [at for at, one in enumerate(outputs) if kept.pop(memory_of(one), None) is not None]
    read = [
        at
        for at, one in enumerate(given)
        if isinstance(one, torch.Tensor) and kept.pop(memory_of(one), None) is not None
    ]
    ends = [one for one in outputs if one.requires_grad]
    wanted = [one for one, its in zip(given, learns, strict=True) if its]
    others = [one for one, *its in zip(given, learns, activations, strict=True) if all(its)]
    backward = _backward_flops(ends, wanted)
    weight = backward - _backward_flops(ends, others) if backward else 0
    first = next((memory_of(one) for one in given if isinstance(one, torch.Tensor)), None)
    return Run(
        [one.requires_grad for one in outputs],
        read,
        made,
        [_whole(one) for one in kept.values()],
        not in_place and bool(outputs) and all(memory_of(one) == first for one in outputs),
        Flops(int(counter.get_total_flops()), backward, weight),
    )


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


def tensors_among(value: Any) -> list[Any]:
    """The tensors among what an operator returns."""
    import torch

    values = value if isinstance(value, (tuple, list)) else [value]
    return [one for one in values if isinstance(one, torch.Tensor)]


def _whole(tensor: Any) -> Any:
    """A saved tensor, or if it is a part of the memory that is kept with it, all of this."""
    import torch

    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    if elements == tensor.numel():
        return tensor
    return torch.empty(elements, dtype=tensor.dtype, device="meta")


def memory_of(tensor: Any) -> int:
    """What is the same for tensors that share memory; on the meta device they have no addresses."""
    return int(tensor.untyped_storage()._cdata)
