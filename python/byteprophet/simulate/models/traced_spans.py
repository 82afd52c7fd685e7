"""Spans: how tensor-parallel ranks may divide the elements of a tensor of a traced model.

Elements are numbered along the last axis first. A span ``(low, high)`` divides them into
``high // low`` units: element ``i`` is in unit ``i // low % (high // low)``, and ranks have equal
numbers of units that follow each other. If 64 columns are viewed as 8 heads, their span (1, 64) is
cut by the two axes into (8, 64), the heads, and (1, 8), columns of each head. The first one counts:
whose units belong to which rank is the same as before. Others count only once it is gone, as that
of queries, keys and values is if a fused tensor is taken apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Protocol, TypeAlias

Span: TypeAlias = tuple[int, int]
Spans: TypeAlias = tuple[Span, ...]


class Flowing(Protocol):
    """A tensor. Of one that is free, each rank takes the part that it needs."""

    shape: tuple[int, ...]
    spans: Spans

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The shape without repeats of axes of size 1."""

    @property
    def is_free(self) -> bool:
        """Whether it has no gradient that ranks would have parts of."""


def columns_of(shape: Sequence[int]) -> Spans:
    """The span of the last axis."""
    return ((1, shape[-1]),) if shape and shape[-1] > 1 else ()


def first_axis(tensor: Flowing) -> int | None:
    """The axis of the span that counts; None if there is none."""
    return next((axis for axis, _ in cuts(tensor)), None)


def cuts(tensor: Flowing) -> Iterator[tuple[int, Span]]:
    """The spans as axes cut them, in steps of the axis. The first one counts."""
    if 0 in tensor.shape:
        return
    for span in tensor.spans:
        stride = prod(tensor.shape)
        for axis, size in enumerate(tensor.shape):
            cut = common(span, (stride // size, stride))
            stride //= size
            if cut is not None:
                yield axis, (cut[0] // stride, cut[1] // stride)


def common(one: Span, other: Span) -> Span | None:
    """The units that are units of both; None if there are none."""
    low, high = max(one[0], other[0]), min(one[1], other[1])
    even = all(low % each[0] == 0 and each[1] % high == 0 for each in (one, other))
    return (low, high) if low < high and even and high % low == 0 else None


def resized(span: Span, before: int, after: int) -> Span | None:
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


def cut_at(tensor: Flowing, place: int | None) -> Span | None:
    """The first span of an axis, in steps of it."""
    return next((span for axis, span in cuts(tensor) if axis == place), None)


def units_at(tensor: Flowing, place: int | None) -> int:
    """The units of this span."""
    low, high = cut_at(tensor, place) or (1, 1)
    return high // low
