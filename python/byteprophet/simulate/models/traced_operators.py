"""Turns calls of an exported PyTorch graph into operators."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, prod
from typing import Any

from byteprophet.simulate.models.traced_flow import NOTHING, Passed, passed_on
from byteprophet.simulate.models.traced_spans import Spans, columns_of, first_axis
from byteprophet.simulate.operation.operator import Access, Kind, Operator

_SAME_MEMORY = """
alias chunk clone contiguous detach expand flatten getitem narrow permute reshape select slice split
split_with_sizes squeeze t transpose unbind unflatten unsqueeze view _unsafe_view
"""
_VIEWS = frozenset(_SAME_MEMORY.split())
_CUT_ANYWHERE = frozenset(
    ["add", "sub", "mul", "div", "relu", "gelu", "silu", "sigmoid", "tanh", "exp", "dropout", "pow"]
)
"""Operators that a tree may split along any dimension."""
_SAVE_NOTHING = frozenset(["add", "sub", "cat", "mean", "sum", "dropout", "adaptive_avg_pool2d"])
_SAVE_OUTPUT = frozenset(["relu", "softmax", "sigmoid", "tanh", "exp", "log_softmax"])
_KEEP_BESIDES = {"dropout": 1, "max_pool2d": 8}
"""Bytes per element of the output that are kept besides: masks, and indices."""
_ROWS_OF_WORDS = 2
"""A table of words has more rows than so many for each column, or is shared with another layer."""
_CAUSAL = 5
"""The place of ``is_causal`` among the arguments of scaled_dot_product_attention."""
_CONVOLUTIONS = frozenset(["conv1d", "conv2d", "conv3d", "convolution"])
_PRODUCTS = frozenset(["matmul", "bmm", "mm"])


@dataclass
class Tensor:
    """A tensor of the graph.

    ``kind``: parameter, buffer, input, or made by a call (empty). ``of_inputs``: whether it depends
    on the model's inputs. ``spans``: see ``traced_spans``. ``whole``: of a parameter, whether each
    tensor-parallel rank has all of it, because operators that read it cannot split it alike.
    """

    name: str
    shape: tuple[int, ...]
    element_bytes: int
    kind: str = ""
    differentiable: bool = True
    per_sample: int = 0
    columns_grow: bool = False
    spans: Spans = ()
    of_inputs: bool = False
    whole: bool = False

    @staticmethod
    def of(name: str, value: Any, kind: str = "") -> Tensor:
        """The description of a fake tensor. Floating-point numbers are taken to have 16 bits."""
        floating = value.dtype.is_floating_point
        size = 2 if floating else value.dtype.itemsize
        learns = (floating or value.dtype.is_complex) and kind in ("", "parameter")
        found = Tensor(name, tuple(value.shape), size, kind, learns)
        found.of_inputs = kind == "input"
        return found

    @property
    def is_free(self) -> bool:
        """Whether each rank can take the part that it needs: no activation has a gradient by it."""
        return not self.spans and not (self.differentiable and self.of_inputs)

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def columns(self) -> int:
        """The size of the last axis, unless it grows with the batch."""
        return 1 if self.columns_grow or not self.shape else max(1, self.shape[-1])

    @property
    def rows(self) -> int:
        """The product of all other axes, of one sample if the tensor grows with the batch."""
        return max(1, (self.per_sample or self.elements) // self.columns)


@dataclass
class Node:
    """A call.

    Attributes:
        modules: the paths of the modules around it, from the outermost one.
        linear: how tensor-parallel ranks split a linear layer: "columns", "rows" or not (empty).
        passed: what it passes on otherwise.
    """

    target: str
    modules: tuple[str, ...]
    inputs: list[Tensor]
    outputs: list[Tensor]
    causal: bool = False
    is_output: bool = False
    parameters: list[Tensor] = field(default_factory=list)
    linear: str = ""
    passed: Passed = NOTHING

    @property
    def output_names(self) -> list[str]:
        """The names of its outputs."""
        return [tensor.name for tensor in self.outputs]

    @property
    def split(self) -> str:
        """The name of the dimension that it passes on; empty: it needs its inputs whole."""
        if not self.passed.spans:
            return ""
        by_columns = self.passed.spans[:1] == columns_of(self.outputs[0].shape)
        return "columns" if by_columns else "heads"

    @staticmethod
    def of(node: Any, tensors: dict[str, Tensor], splits: dict[str, str]) -> list[Node]:
        """The call of an FX node; none if it is a view of the same elements.

        Args:
            node: the node.
            tensors: those of earlier nodes, by node.
            splits: how earlier layers split parameters, by their names: all uses split them alike.
        """
        import torch

        value = node.meta.get("val")
        values = value if isinstance(value, (tuple, list)) else [value]
        target = getattr(node.target, "_opname", getattr(node.target, "__name__", str(node.target)))
        target = target.rstrip("_")
        given = [tensors[arg.name] for arg in node.all_input_nodes if arg.name in tensors]
        if target == "getitem":
            given = [tensors[_output_name(node.args[0].name, node.args[1])]]
        if isinstance(value, torch.Tensor) and target in _VIEWS and given:
            viewed = given[0]
            if value.numel() == viewed.elements:
                seen = Tensor.of(viewed.name, value, viewed.kind)
                seen.differentiable, seen.of_inputs = viewed.differentiable, viewed.of_inputs
                seen.whole = viewed.whole
                seen.spans = passed_on(target, _arguments(node, tensors), seen.shape).spans
                tensors[node.name] = seen
                return []
        made = [
            Tensor.of(_output_name(node.name, at), one)
            for at, one in enumerate(values)
            if isinstance(one, torch.Tensor)
        ]
        if not made:
            return []
        for tensor in made:
            tensor.differentiable &= any(one.differentiable for one in given)
            tensor.of_inputs = any(one.of_inputs for one in given)
        if target == "embedding" and given[0].kind == "parameter":
            splits.setdefault(given[0].name, "columns")
        linear = _linear_split(given, splits) if target == "linear" else ""
        passed: list[Passed] = []
        if not linear:
            arguments = _arguments(node, tensors)
            passed = [passed_on(target, arguments, one.shape) for one in made]
        if linear == "columns":
            made[0].spans = columns_of(made[0].shape)
        elif passed and all(one.spans for one in passed):
            for tensor, its in zip(made, passed, strict=True):
                tensor.spans = its.spans
        else:
            passed = []
        tensors.update({tensor.name: tensor for tensor in made})
        stack = node.meta.get("nn_module_stack") or {}
        paths = tuple(path for path, _ in stack.values() if path)
        return [
            Node(
                target,
                paths,
                [tensor for tensor in given if tensor.kind not in ("parameter", "buffer")],
                made,
                bool(node.kwargs.get("is_causal", len(node.args) > _CAUSAL and node.args[_CAUSAL])),
                parameters=[tensor for tensor in given if tensor.kind == "parameter"],
                linear=linear,
                passed=_of_all(passed),
            )
        ]


def _of_all(passed: Sequence[Passed]) -> Passed:
    """What is passed on to several outputs."""
    if not passed:
        return NOTHING
    return passed[0]._replace(units=gcd(*(one.units for one in passed)))


def is_split_alike(node: Any) -> bool:
    """Whether all operators that read the parameter of an FX node can split it in the same way."""
    users = list(node.users)
    if len(users) < 2:
        return True
    places = {"linear": 1, "embedding": 0}
    names = (getattr(user.target, "_opname", "") for user in users)
    at = [places.get(name) for name in names]
    return all(
        place is not None and len(user.args) > place and user.args[place] is node
        for user, place in zip(users, at, strict=True)
    )


def _linear_split(given: Sequence[Tensor], splits: dict[str, str]) -> str:
    """How a linear layer is split; empty: not, because heads of its rows are, or it cannot be."""
    if len(given) < 2 or any(one.whole for one in given):
        return ""
    source, weight = given[:2]
    axis = first_axis(source)
    how = "columns" if axis is None else "rows" if axis == len(source.shape) - 1 else ""
    if weight.kind == "parameter":
        how = splits.setdefault(weight.name, how)
    return how


def _arguments(node: Any, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The arguments of an FX node by name, with tensors in place of nodes."""
    from torch.fx.node import map_arg

    if node.target is operator.getitem:
        return {"self": tensors[_output_name(node.args[0].name, node.args[1])]}
    if not hasattr(node.target, "_schema"):
        return {}  # a part of the graph with other settings
    listed = [one.name for one in node.target._schema.arguments]
    named = dict(zip(listed, node.args, strict=False)) | node.kwargs
    named |= {
        one.name: one.default_value
        for one in node.target._schema.arguments
        if one.has_default_value() and one.name not in named
    }
    found: Any = map_arg(named, lambda one: tensors.get(one.name))  # type: ignore[arg-type,return-value]
    return dict(found)


def _output_name(node: str, at: int) -> str:
    """The name of an output of a node."""
    return f"{node}.{at}" if at else node


def operator_of(node: Node, samples: int, shared: frozenset[str] = frozenset()) -> Operator | None:
    """The operator of a call; None if it reads no activation and makes none that grows.

    ``shared``: the parameters that several operators read.
    """
    if not node.inputs and not node.parameters:
        return None
    dims = _Dims(samples)
    if node.target == "linear" and node.parameters and node.inputs:
        return _linear(node, dims)
    split = dims.named(node.split, node.passed.units) if node.split else ""
    outputs = [dims.access(tensor, split=split) for tensor in node.outputs]
    inputs = [dims.given(tensor, split, node.passed) for tensor in node.inputs]
    if _is_of_words(node, shared):
        split = "vocabulary"
        words, width = node.parameters[0].shape
        own = (dims.named("vocabulary", words), dims.named("columns", width))
        parameters = [Access("parameter0", own)]
    else:
        parameters = [
            Access(f"parameter{at}", dims.parameter(at, tensor, split, node.passed))
            for at, tensor in enumerate(node.parameters)
        ]
    kind, flops = _work(node, samples)
    whole: Iterable[str] = ()
    if split or node.target not in _CUT_ANYWHERE:
        whole = (name for name in dims.sizes if name not in ("batch", split))
    saved = _saved(node)
    if node.target in _KEEP_BESIDES:
        size = _KEEP_BESIDES[node.target]
        besides = Access(f"{outputs[0].tensor}.kept", outputs[0].dims, size, differentiable=False)
        outputs.append(besides)
        saved = (*saved, besides.tensor)
    sizes = dims.of((*inputs, *outputs, *parameters))
    return Operator(
        name=node.target,
        kind=kind,
        sizes=sizes,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        parameters=tuple(parameters),
        whole=frozenset(whole),
        flops=flops,
        backward_flops=2 * flops,
        saved=saved,
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

    def __init__(self, samples: int) -> None:
        self.sizes: dict[str, int] = {"batch": samples}

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

    @staticmethod
    def made_of(tensor: Tensor, own: tuple[str, ...]) -> Access:
        """The tensor with these dimensions, and batch if it grows."""
        learns, grows = tensor.differentiable, tensor.per_sample > 0
        dims = ("batch", *own) if grows else own
        alone = learns and not grows
        return Access(
            tensor.name, dims, tensor.element_bytes, differentiable=learns, with_parameters=alone
        )


def _is_shared(tensor: Tensor, passed: Passed) -> bool:
    return any(tensor is one for one in passed.shared)


def _linear(node: Node, dims: _Dims) -> Operator:
    source, output, weight = node.inputs[0], node.outputs[0], node.parameters[0]
    if node.split:
        made, read = _beside_heads(node, dims)
    else:
        made, read = dims.access(output), dims.access(source, "inner")
    parameters = [Access("weight", ("columns", read.dims[-1]))]
    parameters += [Access("bias", ("columns",)) for _ in node.parameters[1:]]
    rows = output.rows * (dims.sizes["batch"] if output.per_sample else 1)
    flops = 2 * rows * weight.elements
    features = {"columns": "columns", "rows": read.dims[-1]}.get(node.linear, node.split)
    return Operator(
        name="linear",
        kind=Kind.MATMUL,
        sizes=dims.of((made, read, *parameters)),
        inputs=(read,),
        outputs=(made,),
        parameters=tuple(parameters),
        flops=flops,
        backward_flops=2 * flops,
        saved=(source.name,),
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


def _work(node: Node, samples: int) -> tuple[Kind, int]:
    """The kind of an operator, and the FLOPs of its forward pass."""
    output = node.outputs[0]
    made = output.per_sample * samples or output.elements
    if node.target in _CONVOLUTIONS and node.parameters:
        weight = node.parameters[0]
        return Kind.CONVOLUTION, 2 * made * prod(weight.shape[1:])
    if node.target in _PRODUCTS:
        return Kind.CONVOLUTION, 2 * made * node.inputs[0].shape[-1]
    if node.target == "scaled_dot_product_attention":
        return Kind.ATTENTION, 4 * made * node.inputs[1].shape[-2]
    if node.target == "embedding":
        return Kind.LOOKUP, 0
    return (Kind.VIEW if node.target in _VIEWS else Kind.MEMORY), 0


def _saved(node: Node) -> tuple[str, ...]:
    """The names of the activations that autograd keeps for the backward pass."""
    inputs = tuple(tensor.name for tensor in node.inputs)
    if node.target in _VIEWS or node.target in _SAVE_NOTHING:
        return ()
    if node.target in _SAVE_OUTPUT:
        return (node.outputs[0].name,)
    if node.target == "scaled_dot_product_attention":
        return (*inputs[:3], node.outputs[0].name)
    return inputs
