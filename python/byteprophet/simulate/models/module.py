"""A model as a tree: modules that call operators and other modules.

A layer that occurs many times is one ``Module`` that is called many times, so that whatever is done
per module is done once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from byteprophet.simulate.operation.operator import Operator


@dataclass(frozen=True, eq=False)
class Module:
    """Operators and calls of other modules, in the order of execution.

    Attributes:
        body: the operators and calls.
        inputs: the tensors that the caller gives, by their names in ``body``.
        outputs: the tensors that the caller gets.
    """

    body: tuple[Operator | Call, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def operators(self, path: str = "") -> Iterator[tuple[str, Operator]]:
        """All operators below, with their paths, in the order of execution."""
        for part in self.body:
            here = f"{path}.{part.name}" if path else part.name
            if isinstance(part, Operator):
                yield here, part
            else:
                yield from part.module.operators(here)


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a module. ``inputs`` and ``outputs`` are the caller's names of tensors."""

    name: str
    module: Module
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Model:
    """A model with the sizes of one micro-batch over all data-parallel ranks.

    Attributes:
        name: its name.
        root: the whole model. The calls in its body are the blocks that pipeline stages consist of.
        samples: the size of the dimension "batch".
        tokens: tokens per sample; 1 for models that have none.
    """

    name: str
    root: Module
    samples: int
    tokens: int

    @property
    def blocks(self) -> tuple[Call, ...]:
        """The blocks, in the order of execution."""
        return tuple(part for part in self.root.body if isinstance(part, Call))

    def parameters(self) -> int:
        """The number of parameters; those that are shared count once."""
        own = 0
        shared: dict[str, int] = {}
        for _, operator in self.root.operators():
            for one in operator.parameters:
                if one.shared:
                    shared[one.shared] = operator.elements(one)
                else:
                    own += operator.elements(one)
        return own + sum(shared.values())

    def flops(self) -> int:
        """Floating-point operations of a forward and a backward pass without recomputation."""
        return sum(one.flops + one.backward_flops for _, one in self.root.operators())
