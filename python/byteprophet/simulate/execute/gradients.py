"""How gradients and parameters travel between data-parallel ranks: in buckets of whole blocks.

With ``zero`` 0, gradients are all-reduced, as DistributedDataParallel and Megatron-LM do. With 1
and 2 they are reduce-scattered, and the updated parameters all-gathered, as Megatron-LM's
distributed optimizer does; with 1 and ``all_reduce`` they are all-reduced first, as in DeepSpeed.
With 3 each block is a unit of FSDP2: its parameters are gathered before
each pass, and its gradients reduce-scattered after each backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from byteprophet.simulate.compile.program import Block
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.collectives import CollectiveCosts, Transfer
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.tree.strategy import PRECISIONS, Precision, Strategy

Sizes: TypeAlias = list[tuple[tuple[str, ...], int]]
"""Bytes by the mesh axes along which they travel."""


@dataclass(frozen=True)
class Held:
    """The parameters of some blocks on one rank.

    Attributes:
        elements: for each set of mesh axes over which gradients are summed: the elements.
        tensor_elements: those whose gradients are summed over tensor-parallel ranks, too.
        linear: of ``elements``, the weights of linear layers (``LocalParameter.linear``).
    """

    elements: tuple[tuple[tuple[str, ...], int], ...]
    tensor_elements: int
    linear: tuple[tuple[tuple[str, ...], int], ...] = ()

    def sent_bytes(self, kind: CollectiveKind, precision: Precision) -> Sizes:
        """What travels along each set of axes: parameters that are gathered, or else gradients."""
        if kind is not CollectiveKind.ALL_GATHER:
            return [(axes, count * precision.sent_gradient_bytes) for axes, count in self.elements]
        linear = dict(self.linear)
        fewer = precision.sent_parameter_bytes - precision.sent_weight_bytes
        return [
            (axes, count * precision.sent_parameter_bytes - linear.get(axes, 0) * fewer)
            for axes, count in self.elements
        ]


def held(blocks: Iterable[Block], mesh: Mesh) -> Held:
    """Sort the parameters of blocks by the axes over which their gradients are summed.

    Parameters that several operators share count once per pipeline rank.
    """
    found: Counter[tuple[str, ...]] = Counter()
    linear: Counter[tuple[str, ...]] = Counter()
    tensor_elements = 0
    parameters = (one for block in blocks for one in block.compiled.parameters)
    for one in parameters:
        if one.repeated:
            continue
        axes = tuple(axis for axis in one.summed if axis != "tp" and mesh.sizes[axis] > 1)
        found[axes] += one.elements
        linear[axes] += one.elements * one.linear
        tensor_elements += one.elements * ("tp" in one.summed and mesh.tp > 1)
    return Held(tuple(sorted(found.items())), tensor_elements, tuple(sorted(linear.items())))


def buckets(blocks: Sequence[Block], strategy: Strategy) -> list[list[int]]:
    """Blocks, by index, whose gradients travel together, in the order of the backward pass.

    A block that is larger than a bucket is one.
    """
    size = PRECISIONS[strategy.precision].sent_gradient_bytes
    most = 0 if strategy.zero == 3 else strategy.bucket_mb << 20
    found: list[list[int]] = [[]]
    filled = 0
    for at in reversed(range(len(blocks))):
        found[-1].append(at)
        filled += size * sum(
            one.elements for one in blocks[at].compiled.parameters if not one.repeated
        )
        if filled >= most and at > 0:
            found.append([])
            filled = 0
    return found


def merged(several: Iterable[Held]) -> Held:
    """All parameters of ``several``."""
    elements: Counter[tuple[str, ...]] = Counter()
    linear: Counter[tuple[str, ...]] = Counter()
    tensor_elements = 0
    for one in several:
        tensor_elements += one.tensor_elements
        elements.update(dict(one.elements))
        linear.update(dict(one.linear))
    return Held(tuple(sorted(elements.items())), tensor_elements, tuple(sorted(linear.items())))


def transfers(
    kind: CollectiveKind, sizes: Sizes, costs: CollectiveCosts
) -> list[tuple[tuple[str, ...], Transfer]]:
    """The collectives of so many bytes, one per set of axes."""
    return [
        (axes, costs.transfer(kind, costs.group(axes), size))
        for axes, size in sizes
        if axes and size
    ]
