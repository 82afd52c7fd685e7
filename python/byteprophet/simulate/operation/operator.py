"""An operator as data: its dimensions, the tensors that it reads and writes, and its work.

An operator is written like an einsum. Each dimension has a name and a size, and each tensor lists
the dimensions of its axes in order. All that the simulator needs follows from this: which dimension
can be split, what a split makes of each tensor, the shape of a matrix product, and bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from math import prod


class Kind(str, Enum):
    """The kind of an operator, by which its time is estimated."""

    MATMUL = "matmul"
    ATTENTION = "attention"
    """Fused attention: the scores are never written to memory."""
    CONVOLUTION = "convolution"
    LOOKUP = "lookup"
    """Reads some rows of its parameter, and adds to the same rows of the gradient."""
    BAG = "bag"
    """A lookup whose outputs are sums of rows; its first input has the numbers of these rows."""
    MEMORY = "memory"
    """Limited by memory bandwidth: norms, activations, sums, softmax, losses."""
    VIEW = "view"
    """Another view of the same memory; it takes no time."""


FEATURES = "features"
"""Stands for the dimension that tensor parallelism splits, of operators of traced models."""
_EIGHT_BIT_MULTIPLE = 16
"""Products with 8-bit inputs need sides that are multiples of this."""
_SIXTEEN_BITS = frozenset(["vocabulary", "slots"])
"""Dimensions of products that keep 16 bits: of the output layer and of routers."""
WEIGHTED = (Kind.MATMUL, Kind.CONVOLUTION)
"""Kinds whose gradients of parameters are an operator of their own, which can be delayed."""


@dataclass(frozen=True)
class Access:
    """A tensor as an operator reads or writes it.

    Attributes:
        tensor: its name, unique in the module for activations and in the operator for parameters.
        dims: the dimension of each axis, in order.
        element_bytes: the bytes of an element.
        density: the part of all elements that exist; less than 1 for tokens sent to experts.
        differentiable: whether it has a gradient. A parameter that has none is frozen.
        shared: of a parameter that other operators read, too: a name that they all have for it.
        with_parameters: whether gradients of ranks are not added up at it, but with those of
            parameters: it depends on these alone, or is a loss.
    """

    tensor: str
    dims: tuple[str, ...]
    element_bytes: int = 2
    density: float = 1.0
    differentiable: bool = True
    shared: str = ""
    with_parameters: bool = False


@dataclass(frozen=True)
class Operator:
    """One operator of the forward pass, with its backward pass.

    Attributes:
        name: its name in its module.
        kind: its kind.
        sizes: the size of each dimension.
        inputs: the activations that it reads.
        outputs: the activations that it writes. If a dimension that an output lacks is split, the
            output is a partial sum.
        parameters: the parameters that it reads.
        whole: dimensions that cannot be split.
        flops: floating-point operations of the forward pass.
        backward_flops: those of the backward pass, gradients of inputs and parameters together.
        weight_flops: a part of these: of gradients of parameters; None: as many as forward. Only
            convolutions need it.
        saved: activations that are kept for the backward pass.
        causal: attention, or a softmax, that computes only the lower half of the scores.
        temporary: what else there is while it runs, but no longer: it takes memory, and no time.
        features: of a traced model, the dimension that a split over ``FEATURES`` splits; empty:
            none. None: the operator has dimensions of these names itself.
    """

    name: str
    kind: Kind
    sizes: tuple[tuple[str, int], ...]
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]
    parameters: tuple[Access, ...] = ()
    whole: frozenset[str] = field(default_factory=frozenset)
    flops: int = 0
    backward_flops: int = 0
    weight_flops: int | None = None
    saved: tuple[str, ...] = ()
    causal: bool = False
    temporary: tuple[Access, ...] = ()
    features: str | None = None

    def among(self, dims: Collection[str]) -> list[str]:
        """Those of ``dims`` that it has. ``FEATURES`` goes before all others."""
        if FEATURES in dims and self.features is not None:
            return [self.features] if self.features else []
        return [dim for dim in dims if dim in self.size]

    def renamed(self, names: Mapping[str, str], alone: str = "") -> Operator:
        """The same with other names of tensors; those that ``names`` lacks are in ``alone``."""

        def new(name: str) -> str:
            return names.get(name, f"{alone}.{name}")

        def of(accesses: tuple[Access, ...]) -> tuple[Access, ...]:
            return tuple(replace(one, tensor=new(one.tensor)) for one in accesses)

        return replace(
            self,
            inputs=of(self.inputs),
            outputs=of(self.outputs),
            saved=tuple(map(new, self.saved)),
        )

    @cached_property
    def trained(self) -> tuple[Access, ...]:
        """The parameters that are not frozen."""
        return tuple(one for one in self.parameters if one.differentiable)

    @cached_property
    def size(self) -> dict[str, int]:
        """The size of each dimension."""
        return dict(self.sizes)

    def elements(self, access: Access) -> int:
        """The number of elements of a tensor."""
        return round(prod(self.size[dim] for dim in access.dims) * access.density)

    @cached_property
    def allows_8_bits(self) -> bool:
        """Whether it is a product of a layer, whose inputs may have 8 bits.

        As torchtitan's filters and Transformer Engine have it: not the output layer, not a router.
        """
        if not self.product or not self.parameters or _SIXTEEN_BITS & self.size.keys():
            return False
        _, _, columns, inner = (prod(self.size[dim] for dim in dims) for dims in self.product)
        return columns % _EIGHT_BIT_MULTIPLE == 0 and inner % _EIGHT_BIT_MULTIPLE == 0

    @cached_property
    def product(self) -> tuple[tuple[str, ...], ...]:
        """The dimensions of a matrix product: (batch, m, n, k), where (m, k) x (k, n) = (m, n).

        Empty for other operators. The left matrix is the first input. The right matrix is the first
        parameter, or the second input if there are no parameters.
        """
        if self.kind is not Kind.MATMUL:
            return ()
        left = set(self.inputs[0].dims)
        right = set((self.parameters or self.inputs[1:])[0].dims)
        out = self.outputs[0].dims
        return (
            tuple(dim for dim in out if dim in left and dim in right),
            tuple(dim for dim in out if dim in left and dim not in right),
            tuple(dim for dim in out if dim not in left),
            tuple(dim for dim in self.inputs[0].dims if dim in right and dim not in out),
        )
