"""Turns calls of an exported PyTorch graph into operators."""

from __future__ import annotations

from collections.abc import Iterable

from byteprophet.simulate.models.traced_flow import Passed
from byteprophet.simulate.models.traced_nodes import Node, Tensor
from byteprophet.simulate.operation.operator import Access, Kind, Operator

_CUT_ANYWHERE = frozenset(
    ["add", "sub", "mul", "div", "relu", "gelu", "silu", "sigmoid", "tanh", "exp", "dropout", "pow"]
)
"""Operators that a tree may split along any dimension."""
_LOOKUPS = {
    "index": Kind.LOOKUP,
    "index_select": Kind.LOOKUP,
    "gather": Kind.LOOKUP,
    "embedding_bag": Kind.BAG,
}
"""Operators that read some rows of their first tensor, if that is a parameter."""
_ROWS_OF_WORDS = 2
"""A table of words has more rows than so many for each column, or is shared with another layer."""


def operator_of(node: Node, samples: int, shared: frozenset[str] = frozenset()) -> Operator | None:
    """The operator of a call; None if it reads no activation and makes none that grows.

    ``shared``: the parameters that several operators read.
    """
    if not node.inputs and not node.parameters:
        return None
    dims = _Dims(samples, learns=node.learns)
    if node.is_layer:
        return _linear(node, samples, dims)
    split = dims.named(node.split, node.passed.units) if node.split else ""
    outputs = [dims.access(tensor, split=split) for tensor in node.outputs]
    inputs = [dims.given(tensor, split, node.passed) for tensor in node.inputs]
    if _is_of_words(node, shared):
        split = "vocabulary"
        words, width = node.parameters[0].shape
        own = (dims.named("vocabulary", words), dims.named("columns", width))
        parameters = [Access("parameter0", own, differentiable=dims.learns(node.parameters[0]))]
    else:
        parameters = [
            Access(
                f"parameter{at}",
                dims.parameter(at, tensor, split, node.passed),
                differentiable=dims.learns(tensor),
            )
            for at, tensor in enumerate(node.parameters)
        ]
    flops = node.flops_of(samples)
    kind = _kind(node, flops.forward)
    besides = [dims.besides(tensor, node, outputs) for tensor in node.besides]
    outputs += besides
    whole: Iterable[str] = ()
    if split or node.target not in _CUT_ANYWHERE:
        whole = (name for name in dims.sizes if name not in ("batch", split))
    sizes = dims.of((*inputs, *outputs, *parameters))
    return Operator(
        name=node.target,
        kind=kind,
        sizes=sizes,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        parameters=tuple(parameters),
        whole=frozenset(whole),
        flops=flops.forward,
        backward_flops=flops.backward,
        weight_flops=flops.weight,
        saved=(*node.saved, *(one.tensor for one in besides)),
        causal=node.causal and kind is Kind.ATTENTION,
        features=split,
    )


def _is_of_words(node: Node, shared: frozenset[str]) -> bool:
    """Whether an embedding is one of words, of which tensor-parallel ranks have some each.

    Tables of positions and of kinds of tokens are small, and have few rows for their width.
    """
    if node.target != "embedding" or not node.parameters or not node.outputs[0].per_sample:
        return False
    table = node.parameters[0]
    if table.whole:
        return False
    return table.name in shared or table.shape[0] > _ROWS_OF_WORDS * table.shape[1]


class _Dims:
    """Names of dimensions of one operator. Equal sizes have equal names."""

    def __init__(self, samples: int, *, learns: bool) -> None:
        """``learns``: whether a gradient comes back by the operator."""
        self.sizes: dict[str, int] = {"batch": samples}
        self._learns = learns

    def learns(self, tensor: Tensor) -> bool:
        """Whether the operator gives a tensor a gradient, or gets one of it."""
        return tensor.differentiable and self._learns

    def of(self, accesses: Iterable[Access]) -> tuple[tuple[str, int], ...]:
        """The sizes for an operator with these ``accesses``, which may all have no batch."""
        used = {dim for access in accesses for dim in access.dims}
        return tuple((dim, size) for dim, size in self.sizes.items() if dim in used)

    def named(self, name: str, size: int) -> str:
        """A dimension of this name and size; another name if that has another size."""
        free, number = name, 2
        while self.sizes.setdefault(free, size) != size:
            free, number = f"{name}{number}", number + 1
        return free

    def parameter(self, at: int, tensor: Tensor, split: str, passed: Passed) -> tuple[str, ...]:
        """The dimensions of a parameter."""
        if split and _is_shared(tensor, passed) and not tensor.whole:
            return (self.named(f"parameter{at}", tensor.elements // self.sizes[split]), split)
        return (self.named(f"parameter{at}", tensor.elements),)

    def given(self, tensor: Tensor, split: str, passed: Passed) -> Access:
        """An input of an operator that passes ``split`` on: some are shared, others read whole."""
        if split and not _is_shared(tensor, passed):
            return self.access(tensor, "others")
        return self.access(tensor, split=split)

    def access(self, tensor: Tensor, columns: str = "columns", split: str = "") -> Access:
        """The tensor with the dimensions batch (if it grows), rows and columns.

        Args:
            tensor: the tensor.
            columns: the name of the dimension of its columns.
            split: the dimension of which ranks have parts, in place of columns; empty: none.
        """
        elements = tensor.per_sample or tensor.elements
        if split:
            own = (self.named("rows", elements // self.sizes[split]), split)
        else:
            own = (self.named("rows", tensor.rows), self.named(columns, tensor.columns))
        return self.made_of(tensor, own)

    def besides(self, tensor: Tensor, node: Node, outputs: Iterable[Access]) -> Access:
        """What is kept besides: it is divided as an output of as many elements, or not at all."""
        own = (tensor.per_sample, tensor.elements)
        alike = [
            access.dims
            for made, access in zip(node.outputs, outputs, strict=True)
            if (made.per_sample, made.elements) == own
        ]
        dims = alike[0] if alike else self.access(tensor, "others").dims
        return Access(tensor.name, dims, tensor.element_bytes, differentiable=False)

    def made_of(self, tensor: Tensor, own: tuple[str, ...]) -> Access:
        """The tensor with these dimensions, and batch if it grows."""
        learns, grows = self.learns(tensor), tensor.per_sample > 0
        dims = ("batch", *own) if grows else own
        alone = learns and not grows
        return Access(
            tensor.name, dims, tensor.element_bytes, differentiable=learns, with_parameters=alone
        )


def _is_shared(tensor: Tensor, passed: Passed) -> bool:
    return any(tensor is one for one in passed.shared)


def _linear(node: Node, samples: int, dims: _Dims) -> Operator:
    source, output = node.inputs[0], node.outputs[0]
    if node.split:
        made, read = _beside_heads(node, dims)
    else:
        made, read = dims.access(output), dims.access(source, "inner")
    weight, *biases = (dims.learns(one) for one in node.parameters)
    parameters = [Access("weight", ("columns", read.dims[-1]), differentiable=weight)]
    parameters += [Access("bias", ("columns",), differentiable=one) for one in biases]
    flops = node.flops_of(samples)
    features = {"columns": "columns", "rows": read.dims[-1]}.get(node.linear, node.split)
    return Operator(
        name="linear",
        kind=Kind.MATMUL,
        sizes=dims.of((made, read, *parameters)),
        inputs=(read,),
        outputs=(made,),
        parameters=tuple(parameters),
        flops=flops.forward,
        backward_flops=flops.backward,
        weight_flops=flops.weight,
        saved=tuple(node.saved),
        features=features,
    )


def _beside_heads(node: Node, dims: _Dims) -> tuple[Access, Access]:
    """The output and the input of a linear layer that gets all columns of some heads."""
    split = dims.named(node.split, node.passed.units)
    found = []
    for tensor, name in ((node.outputs[0], "columns"), (node.inputs[0], "inner")):
        rows = (tensor.per_sample or tensor.elements) // tensor.columns // node.passed.units
        own = (dims.named("rows", rows), split, dims.named(name, tensor.columns))
        found.append(dims.made_of(tensor, own))
    return found[0], found[1]


def _kind(node: Node, flops: int) -> Kind:
    if node.target == "scaled_dot_product_attention":
        return Kind.ATTENTION
    if flops:
        return Kind.CONVOLUTION  # or a product of activations
    if node.target == "embedding":
        return Kind.LOOKUP
    if node.target in _LOOKUPS and node.given[0].kind == "parameter":
        return _LOOKUPS[node.target]
    return Kind.VIEW if node.is_view else Kind.MEMORY
