"""Refuses strategies of which a part has no effect on a model: most are typing errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from byteprophet.errors import UserError
from byteprophet.simulate.compile.module import Compiler
from byteprophet.simulate.models.module import Call, Model
from byteprophet.simulate.operation.mesh import AXES
from byteprophet.simulate.operation.operator import FEATURES, Operator
from byteprophet.simulate.tree.scope import pattern_of, rest_of
from byteprophet.simulate.tree.strategy import Strategy

_SEQUENCE = "sequence"


def check_effects(model: Model, strategy: Strategy, compiler: Compiler) -> None:
    """Check what a strategy says about nodes and mesh axes.

    Args:
        model: the model.
        strategy: the strategy.
        compiler: has compiled all blocks of the model.

    Raises:
        UserError: a rule matches no node, or splits none of its nodes; a mesh axis splits no
            operator; or there is nothing to pass around a ring.
    """
    for number, rule in enumerate(strategy.rules):
        if number not in compiler.matched:
            names = [call.name for call in model.blocks]
            below = ", ".join([*names[:2], "...", *names[-1:]] if len(names) > 3 else names)
            raise UserError(
                f"strategy: {rule.pattern}: model {model.name} has no such node; it has {below}"
            )
    _check_splits(model, strategy)
    if strategy.ring and not compiler.rings:
        raise UserError(
            f"strategy: ring: model {model.name} has no fused attention whose keys and values are "
            "split over cp"
        )
    for axis in AXES[:-1]:
        ranks = strategy.mesh.sizes[axis]
        if ranks > 1 and axis not in compiler.axes:
            raise UserError(
                f"strategy: {axis}: no operator of {model.name} is split over it, so its {ranks} "
                f"ranks would all do the same: split a dimension over it, or set {axis} to 1"
            )


def _check_splits(model: Model, strategy: Strategy) -> None:
    """Refuse a split over ranks that no operator of the rule's nodes could take.

    One line of a strategy stands for dimensions of all kinds of models, so it is enough if there is
    one of them. But nobody asks for sequence parallelism without wanting it.
    """
    everywhere = _dimensions(model, ())
    for rule in strategy.rules:
        splits = [
            (axis, dimensions)
            for axis, dimensions in rule.splits
            if strategy.mesh.sizes[axis] > 1 and dimensions
        ]
        known = _dimensions(model, pattern_of(rule)) if splits and rule.pattern else everywhere
        for axis, dimensions in splits:
            if known.isdisjoint(dimensions):
                raise UserError(
                    f"strategy: {rule.pattern or 'root'}: {axis} splits "
                    f"{' or '.join(dimensions)}, but no operator of "
                    f"{'these nodes' if rule.pattern else model.name} has such a dimension; there "
                    f"are {', '.join(sorted(known))}"
                )
            if _SEQUENCE in dimensions and _SEQUENCE not in everywhere:
                raise UserError(
                    f"strategy: sequence parallelism: model {model.name} has no sequence"
                )


def _dimensions(model: Model, pattern: tuple[str, ...]) -> set[str]:
    """The dimensions of the operators at and below the nodes that match a pattern."""
    nodes = list(_nodes(model.blocks, pattern))
    modules = {id(node.module): node.module for node in nodes if isinstance(node, Call)}
    operators = [node for node in nodes if isinstance(node, Operator)]
    operators += (each for module in modules.values() for _, each in module.operators())
    known = {name for each in operators for name in each.size}
    if any(each.features for each in operators):
        known.add(FEATURES)
    return known


def _nodes(parts: Iterable[Operator | Call], pattern: tuple[str, ...]) -> Iterator[Operator | Call]:
    """The nodes among ``parts`` and below that match a pattern; if it is empty, ``parts``."""
    for part in parts:
        rest = rest_of(pattern, part.name) if pattern else ()
        if rest == ():
            yield part
        elif rest and isinstance(part, Call):
            yield from _nodes(part.module.body, rest)
