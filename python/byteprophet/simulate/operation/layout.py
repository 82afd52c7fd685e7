"""Layouts of tensors on a mesh, and those that an operator needs and makes if it is split.

Per mesh axis, a tensor is split along one of its own axes, or a partial sum, or else replicated.
This is how DTensor describes placements, but all mesh axes are described at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.operation.operator import Access, Operator

Splits: TypeAlias = Mapping[str, tuple[str, ...]]
"""For each dimension of an operator that is split: the mesh axes over which it is split."""


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor.

    Attributes:
        split: for each axis of the tensor, the mesh axes over which it is split; without the last
            axes that are not.
        partial: mesh axes whose ranks hold partial sums, sorted.
    """

    split: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Equal layouts compare equal, however many axes an operator sees."""
        used = [at for at, axes in enumerate(self.split, 1) if axes]
        object.__setattr__(self, "split", self.split[: max(used, default=0)])

    @property
    def gradient(self) -> Layout:
        """The layout of the tensor's gradient: that of a partial sum is replicated."""
        return Layout(self.split)

    def where(self, axis: str) -> int | None:
        """The axis of the tensor that is split over mesh axis ``axis``; None if none is."""
        return next((at for at, axes in enumerate(self.split) if axis in axes), None)

    def parts(self, mesh: Mesh) -> int:
        """The number of parts into which the tensor is split."""
        return prod(mesh.parts(axes) for axes in self.split)


def _layout(access: Access, splits: Splits, *, summed: bool) -> Layout:
    split = tuple(splits.get(dim, ()) for dim in access.dims)
    if not summed:
        return Layout(split)
    left = {*access.dims, "batch"} if access.with_parameters else access.dims
    missing = (axes for dim, axes in splits.items() if dim not in left)
    return Layout(split, tuple(sorted(axis for axes in missing for axis in axes)))


def input_layout(access: Access, splits: Splits) -> Layout:
    """The layout in which a split operator needs an input or a parameter."""
    return _layout(access, splits, summed=False)


def output_layout(access: Access, splits: Splits) -> Layout:
    """The layout in which a split operator writes an output."""
    return _layout(access, splits, summed=True)


def input_gradient_layout(access: Access, splits: Splits) -> Layout:
    """The layout in which a split operator writes the gradient of an input or a parameter.

    It is a partial sum over all mesh axes that split what the tensor does not have.
    """
    return _layout(access, splits, summed=True)


def local_bytes(operator: Operator, access: Access, layout: Layout, mesh: Mesh) -> int:
    """The bytes of a tensor on one rank."""
    return operator.elements(access) * access.element_bytes // layout.parts(mesh)
