"""Operators that transformers are made of.

Dimensions have the names that strategies use: batch, sequence, hidden, heads (of keys and values),
queries (heads of queries per head of keys), width (of a head), keys (positions attended to), inner
(of the MLP), vocabulary, experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from byteprophet.simulate.operation.operator import Access, Kind, Operator

HIDDEN = ("batch", "sequence", "hidden")


class Layers:
    """Makes operators, with one set of sizes.

    ``sizes``: the size of every dimension. ``frozen``: parameters are not trained.
    """

    def __init__(self, sizes: Mapping[str, int], *, frozen: bool = False) -> None:
        self._sizes = dict(sizes)
        self._frozen = frozen

    def trained(self) -> Layers:
        """The same, with parameters that are trained."""
        return Layers(self._sizes)

    def parameter(self, name: str, dims: Iterable[str], shared: str = "") -> Access:
        """A parameter."""
        return Access(name, tuple(dims), differentiable=not self._frozen, shared=shared)

    def product(
        self,
        name: str,
        inputs: Iterable[Access],
        output: Access,
        parameters: Iterable[Access] = (),
        *,
        whole: Iterable[str] = (),
        saves: Iterable[str] | None = None,
    ) -> Operator:
        """A matrix product, of the inputs or of the input and the first parameter.

        The backward pass has two products, or one with a frozen parameter, which needs no input.
        """
        inputs, parameters = tuple(inputs), tuple(parameters)
        factors = (*inputs, *parameters[:1])[:2]
        dims = {dim: None for access in factors for dim in access.dims}
        density = min(access.density for access in (*inputs, output))
        flops = round(2 * prod(self._sizes[dim] for dim in dims) * density)
        frozen = bool(parameters) and not any(one.differentiable for one in parameters)
        kept = () if frozen else tuple(access.tensor for access in inputs)
        return self._operator(
            name,
            Kind.MATMUL,
            inputs,
            (output,),
            parameters,
            whole=whole,
            flops=flops,
            backward_flops=flops if frozen else 2 * flops,
            saved=kept if saves is None else tuple(saves),
        )

    def linear(
        self,
        name: str,
        source: Access,
        output: Access,
        weight: tuple[str, ...],
        *,
        bias: tuple[str, ...] = (),
        whole: Iterable[str] = (),
        shared: str = "",
    ) -> Operator:
        """A matrix product with a parameter.

        ``bias``: the dimensions of its bias, if any. ``shared``: the name of its weight, if other
        operators read it, too.
        """
        parameters = [self.parameter("weight", weight, shared)]
        parameters += [self.parameter("bias", bias)] if bias else []
        return self.product(name, [source], output, parameters, whole=whole)

    def memory(
        self,
        name: str,
        inputs: Iterable[Access],
        outputs: Iterable[Access],
        parameters: Iterable[Access] = (),
        *,
        whole: Iterable[str] = (),
        saves: Iterable[str] = (),
        kind: Kind = Kind.MEMORY,
        causal: bool = False,
    ) -> Operator:
        """An operator whose time is that of reading and writing memory."""
        return self._operator(
            name,
            kind,
            tuple(inputs),
            tuple(outputs),
            tuple(parameters),
            whole,
            saved=tuple(saves),
            causal=causal,
        )

    def norm(self, name: str, source: str, output: str, *, bias: bool) -> Operator:
        """A normalisation over ``hidden``."""
        names = ("weight", "bias") if bias else ("weight",)
        return self.memory(
            name,
            [Access(source, HIDDEN)],
            [Access(output, HIDDEN)],
            [self.parameter(one, ("hidden",)) for one in names],
            whole=["hidden"],
            saves=[source],
        )

    def attention(
        self,
        name: str,
        query: Access,
        keys: Access,
        values: Access,
        output: Access,
        *,
        causal: bool,
    ) -> Operator:
        """Fused attention. Its backward pass computes the scores again: 5 products for 2."""
        dims = dict.fromkeys((*query.dims, *keys.dims))
        flops = 4 * prod(self._sizes[dim] for dim in dims)
        return self._operator(
            name,
            Kind.ATTENTION,
            (query, keys, values),
            (output,),
            whole=("keys", "width"),
            flops=flops,
            backward_flops=2 * flops,
            saved=(query.tensor, keys.tensor, values.tensor, output.tensor),
            causal=causal,
        )

    def _operator(
        self,
        name: str,
        kind: Kind,
        inputs: tuple[Access, ...],
        outputs: tuple[Access, ...],
        parameters: tuple[Access, ...] = (),
        whole: Iterable[str] = (),
        *,
        flops: int = 0,
        backward_flops: int = 0,
        saved: tuple[str, ...] = (),
        causal: bool = False,
    ) -> Operator:
        used = {dim: None for access in (*inputs, *outputs, *parameters) for dim in access.dims}
        return Operator(
            name=name,
            kind=kind,
            sizes=tuple((dim, self._sizes[dim]) for dim in used),
            inputs=inputs,
            outputs=outputs,
            parameters=parameters,
            whole=frozenset(whole),
            flops=flops,
            backward_flops=backward_flops,
            saved=saved,
            causal=causal,
        )
