"""Of which parts of its tensors a traced model's tensor-parallel ranks can have some each.

This follows from the flow of data. A linear layer that gets whole rows is split by columns: each
rank makes some of them. Operators that treat all of these alike pass the split on. A linear layer
that gets parts of rows is split by rows, and its output is a sum over ranks. So Megatron-LM's pairs
of layers are found (Shoeybi et al. 2019, section 3), however a model is written. An operator that
passes nothing on needs its inputs whole, so they are gathered before it.

Elements of a tensor are numbered along its last axis first. A span ``(low, high)`` divides them
into ``high // low`` units: element ``i`` is in unit ``i // low % (high // low)``, and ranks have
equal numbers of units that follow each other. If 64 columns are viewed as 8 heads, their span
(1, 64) is cut by the two axes into (8, 64), the heads, and (1, 8), columns of each head. The first
one counts: whose units belong to which rank is the same as before. Others count only once it is
gone, as that of queries, keys and values is if a fused tensor is taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import gcd, prod
from typing import Any, NamedTuple, Protocol, TypeAlias

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


class Passed(NamedTuple):
    """What an operator passes on.

    Attributes:
        spans: those of its output; none: it needs all inputs whole.
        shared: the inputs of which each rank reads its units. All others are read whole.
        units: into so many equal parts can these inputs and the output be divided.
    """

    spans: Spans = ()
    shared: Sequence[Flowing] = ()
    units: int = 1


_NOTHING = Passed()


def columns_of(shape: Sequence[int]) -> Spans:
    """The span of the last axis."""
    return ((1, shape[-1]),) if shape and shape[-1] > 1 else ()


def first_axis(tensor: Flowing) -> int | None:
    """The axis of the span that counts; None if there is none."""
    return next((axis for axis, _ in _cuts(tensor)), None)


def units_of(tensor: Flowing) -> int:
    """How many units of the span that counts there are."""
    return next((high // low for _, (low, high) in _cuts(tensor)), 1)


def passed_on(target: str, given: Mapping[str, Any], shape: Sequence[int]) -> Passed:
    """What an operator passes on to its output.

    Args:
        target: its name.
        given: its arguments by name, with tensors in place of nodes.
        shape: of the output.
    """
    tensors = _tensors(given.values())
    if 0 in shape or not any(one.spans for one in tensors):
        return _NOTHING
    if target in _SAME_ORDER:
        (first, *_) = tensors
        return Passed(first.spans, (first,), units_of(first))
    find = _elementwise if target in _ELEMENTWISE else _PLACES.get(target)
    found = find(given, tensors, shape) if find is not None else None
    return _NOTHING if found is None else _shared(found, shape)


_SAME_ORDER = frozenset(
    [
        *("alias", "clone", "contiguous", "detach", "flatten", "getitem", "reshape", "reshape_as"),
        *("squeeze", "unflatten", "unsqueeze", "view", "view_as", "_unsafe_view"),
    ]
)
_ELEMENTWISE = frozenset(
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


class _Found(NamedTuple):
    """Where the axes of an output come from.

    Attributes:
        sources: tensors, and their axes by those of the output.
        closed: axes of the output along which the operator needs all elements.
        takes_apart: whether an axis of the input is gone because the output is one of its elements.
    """

    sources: Sequence[tuple[Flowing, Places]]
    closed: Collection[int] = ()
    takes_apart: bool = False


_Find: TypeAlias = Callable[[Mapping[str, Any], list[Flowing], Sequence[int]], "_Found | None"]


def _tensors(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            found += _tensors(value)
        elif hasattr(value, "spans"):
            found.append(value)
    return found


def _cuts(tensor: Flowing) -> Iterator[tuple[int, Span]]:
    """The spans as axes cut them, in steps of the axis. The first one counts."""
    if 0 in tensor.shape:
        return
    for span in tensor.spans:
        stride = prod(tensor.shape)
        for axis, size in enumerate(tensor.shape):
            cut = _common(span, (stride // size, stride))
            stride //= size
            if cut is not None:
                yield axis, (cut[0] // stride, cut[1] // stride)


def _common(one: Span, other: Span) -> Span | None:
    """The units that are units of both; None if there are none."""
    low, high = max(one[0], other[0]), min(one[1], other[1])
    even = all(low % each[0] == 0 and each[1] % high == 0 for each in (one, other))
    return (low, high) if low < high and even and high % low == 0 else None


def _resized(span: Span, before: int, after: int) -> Span | None:
    """The span of an axis of ``before`` elements that becomes one of ``after``.

    It has each element several times, or it is a part: each rank then has its own part of it, as of
    fused queries, keys and values.
    """
    low, high = span
    if after > before:
        repeats = after // before
        return (low * repeats, high * repeats) if after % before == 0 else None
    high = after if high == before else high
    return (low, high) if low < high and high % low == 0 == after % high else None


def _shared(found: _Found, shape: Sequence[int]) -> Passed:
    """What is passed on along the axis of the first span that counts."""
    axes = [axis for source in found.sources for axis in _counting(*source, found.takes_apart)]
    if not axes or min(axes) < 0 or min(axes) in found.closed:
        return _NOTHING
    axis = min(axes)
    shared = [source for source in found.sources if _has(*source, axis, shape)]
    spanned = [source for source in shared if not source[0].is_free]
    along = _along(axis, spanned, shape)
    if along is None:
        return _NOTHING
    spans = [along]
    first, places = spanned[0]
    for own, _ in _cuts(first):
        other = list(places).index(own) if own in places else axis
        if other != axis and other not in found.closed:
            finer = _along(other, spanned, shape)
            spans += [] if finer is None else [finer]
    units = [along[1] // along[0], *(_units_at(one, its[axis]) for one, its in spanned)]
    return Passed(tuple(spans), [one for one, _ in shared], gcd(*units))


def _counting(tensor: Flowing, places: Places, takes_apart: bool) -> Iterator[int]:
    """The axis of the output to which the span that counts goes; -1: to none. Nothing: no span."""
    if tensor.is_free:
        return
    for axis, _ in _cuts(tensor):
        if axis in places:
            yield list(places).index(axis)
            return
        if not takes_apart:
            yield -1
            return


def _has(tensor: Flowing, places: Places, axis: int, shape: Sequence[int]) -> bool:
    """Whether a tensor has an axis of the output, and not the same for all elements."""
    place = places[axis]
    return place is not None and (tensor.shape[place] != 1 or shape[axis] == 1)


def _along(
    axis: int, sources: Sequence[tuple[Flowing, Places]], shape: Sequence[int]
) -> Span | None:
    """The span of an axis of the output that all ``sources`` have; None if there is none."""
    found: Span | None = None
    for tensor, places in sources:
        own = _cut_at(tensor, places[axis])
        place = places[axis]
        if own is None or place is None:
            return None
        resized = _resized(own, tensor.shape[place], shape[axis])
        found = resized if found is None or resized is None else _common(found, resized)
        if found is None:
            return None
    stride = prod(shape[axis + 1 :])
    return None if found is None else (found[0] * stride, found[1] * stride)


def _cut_at(tensor: Flowing, place: int | None) -> Span | None:
    return next((span for axis, span in _cuts(tensor) if axis == place), None)


def _units_at(tensor: Flowing, place: int | None) -> int:
    low, high = _cut_at(tensor, place) or (1, 1)
    return high // low


def _aligned(tensor: Flowing, shape: Sequence[int]) -> list[int | None]:
    """As broadcasting aligns axes."""
    before = len(shape) - len(tensor.shape)
    return [axis - before if axis >= before else None for axis in range(len(shape))]


def _dims(given: Any, rank: int) -> list[int]:
    return [dim % rank for dim in ([given] if isinstance(given, int) else given)]


def _elementwise(_: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    return _Found([(one, _aligned(one, shape)) for one in tensors])


def _rowwise(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    """An operator along one axis, which it needs whole."""
    return _Found([(tensors[0], range(len(shape)))], _dims(given["dim"], len(shape)))


def _linear(_: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    rank = len(shape)
    return _Found([(tensors[0], [*range(rank - 1), None])], (rank - 1,))


def _norm(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    rank = len(shape)
    closed = range(rank - len(given["normalized_shape"]), rank)
    return _Found([(tensors[0], range(rank))], closed)


def _products(_: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found | None:
    """Products of matrices, and attention: only what is before the last two axes is alike."""
    rank = len(shape)
    if any(len(one.shape) < 2 for one in tensors):
        return None
    return _Found([(one, _aligned(one, shape)) for one in tensors], (rank - 1, rank - 2))


def _swapped(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    order: list[int | None] = list(range(len(shape)))
    named = [given[name] for name in ("dim0", "dim1", "axis0", "axis1") if name in given]
    one, other = _dims(named or [-1, -2], len(shape))
    order[one], order[other] = order[other], order[one]
    return _Found([(tensors[0], order)])


def _turned(_: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    return _Found([(tensors[0], [*range(len(shape))][::-1])])


def _permuted(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    return _Found([(tensors[0], _dims(given["dims"], len(shape)))])


def _moved(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    rank = len(shape)
    before, after = (_dims(given[name], rank) for name in ("source", "destination"))
    order = [axis for axis in range(rank) if axis not in before]
    for place, axis in sorted(zip(after, before, strict=True)):
        order.insert(place, axis)
    return _Found([(tensors[0], order)])


def _part(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found | None:
    """A part of an axis. If it is the axis that counts, the part must begin with a unit."""
    tensor, rank = tensors[0], len(shape)
    (dim,) = _dims(given.get("dim", 0), rank)
    start = (given.get("start") or 0) % max(1, tensor.shape[dim])
    low, _ = _cut_at(tensor, dim) or (1, 1)
    if given.get("step", 1) == 1 and start % low == 0:
        return _Found([(tensor, range(rank))])
    return _Found([(tensor, range(rank))], (dim,))


def _one_of(given: Mapping[str, Any], tensors: list[Flowing], _: Sequence[int]) -> _Found:
    rank = len(tensors[0].shape)
    (gone,) = _dims(given.get("dim", 0), rank)
    places = [axis for axis in range(rank) if axis != gone]
    return _Found([(tensors[0], places)], takes_apart=True)


def _reduced(
    given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]
) -> _Found | None:
    rank = len(tensors[0].shape)
    if given.get("dim") in (None, []):
        return None  # all axes
    gone = _dims(given["dim"], rank)
    if given.get("keepdim"):
        return _Found([(tensors[0], range(rank))], gone)
    return _Found([(tensors[0], [axis for axis in range(rank) if axis not in gone])])


def _joined(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    closed = _dims(given.get("dim", 0), len(shape))
    return _Found([(one, range(len(shape))) for one in tensors], closed)


def _stacked(given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    (new,) = _dims(given.get("dim", 0), len(shape))
    places = [None if axis == new else axis - (axis > new) for axis in range(len(shape))]
    return _Found([(one, places) for one in tensors])


def _repeated(
    given: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]
) -> _Found | None:
    if not isinstance(given.get("repeats"), int) or given.get("dim") is None:
        return None
    return _Found([(tensors[0], range(len(shape)))])


def _pairs(_: Mapping[str, Any], tensors: list[Flowing], shape: Sequence[int]) -> _Found:
    """Complex numbers from pairs along the last axis, or the other way round."""
    rank, before = len(shape), len(tensors[0].shape)
    return _Found([(tensors[0], [axis if axis < before else None for axis in range(rank)])])


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
    "linear": _linear,
    "movedim": _moved,
    "moveaxis": _moved,
    "permute": _permuted,
    "stack": _stacked,
    "repeat_interleave": _repeated,
}
