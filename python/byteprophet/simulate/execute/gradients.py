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
from typing import NamedTuple, TypeAlias

from byteprophet.simulate.compile.program import Block
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.collectives import CollectiveCosts, Transfer
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.tree.strategy import PRECISIONS, Strategy

Sizes: TypeAlias = list[tuple[tuple[str, ...], int]]
"""Bytes, or elements, by the mesh axes along which they travel."""


class Kept(NamedTuple):
    """Parameters that are alike.

    Attributes:
        axes: the mesh axes over which gradients are summed.
        linear: whether they are weights of linear layers (``LocalParameter.linear``).
        trained: whether they have gradients.
    """

    axes: tuple[str, ...]
    linear: bool
    trained: bool


@dataclass(frozen=True)
class Held:
    """The parameters of some blocks on one rank.

    Attributes:
        counts: the elements of each kind.
        tensor_elements: those whose gradients are summed over tensor-parallel ranks, too.
    """

    counts: tuple[tuple[Kept, int], ...]
    tensor_elements: int

    @property
    def all(self) -> Sizes:
        """The elements by the axes over which gradients are summed."""
        return _by_axes(self.counts)

    @property
    def trained(self) -> Sizes:
        """Those that have gradients."""
        return _by_axes((kept, count) for kept, count in self.counts if kept.trained)

    def sent_bytes(self, kind: CollectiveKind, strategy: Strategy) -> Sizes:
        """What travels along each set of axes: parameters that are gathered, or else gradients.

        Frozen parameters are gathered only if ranks have parts of them between the passes.
        """
        precision = PRECISIONS[strategy.precision]
        if kind is not CollectiveKind.ALL_GATHER:
            return [(axes, count * precision.sent_gradient_bytes) for axes, count in self.trained]
        sizes = {True: precision.sent_weight_bytes, False: precision.sent_parameter_bytes}
        return _by_axes(
            (kept, count * sizes[kept.linear])
            for kept, count in self.counts
            if kept.trained or strategy.zero == 3
        )


def _by_axes(counts: Iterable[tuple[Kept, int]]) -> Sizes:
    found: Counter[tuple[str, ...]] = Counter()
    for kept, count in counts:
        found[kept.axes] += count
    return sorted(found.items())


def held(blocks: Iterable[Block], mesh: Mesh) -> Held:
    """Sort the parameters of blocks.

    Parameters that several operators share count once per pipeline rank.
    """
    found: Counter[Kept] = Counter()
    tensor_elements = 0
    parameters = (one for block in blocks for one in block.compiled.parameters)
    for one in parameters:
        if one.repeated:
            continue
        axes = tuple(axis for axis in one.summed if axis != "tp" and mesh.sizes[axis] > 1)
        found[Kept(axes, one.linear, one.trained)] += one.elements
        if one.trained and "tp" in one.summed and mesh.tp > 1:
            tensor_elements += one.elements
    return Held(tuple(sorted(found.items())), tensor_elements)


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
        parameters = blocks[at].compiled.parameters
        filled += size * sum(one.elements for one in parameters if one.trained and not one.repeated)
        if filled >= most and at > 0:
            found.append([])
            filled = 0
    return found


def merged(several: Iterable[Held]) -> Held:
    """All parameters of ``several``."""
    counts: Counter[Kept] = Counter()
    tensor_elements = 0
    for one in several:
        tensor_elements += one.tensor_elements
        counts.update(dict(one.counts))
    return Held(tuple(sorted(counts.items())), tensor_elements)


def transfers(
    kind: CollectiveKind, sizes: Sizes, costs: CollectiveCosts
) -> list[tuple[tuple[str, ...], Transfer]]:
    """The collectives of so many bytes, one per set of axes."""
    return [
        (axes, costs.transfer(kind, costs.group(axes), size))
        for axes, size in sizes
        if axes and size
    ]
