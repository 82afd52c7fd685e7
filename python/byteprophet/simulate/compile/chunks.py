"""Cuts modules for micro-batches of their own: operators get a part of one dimension."""

from __future__ import annotations

from dataclasses import replace

from byteprophet.errors import UserError
from byteprophet.simulate.models.module import Call, Module
from byteprophet.simulate.operation.operator import Operator
from byteprophet.simulate.tree.scope import Scope


class Chunks:
    """Cuts modules, each once."""

    def __init__(self) -> None:
        self._done: dict[tuple[int, str, int], tuple[Module, Module]] = {}

    def cut(self, module: Module, scope: Scope) -> Module:
        """``module`` with the sizes of one micro-batch of the node's own.

        Raises:
            UserError: the dimension cannot be cut so; the text names the node's path.
        """
        dims = {dim for _, operator in module.operators() for dim in operator.size}
        if scope.along not in dims:
            raise UserError(
                f"strategy: {scope.path}: schedule along {scope.along}: no operator has this "
                f"dimension; there are {', '.join(sorted(dims))}"
            )
        return self._cut(module, scope)

    def _cut(self, module: Module, scope: Scope) -> Module:
        key = (id(module), scope.along, scope.micro_batches)
        if key not in self._done:
            body = tuple(
                _cut_operator(part, scope)
                if isinstance(part, Operator)
                else Call(part.name, self._cut(part.module, scope), part.inputs, part.outputs)
                for part in module.body
            )
            self._done[key] = module, Module(body, module.inputs, module.outputs)
        return self._done[key][1]


def _cut_operator(operator: Operator, scope: Scope) -> Operator:
    size, parts = operator.size.get(scope.along), scope.micro_batches
    if size is None:
        return operator
    if size % parts:
        raise UserError(
            f"strategy: {scope.path}: {scope.along} has size {size}, which cannot be cut into "
            f"{parts} micro-batches"
        )
    weights = operator.weight_flops
    sizes = tuple((dim, one // parts if dim == scope.along else one) for dim, one in operator.sizes)
    return replace(
        operator,
        sizes=sizes,
        flops=operator.flops // parts,
        backward_flops=operator.backward_flops // parts,
        weight_flops=None if weights is None else weights // parts,
    )
