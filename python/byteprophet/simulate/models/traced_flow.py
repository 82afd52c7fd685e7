"""Of which parts of its tensors a traced model's tensor-parallel ranks can have some each.

This follows from the flow of data. A linear layer that gets whole rows is split by columns: each
rank makes some of them. Operators that treat all of these alike pass the split on. A linear layer
that gets parts of rows is split by rows, and its output is a sum over ranks. So Megatron-LM's pairs
of layers are found (Shoeybi et al. 2019, section 3), however a model is written. An operator that
passes nothing on needs its inputs whole, so they are gathered before it.

Elements of a tensor are numbered along its last axis first. A span ``(low, high)`` divides them
into ``high // low`` units: element ``i`` is in unit ``i // low % (high // low)``. If 64 columns are
viewed as 8 heads, their spans are (1, 8) and (8, 64): ranks may have some columns of each head, or
some heads. Each operator passes on the spans that it can; attention, for example, only heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, Protocol, TypeAlias

Span: TypeAlias = tuple[int, int]
Spans: TypeAlias = tuple[Span, ...]
Places: TypeAlias = Sequence[int | None]
"""For each axis of an output: the axis of an input that it is; None: the input has none."""


class Flowing(Protocol):
    """A tensor. Of one that is free, each rank takes the part that it needs."""

    shape: tuple[int, ...]
    spans: Spans

    @property
    def is_free(self) -> bool:
        """Whether it has no gradient that ranks would have parts of."""


def units(spans: Spans) -> int:
    """The units of all spans together."""
    return prod(high // low for low, high in spans)


def columns_of(shape: Sequence[int]) -> Spans:
    """The span of the last axis."""
    return ((1, shape[-1]),) if shape[-1] > 1 else ()


def has_rows_in_parts(tensor: Flowing) -> bool:
    """Whether the last axis has a span."""
    return bool(tensor.spans) and bool(_by_axis(tensor)[-1])


def passed_on(target: str, given: Mapping[str, Any], shape: Sequence[int]) -> Spans:
    """The spans of an output.

    Args:
        target: the name of the operator.
        given: its arguments by name, with tensors in place of nodes.
        shape: of the output.
    """
    tensors = [one for one in _tensors(given.values()) if not one.is_free]
    if not any(one.spans for one in tensors):
        return ()
    if target in _SAME_ORDER:
        first: Flowing = tensors[0]
        return first.spans
    if target in _ELEMENTWISE:
        return _shared([(one, _aligned(one, shape)) for one in tensors], (), shape)
    find = _PLACES.get(target)
    found = find(given, tensors, shape) if find is not None else None
    return _shared(*found, shape) if found is not None else ()


_SAME_ORDER = frozenset(
    [
        *("alias", "clone", "contiguous", "detach", "flatten", "getitem", "reshape", "reshape_as"),
        *("squeeze", "unflatten", "unsqueeze", "view", "view_as", "_unsafe_view"),
    ]
)
_ELEMENTWISE = frozenset(
    [
        *("abs", "add", "clamp", "clamp_max", "clamp_min", "div", "dropout", "elu", "exp"),
        *("expand", "float", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log"),
        *("masked_fill", "maximum", "minimum", "mish", "mul", "neg", "pow", "relu", "relu6"),
        *("rsqrt", "rsub", "sigmoid", "silu", "softplus", "sqrt", "square", "sub", "tanh", "to"),
        *("type_as", "where", "_to_copy"),
    ]
)
_Found: TypeAlias = tuple[list[tuple[Flowing, Places]], Iterable[int]]
_Find: TypeAlias = Callable[[Mapping[str, Any], list[Flowing], Sequence[int]], "_Found | None"]


def _tensors(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            found += _tensors(value)
        elif hasattr(value, "spans"):
            found.append(value)
    return found


def _by_axis(tensor: Flowing) -> list[list[Span]]:
    """The spans of each axis, in steps of that axis."""
    found = []
    stride = prod(tensor.shape)
    for size in tensor.shape:
        axis = (stride // size, stride)
        stride //= size
        cuts = (_common(span, axis) for span in tensor.spans)
        found.append([(low // stride, high // stride) for low, high in filter(None, cuts)])
    return found


def _common(one: Span, other: Span) -> Span | None:
    """The units that are units of both; None if there are none."""
    low, high = max(one[0], other[0]), min(one[1], other[1])
    even = all(low % each[0] == 0 and each[1] % high == 0 for each in (one, other))
    return (low, high) if low < high and even and high % low == 0 else None


def _resized(spans: Sequence[Span], before: int, after: int) -> list[Span]:
    """The spans of an axis of ``before`` elements that becomes one of ``after``.

    It has each element several times, or it is a part: each rank then has its own part of it, as of
    fused queries, keys and values.
    """
    if after > before:
        repeats = after // before if after % before == 0 else 0
        return [(low * repeats, high * repeats) for low, high in spans if repeats]
    cut = ((low, after if high == before else high) for low, high in spans)
    return [(low, high) for low, high in cut if low < high and high % low == 0 == after % high]


def _shared(
    sources: Iterable[tuple[Flowing, Places]], closed: Iterable[int], shape: Sequence[int]
) -> Spans:
    """The spans that all ``sources`` have along axes that are not ``closed``."""
    given = [(one, _by_axis(one), places) for one, places in sources]
    found: list[Span] = []
    stride = prod(shape)
    for axis, size in enumerate(shape):
        stride //= size
        here: list[Span] | None = None
        for tensor, by_axis, places in given:
            place = places[axis]
            if place is None or (tensor.shape[place] == 1 != size):
                continue  # it is the same for all units
            own = _resized(by_axis[place], tensor.shape[place], size)
            pairs = own if here is None else [_common(a, b) for a in here for b in own]
            here = [one for one in pairs if one is not None]
        if axis not in closed:
            found += ((low * stride, high * stride) for low, high in here or ())
    return tuple(found)


def _aligned(tensor: Flowing, shape: Sequence[int]) -> list[int | None]:
    """As broadcasting aligns axes."""
    before = len(shape) - len(tensor.shape)
    return [axis - before if axis >= before else None for axis in range(len(shape))]


def _dims(given: Any, rank: int) -> list[int]:
    return [dim % rank for dim in ([given] if isinstance(given, int) else given)]


def _rowwise(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    """An operator along one axis, which it needs whole."""
    return [(tensors[0], _aligned(tensors[0], shape))], _dims(given["dim"], len(shape))


def _norm(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    rank = len(shape)
    closed = range(rank - len(given["normalized_shape"]), rank)
    return [(tensors[0], _aligned(tensors[0], shape))], closed


def _products(_: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found | None:
    """Products of matrices, and attention: only what is before the last two axes is alike."""
    rank = len(shape)
    if any(len(one.shape) < 2 for one in tensors):
        return None
    return [(one, _aligned(one, shape)) for one in tensors], (rank - 1, rank - 2)


def _transposed(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    order: list[int | None] = list(range(len(shape)))
    one, other = _dims([given["dim0"], given["dim1"]], len(shape))
    order[one], order[other] = order[other], order[one]
    return [(tensors[0], order)], ()


def _turned(_: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    return [(tensors[0], [*range(len(shape))][::-1])], ()


def _permuted(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    return [(tensors[0], _dims(given["dims"], len(shape)))], ()


def _part(_: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    return [(tensors[0], range(len(shape)))], ()


def _one_of(given: Mapping[str, Any], tensors: list[Flowing], _: Sequence[int]) -> _Found:
    rank = len(tensors[0].shape)
    (gone,) = _dims(given["dim"], rank)
    return [(tensors[0], [axis for axis in range(rank) if axis != gone])], ()


def _reduced(
    given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]
) -> _Found | None:
    rank = len(tensors[0].shape)
    if not given.get("dim"):
        return None  # all axes, or none that is named
    gone = _dims(given["dim"], rank)
    if given.get("keepdim"):
        return [(tensors[0], range(rank))], gone
    return [(tensors[0], [axis for axis in range(rank) if axis not in gone])], ()


def _joined(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    return [(one, range(len(shape))) for one in tensors], _dims(given["dim"], len(shape))


def _stacked(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    (new,) = _dims(given["dim"], len(shape))
    places = [None if axis == new else axis - (axis > new) for axis in range(len(shape))]
    return [(one, places) for one in tensors], ()


def _repeated(
    given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]
) -> _Found | None:
    if not isinstance(given.get("repeats"), int) or given.get("dim") is None:
        return None
    return [(tensors[0], range(len(shape)))], ()


_PLACES: Mapping[str, _Find] = {
    **dict.fromkeys(("softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum"), _rowwise),
    **dict.fromkeys(("layer_norm", "rms_norm"), _norm),
    **dict.fromkeys(("matmul", "bmm", "scaled_dot_product_attention"), _products),
    **dict.fromkeys(("chunk", "split", "split_with_sizes", "narrow", "slice"), _part),
    **dict.fromkeys(("select", "unbind"), _one_of),
    **dict.fromkeys(("mean", "sum", "amax", "amin"), _reduced),
    "t": _turned,
    "transpose": _transposed,
    "permute": _permuted,
    "cat": _joined,
    "stack": _stacked,
    "repeat_interleave": _repeated,
}
