"""Where the axes of an operator's output come from, of the operators that pass spans on.

``found_axes`` knows PyTorch's operators by name. One that it does not know needs its inputs whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from byteprophet.simulate.models.traced_spans import Flowing, cut_at

_SAME_MEMORY = """
alias broadcast_to chunk clone contiguous detach expand expand_as flatten getitem narrow permute
reshape reshape_as select slice split split_with_sizes squeeze t transpose unbind unflatten
unsqueeze view view_as _unsafe_view
"""
VIEWS = frozenset(_SAME_MEMORY.split())
"""Operators whose outputs are views of their first input, or could be."""
Places: TypeAlias = Sequence[int | None]
"""For each axis of an output: the axis of an input that it is; None: the input has none."""


def module_paths(node: Any) -> tuple[str, ...]:
    """The paths of the modules within which an FX node is called; the innermost comes last."""
    stack = node.meta.get("nn_module_stack") or {}
    return tuple(path for path, _ in stack.values() if path)


def operator_name(node: Any) -> str:
    """The name of the operator that an FX node calls; that of one in place has no underscore."""
    target = node.target
    name: str = getattr(target, "_opname", getattr(target, "__name__", str(target)))
    return name.rstrip("_")


class Found(NamedTuple):
    """Where the axes of an output come from.

    Attributes:
        sources: tensors, and their axes by those of the output.
        closed: axes of the output along which the operator needs all elements.
        takes_apart: whether an axis of the input is gone because the output is one of its elements.
    """

    sources: Sequence[tuple[Flowing, Places]]
    closed: Collection[int] = ()
    takes_apart: bool = False


_Find: TypeAlias = Callable[[Mapping[str, Any], list[Flowing], Sequence[int]], "Found | None"]


def found_axes(
    target: str, given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]
) -> Found | None:
    """Where the axes come from; None: the operator passes nothing on.

    Args:
        target: its name.
        given: its arguments by name.
        tensors: those among them.
        shape: of the output.
    """
    find = _elementwise if target in ELEMENTWISE else _PLACES.get(target)
    return find(given, tensors, shape) if find is not None else None


ELEMENTWISE = frozenset(
    [
        *("abs", "add", "broadcast_to", "celu", "clamp", "clamp_max", "clamp_min", "cos", "div"),
        *("divide", "dropout", "elu", "erf", "exp", "expand", "expand_as", "float", "gelu"),
        *("hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log", "log_sigmoid", "log1p"),
        *("masked_fill", "maximum", "minimum", "mish", "mul", "multiply", "neg", "negative"),
        *("pow", "reciprocal", "relu", "relu6", "rsqrt", "rsub", "selu", "sigmoid", "silu", "sin"),
        *("softplus", "sqrt", "square", "sub", "subtract", "tanh", "to", "true_divide"),
        *("type_as", "where", "_to_copy"),
    ]
)


def _aligned(tensor: Flowing, shape: Sequence[int]) -> list[int | None]:
    """As broadcasting aligns axes."""
    before = len(shape) - len(tensor.shape)
    return [axis - before if axis >= before else None for axis in range(len(shape))]


def _dims(given: Any, rank: int) -> list[int]:
    return [dim % rank for dim in ([given] if isinstance(given, int) else given)]


def _elementwise(_: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> Found:
    return Found([(one, _aligned(one, shape)) for one in tensors])


def _rowwise(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> Found:
    """An operator along one axis, which it needs whole."""
    return Found([(tensors[0], range(len(shape)))], _dims(given["dim"], len(shape)))


def _linear(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> Found:
    rank = len(shape)
    source: Flowing = given.get("mat1", tensors[0])  # of addmm, whose bias comes first
    return Found([(source, [*range(rank - 1), None])], (rank - 1,))


def _norm(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> Found:
    rank = len(shape)
    closed = range(rank - len(given["normalized_shape"]), rank)
    return Found([(tensors[0], range(rank))], closed)


def _products(_: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> Found | None:
    """Products of matrices, and attention: only what is before the last two axes is alike."""
    rank = len(shape)
    if any(len(one.shape) < 2 for one in tensors):
        return None
    return Found([(one, _aligned(one, shape)) for one in tensors], (rank - 1, rank - 2))


def _einsum(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> Found | None:
    """Axes are letters. As of products, those are alike that all inputs have."""
    read, arrow, made = given["equation"].replace(" ", "").partition("->")
    terms = read.split(",")
    repeats = any(len(set(term)) < len(term) for term in terms)
    if not arrow or "." in read or repeats or len(terms) != len(tensors):
        return None
    places = [[term.index(one) if one in term else None for one in made] for term in terms]
    closed = [axis for axis in range(len(shape)) if any(its[axis] is None for its in places)]
    return Found(list(zip(tensors, places, strict=True)), closed)


def _swapped(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> Found:
    order: list[int | None] = list(range(len(shape)))
    named = [given[name] for name in ("dim0", "dim1", "axis0", "axis1") if name in given]
    one, other = _dims(named or [-1, -2], len(shape))
    order[one], order[other] = order[other], order[one]
    return Found([(tensors[0], order)])


def _turned(_: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> Found:
    return Found([(tensors[0], [*range(len(shape))][::-1])])


def _permuted(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> Found:
    return Found([(tensors[0], _dims(given["dims"], len(shape)))])


def _moved(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> Found:
    rank = len(shape)
    before, after = (_dims(given[name], rank) for name in ("source", "destination"))
    order = [axis for axis in range(rank) if axis not in before]
    for place, axis in sorted(zip(after, before, strict=True)):
        order.insert(place, axis)
    return Found([(tensors[0], order)])


def _part(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> Found | None:
    """A part of an axis. If it is the axis that counts, the part must begin with a unit."""
    tensor, rank = tensors[0], len(shape)
    (dim,) = _dims(given.get("dim", 0), rank)
    start = (given.get("start") or 0) % max(1, tensor.shape[dim])
    low, _ = cut_at(tensor, dim) or (1, 1)
    if given.get("step", 1) == 1 and start % low == 0:
        return Found([(tensor, range(rank))])
    return Found([(tensor, range(rank))], (dim,))


def _one_of(given: Mapping[str, Any], tensors: list[Flowing], _: Sequence[int]) -> Found:
    rank = len(tensors[0].shape)
    (gone,) = _dims(given.get("dim", 0), rank)
    places = [axis for axis in range(rank) if axis != gone]
    return Found([(tensors[0], places)], takes_apart=True)


def _reduced(
    given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]
) -> Found | None:
    rank = len(tensors[0].shape)
    if given.get("dim") in (None, []):
        return None  # all axes
    gone = _dims(given["dim"], rank)
    if given.get("keepdim"):
        return Found([(tensors[0], range(rank))], gone)
    return Found([(tensors[0], [axis for axis in range(rank) if axis not in gone])])


def _joined(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> Found:
    closed = _dims(given.get("dim", 0), len(shape))
    return Found([(one, range(len(shape))) for one in tensors], closed)


def _stacked(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> Found:
    (new,) = _dims(given.get("dim", 0), len(shape))
    places = [None if axis == new else axis - (axis > new) for axis in range(len(shape))]
    return Found([(one, places) for one in tensors])


def _repeated(
    given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]
) -> Found | None:
    if not isinstance(given.get("repeats"), int) or given.get("dim") is None:
        return None
    return Found([(tensors[0], range(len(shape)))])


def _pairs(_: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> Found:
    """Complex numbers from pairs along the last axis, or the other way round."""
    rank, before = len(shape), len(tensors[0].shape)
    return Found([(tensors[0], [axis if axis < before else None for axis in range(rank)])])


_PLACES: Mapping[str, _Find] = {
    **dict.fromkeys(("softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum"), _rowwise),
    **dict.fromkeys(("layer_norm", "rms_norm"), _norm),
    **dict.fromkeys(("matmul", "bmm", "scaled_dot_product_attention"), _products),
    **dict.fromkeys(("chunk", "glu", "narrow", "slice", "split", "split_with_sizes"), _part),
    **dict.fromkeys(("select", "unbind"), _one_of),
    **dict.fromkeys(("mean", "sum", "amax", "amin", "linalg_vector_norm", "norm"), _reduced),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims", "mT"), _swapped),
    **dict.fromkeys(("t", "numpy_T"), _turned),
    **dict.fromkeys(("cat", "concat", "concatenate"), _joined),
    **dict.fromkeys(("view_as_complex", "view_as_real"), _pairs),
    "einsum": _einsum,
    "linear": _linear,
    "movedim": _moved,
    "moveaxis": _moved,
    "permute": _permuted,
    "stack": _stacked,
    "repeat_interleave": _repeated,
}
