"""Of which parts of its tensors a traced model's tensor-parallel ranks can have some each.

This follows from the flow of data. A linear layer that gets whole rows is split by columns: each
rank makes some of them. Operators that treat all of these alike pass the split on. A linear layer
that gets parts of rows is split by rows, and its output is a sum over ranks. So Megatron-LM's pairs
of layers are found (Shoeybi et al. 2019, section 3), however a model is written. An operator that
passes nothing on needs its inputs whole, so they are gathered before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import gcd, prod
from typing import Any, NamedTuple

from byteprophet.simulate.models.traced_axes import Found, Places, found_axes
from byteprophet.simulate.models.traced_spans import (
    Flowing,
    Span,
    Spans,
    common,
    cut_at,
    cuts,
    resized,
    units_at,
)


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


NOTHING = Passed()
"""All inputs are needed whole."""


def passed_on(target: str, given: Mapping[str, Any], shape: Sequence[int]) -> Passed:
    """What an operator passes on to its output.

    Args:
        target: its name.
        given: its arguments by name, with tensors in place of nodes.
        shape: of the output.
    """
    tensors = _tensors(given.values())
    if 0 in shape or not any(one.spans for one in tensors):
        return NOTHING
    if target in _SAME_ORDER:
        (first, *_) = tensors  # a copy is divided as finely as any reader may divide it
        return Passed(first.spans, (first,), prod(high // low for low, high in first.spans))
    found = found_axes(target, given, tensors, shape)
    return NOTHING if found is None else _shared(found, shape)


_SAME_ORDER = frozenset(
    [
        *("alias", "clone", "contiguous", "detach", "flatten", "getitem", "reshape", "reshape_as"),
        *("squeeze", "unflatten", "unsqueeze", "view", "view_as", "_unsafe_view"),
    ]
)


def _tensors(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            found += _tensors(value)
        elif hasattr(value, "spans"):
            found.append(value)
    return found


def _shared(found: Found, shape: Sequence[int]) -> Passed:
    """What is passed on along the axis of the first span that counts."""
    axes = [axis for source in found.sources for axis in _counting(*source, found.takes_apart)]
    if not axes or min(axes) < 0 or min(axes) in found.closed:
        return NOTHING
    axis = min(axes)
    shared = [source for source in found.sources if _has(*source, axis, shape)]
    spanned = [source for source in shared if not source[0].is_free]
    along = _along(axis, spanned, shape)
    if along is None:
        return NOTHING
    spans = [along]
    first, places = spanned[0]
    for own, _ in cuts(first):
        other = list(places).index(own) if own in places else axis
        if other != axis and other not in found.closed:
            finer = _along(other, spanned, shape)
            spans += [] if finer is None else [finer]
    units = [along[1] // along[0], *(units_at(one, its[axis]) for one, its in spanned)]
    return Passed(tuple(spans), [one for one, _ in shared], gcd(*units))


def _counting(tensor: Flowing, places: Places, takes_apart: bool) -> Iterator[int]:
    """The axis of the output to which the span that counts goes; -1: to none. Nothing: no span."""
    if tensor.is_free:
        return
    for axis, _ in cuts(tensor):
        if axis in places:
            yield list(places).index(axis)
            return
        if not takes_apart:
            yield -1
            return


def _has(tensor: Flowing, places: Places, axis: int, shape: Sequence[int]) -> bool:
    """Whether a tensor has an axis of the output, and not the same for all elements."""
    place = places[axis]
    return place is not None and (tensor.own_shape[place] != 1 or shape[axis] == 1)


def _along(
    axis: int, sources: Sequence[tuple[Flowing, Places]], shape: Sequence[int]
) -> Span | None:
    """The span of an axis of the output that all ``sources`` have; None if there is none."""
    found: Span | None = None
    for tensor, places in sources:
        place = places[axis]
        own = cut_at(tensor, place)
        if own is None or place is None:
            return None
        here = resized(own, tensor.shape[place], shape[axis])
        found = here if found is None or here is None else common(found, here)
        if found is None:
            return None
    stride = prod(shape[axis + 1 :])
    return None if found is None else (found[0] * stride, found[1] * stride)
