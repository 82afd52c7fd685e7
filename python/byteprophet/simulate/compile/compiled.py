"""What one rank does for a module, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from byteprophet.simulate.compile.steps import Step
from byteprophet.simulate.operation.layout import Layout


@dataclass(frozen=True)
class LocalParameter:
    """The part of an operator's parameters on one rank.

    Attributes:
        path: the operator's path in the module.
        elements: the number of elements.
        summed: the mesh axes over which the gradient is a partial sum.
        shared: the name by which other operators read them, too; empty if none does.
        repeated: whether an earlier operator of the pipeline rank has the same ones.
        trained: whether it has a gradient; others are frozen.
        linear: whether it is the weight of a linear layer whose inputs may have 8 bits. Those of
            experts are none: torchtitan keeps them in one tensor, which torchao does not convert.
    """

    path: str
    elements: int
    summed: tuple[str, ...]
    shared: str = ""
    repeated: bool = False
    linear: bool = False
    trained: bool = True


@dataclass(frozen=True)
class Value:
    """A tensor at a module's edge.

    Attributes:
        layout: its layout.
        whole_bytes: its bytes in all.
        local_bytes: its bytes on one rank.
        differentiable: whether it has a gradient.
    """

    layout: Layout
    whole_bytes: int
    local_bytes: int
    differentiable: bool = True


@dataclass(frozen=True)
class Compiled:
    """What one rank does for a module.

    Attributes:
        forward: the steps of the forward pass.
        backward: the steps of the backward pass.
        outputs: the module's outputs.
        inputs: bytes of the inputs that have gradients, as they come, by tensor and layout.
        saved: bytes kept for the backward pass, by tensor and layout.
        transient_bytes: the most bytes in use during the backward pass, less those that are kept:
            gradients of the inputs and outputs of one operator, and what is recomputed. What later
            operators kept is free by then. Of an operator without a backward pass, its inputs and
            outputs count.
        recomputed_bytes: what the backward pass recomputes and keeps, because gradients of
            parameters are made later (``Strategy.delays_weights``); otherwise it is transient.
        parameters: the parameters.
    """

    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    outputs: tuple[Value, ...]
    inputs: Mapping[tuple[str, Layout], int]
    saved: Mapping[tuple[str, Layout], int]
    transient_bytes: int
    recomputed_bytes: int
    parameters: tuple[LocalParameter, ...]

    @property
    def saved_bytes(self) -> int:
        """All bytes kept for the backward pass."""
        return sum(self.saved.values())
