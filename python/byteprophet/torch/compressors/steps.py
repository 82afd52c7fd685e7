"""What a compressor is: a generator that compresses, exchanges, and decompresses.

It yields what is to travel, and gets it back once it has travelled. At its end, it returns the
average of all ranks' compressed gradients, and what this rank's compressed form lacks. All ranks'
generators yield the same kinds and sizes in the same order.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AllGather:
    """Send ``own`` (n,) to all ranks. The generator gets all ranks' in rank order: (ranks, n)."""

    own: Tensor


@dataclass(frozen=True)
class AllReduce:
    """Average ``own`` over all ranks, in place. The generator gets the average."""

    own: Tensor


@dataclass(frozen=True)
class Averaged:
    """The end of one average. Both tensors are flat, with one value per element.

    Attributes:
        average: of all ranks' gradients as they are after decompression. The same on all ranks.
        residual: the gradient of this rank less what it has sent of it.
    """

    average: Tensor
    residual: Tensor


Steps = Generator[AllGather | AllReduce, Tensor, Averaged]


@dataclass(frozen=True)
class Turn:
    """One gradient in one step, on one rank.

    Attributes:
        name: of the parameter.
        values: the gradient and what former steps have left, flat, of float32. The compressor may
            change them.
        shape: of the gradient.
        step: how many gradients of this parameter were averaged before.
        rank: this rank.
        ranks: how many there are.
        common: what the compressor keeps from step to step, by name; the same on all ranks.
    """

    name: str
    values: Tensor
    shape: tuple[int, ...]
    step: int
    rank: int
    ranks: int
    common: dict[str, Tensor]
