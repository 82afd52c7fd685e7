"""What one rank does: operators on its part of their tensors, and collectives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from byteprophet.simulate.operation.operator import Operator


class Phase(str, Enum):
    """The part of an iteration in which an operator runs."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    """The gradients of inputs. For all but products and convolutions, also those of parameters."""
    WEIGHT = "weight"
    """The gradients of the parameters of a matrix product or a convolution."""


class CollectiveKind(str, Enum):
    """Collectives as NCCL names them. SEND: each rank's part goes around the group."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    SEND = "point-to-point"


@dataclass(frozen=True)
class Compute:
    """An operator on one rank. ``splits``: for each split dimension, the mesh axes."""

    operator: Operator
    splits: tuple[tuple[str, tuple[str, ...]], ...]
    phase: Phase


@dataclass(frozen=True)
class Collective:
    """A collective that the next operator waits for.

    Attributes:
        kind: its kind.
        axes: the mesh axes whose ranks form the group.
        size_bytes: the whole tensor of the group: what a rank has before a reduce-scatter,
            all-reduce or all-to-all, and after an all-gather.
        phase: the phase of the operator that waits for it.
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    size_bytes: int
    phase: Phase


Step: TypeAlias = Compute | Collective
