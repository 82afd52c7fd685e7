"""Compressors of gradients: their names, their settings, and the bytes that travel.

The names are those of BytePS' own compressors, and so are the settings, as far as it has them. A
*compressed form* is what a rank sends of its gradient. Either all ranks' forms are all-gathered and
averaged on every rank, or they are all-reduced, which averages them on the way. Compressed
gradients are of float32. ``compression_file.py`` reads and writes compressors in strategy files.

Every constructor raises ``ValueError``, which names the setting, for a wrong value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

ELEMENT_BYTES = 4
MOST_LEVELS = 127
"""Levels of ``Dithering`` above 0. So a level and its sign take at most 8 bits."""
LINEAR, NATURAL = "linear", "natural"
MAX, L2 = "max", "l2"
_SCALE_BYTES = 4
_MOST = (1 << 31) - 1


@dataclass(frozen=True)
class Form:
    """A rank's compressed form. ``gathered``: it is all-gathered; otherwise it is all-reduced."""

    size_bytes: int
    gathered: bool

    def sent_bytes(self, ranks: int) -> float:
        """What a rank sends of it, and receives; of an all-reduce, what it does on average."""
        if self.gathered:
            return float(self.size_bytes * (ranks - 1))
        return self.size_bytes * 2 * (ranks - 1) / ranks

    def as_all_reduced(self, ranks: int) -> int:
        """The bytes of an all-reduce that moves as much."""
        return self.size_bytes * (ranks if self.gathered else 2) // 2


@dataclass(frozen=True)
class TopK:
    """Sends the ``k`` elements of largest magnitude, with their numbers.

    ``k`` is a number of elements, or a fraction of all if it is below 1.
    """

    k: int | float
    error_feedback: bool = True
    type: ClassVar[str] = "topk"

    def __post_init__(self) -> None:
        _check_k(self.k)
        _check_switch("error_feedback", self.error_feedback)

    def form(self, shape: Sequence[int]) -> Form:
        """The form of a gradient of this shape."""
        return Form(kept(self.k, prod(shape)) * 2 * ELEMENT_BYTES, gathered=True)


@dataclass(frozen=True)
class RandomK:
    """Sends ``k`` elements, chosen at random and the same on all ranks; ``k`` as in ``TopK``."""

    k: int | float
    seed: int = 1
    error_feedback: bool = True
    type: ClassVar[str] = "randomk"

    def __post_init__(self) -> None:
        _check_k(self.k)
        _check_whole("seed", self.seed, _MOST)
        _check_switch("error_feedback", self.error_feedback)

    def form(self, shape: Sequence[int]) -> Form:
        """The form of a gradient of this shape."""
        return Form(kept(self.k, prod(shape)) * ELEMENT_BYTES, gathered=False)


@dataclass(frozen=True)
class OneBit:
    """Sends the sign of each element, and the mean of all magnitudes."""

    error_feedback: bool = True
    type: ClassVar[str] = "onebit"

    def __post_init__(self) -> None:
        _check_switch("error_feedback", self.error_feedback)

    def form(self, shape: Sequence[int]) -> Form:
        """The form of a gradient of this shape."""
        return Form(-(-prod(shape) // 8) + _SCALE_BYTES, gathered=True)


@dataclass(frozen=True)
class Dithering:
    """Rounds each element at random to one of ``k`` levels above 0, or to 0, and keeps its sign.

    The expectation of what is sent is the gradient. ``partition``: ``LINEAR`` levels are 1/k, 2/k,
    ..., 1 times the norm; ``NATURAL`` ones are 1, 1/2, 1/4, ... times the norm. ``normalize``: the
    norm is the largest magnitude (``MAX``), or the root of the sum of squares (``L2``).
    """

    k: int
    partition: str = LINEAR
    normalize: str = MAX
    seed: int = 1
    error_feedback: bool = False
    type: ClassVar[str] = "dithering"

    def __post_init__(self) -> None:
        _check_whole("k", self.k, MOST_LEVELS)
        _check_choice("partition", self.partition, (LINEAR, NATURAL))
        _check_choice("normalize", self.normalize, (MAX, L2))
        _check_whole("seed", self.seed, _MOST)
        _check_switch("error_feedback", self.error_feedback)

    @property
    def bits(self) -> int:
        """The bits of an element: 2 k + 1 values are possible."""
        return (2 * self.k).bit_length()

    def form(self, shape: Sequence[int]) -> Form:
        """The form of a gradient of this shape."""
        return Form(-(-prod(shape) // 8) * self.bits + _SCALE_BYTES, gathered=True)


@dataclass(frozen=True)
class PowerSgd:
    """Sends two factors of a matrix of this ``rank`` that is close to the gradient (PowerSGD).

    The gradient is a matrix of ``shape[0]`` rows.
    """

    rank: int
    seed: int = 1
    error_feedback: bool = True
    type: ClassVar[str] = "powersgd"

    def __post_init__(self) -> None:
        _check_whole("rank", self.rank, _MOST)
        _check_whole("seed", self.seed, _MOST)
        _check_switch("error_feedback", self.error_feedback)

    def form(self, shape: Sequence[int]) -> Form:
        """The form of a gradient of this shape."""
        rows, columns = matrix_of(shape)
        return Form((rows + columns) * self.rank * ELEMENT_BYTES, gathered=False)


Compressor = TopK | RandomK | OneBit | Dithering | PowerSgd


@dataclass(frozen=True)
class Compressed:
    """The gradients of ``parameters``, which are names, travel as ``compressor`` makes them."""

    parameters: tuple[str, ...]
    compressor: Compressor


def flat_form(compressor: Compressor, size_bytes: int) -> Form:
    """The form of a gradient of so many bytes, whose shape is not known.

    Raises ``ValueError`` if it depends on the shape.
    """
    if isinstance(compressor, PowerSgd):
        raise ValueError(f"what {compressor.type} sends of a gradient depends on its shape")
    return compressor.form((size_bytes // ELEMENT_BYTES,))


def why_shapeless(compressors: Mapping[str, Compressor]) -> str:
    """Why it is not known in how many bytes gradients travel without shapes; "" if it is.

    ``compressors``: by the parameter's name.
    """
    for name, compressor in compressors.items():
        if isinstance(compressor, PowerSgd):
            return (
                f"what {compressor.type} sends of {name!r} depends on its shape, which a strategy "
                "does not have"
            )
    return ""


def kept(k: int | float, elements: int) -> int:
    """How many of so many elements ``TopK`` and ``RandomK`` send; at least one."""
    return int(k) if k >= 1 else max(1, int(k * elements))


def matrix_of(shape: Sequence[int]) -> tuple[int, int]:
    """The rows and columns of a gradient of this shape."""
    rows = shape[0] if shape else 1
    return rows, prod(shape) // max(1, rows)


def why_unfit(compressor: Compressor, shape: Sequence[int]) -> str:
    """Why a gradient of this shape cannot be compressed so; "" if it can."""
    elements = prod(shape)
    if isinstance(compressor, TopK | RandomK) and kept(compressor.k, elements) > elements:
        return f"k is {compressor.k}, and it has {elements} element(s)"
    if isinstance(compressor, TopK) and elements > _MOST:
        return f"it has more than {_MOST} elements"
    if isinstance(compressor, PowerSgd):
        if len(shape) < 2:
            return "it is no matrix: powersgd needs two dimensions or more"
        if compressor.form(shape).size_bytes >= elements * ELEMENT_BYTES:
            rows, columns = matrix_of(shape)
            return f"factors of rank {compressor.rank} are not smaller than {rows} x {columns}"
    return ""


def _check_k(k: object) -> None:
    is_count = type(k) is int and 1 <= k <= _MOST
    if not is_count and not (type(k) is float and 0 < k < 1):
        raise ValueError("k: must be a fraction between 0 and 1, or a whole number from 1")


def _check_whole(name: str, value: object, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name}: must be a whole number from 1 to {most}")


def _check_choice(name: str, value: object, choice: Sequence[str]) -> None:
    if value not in choice:
        raise ValueError(f"{name}: must be {' or '.join(choice)}")


def _check_switch(name: str, value: object) -> None:
    if type(value) is not bool:
        raise ValueError(f"{name}: must be true or false")
