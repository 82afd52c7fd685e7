"""How gradients and parameters travel between data-parallel ranks: in buckets of whole blocks.

With ``zero`` 0, gradients are all-reduced, as DistributedDataParallel and Megatron-LM do. With 1
and 2 they are reduce-scattered, and the updated parameters all-gathered, as Megatron-LM's
distributed optimizer does; with 1 and ``all_reduce`` they are all-reduced first, as in DeepSpeed.
With 3 each block is a unit of FSDP2: its parameters are gathered before
each pass, and its gradients reduce-scattered after each backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from byteprophet.simulate.compile.program import Block
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.collectives import CollectiveCosts, Transfer
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.tree.strategy import PRECISIONS, Strategy


@dataclass(frozen=True)
class Held:
    """The parameters of some blocks on one rank.

    Attributes:
        elements: for each set of mesh axes over which gradients are summed: the elements.
        tensor_elements: those whose gradients are summed over tensor-parallel ranks, too.
    """

    elements: tuple[tuple[tuple[str, ...], int], ...]
    tensor_elements: int

    @property
    def total(self) -> int:
        """All elements."""
        return sum(count for _, count in self.elements)


def held(blocks: Iterable[Block], mesh: Mesh) -> Held:
    """Sort the parameters of blocks by the axes over which their gradients are summed.

    Parameters that several operators share count once per pipeline rank.
    """
    found: dict[tuple[str, ...], int] = {}
    tensor_elements = 0
    parameters = (one for block in blocks for one in block.compiled.parameters)
    for one in parameters:
        if one.repeated:
            continue
        axes = tuple(axis for axis in one.summed if axis != "tp" and mesh.sizes[axis] > 1)
        found[axes] = found.get(axes, 0) + one.elements
        tensor_elements += one.elements * ("tp" in one.summed and mesh.tp > 1)
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
        filled += size * sum(
            one.elements for one in blocks[at].compiled.parameters if not one.repeated
        )
        if filled >= most and at > 0:
            found.append([])
            filled = 0
    return found


def merged(several: Iterable[Held]) -> Held:
    """All parameters of ``several``."""
    elements: dict[tuple[str, ...], int] = {}
    tensor_elements = 0
    for one in several:
        tensor_elements += one.tensor_elements
        for axes, count in one.elements:
            elements[axes] = elements.get(axes, 0) + count
    return Held(tuple(sorted(elements.items())), tensor_elements)


def transfers(
    kind: CollectiveKind, whose: Held, element_bytes: int, costs: CollectiveCosts
) -> list[tuple[tuple[str, ...], Transfer]]:
    """The collectives of the parameters or gradients of ``whose``, one per set of axes."""
    return [
        (axes, costs.transfer(kind, costs.group(axes), elements * element_bytes))
        for axes, elements in whose.elements
        if axes and elements
    ]
