"""What holds at a node: the settings inherited from above, and the rules that may match below.

Two nodes with equal scopes are treated alike, so a layer that occurs many times is compiled once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from byteprophet.errors import UserError
from byteprophet.simulate.operation.layout import Splits
from byteprophet.simulate.operation.mesh import AXES, Mesh
from byteprophet.simulate.operation.operator import Operator
from byteprophet.simulate.tree.strategy import Rule, Strategy

_Pending = tuple[tuple[int, tuple[str, ...]], ...]
VOCABULARY = "vocabulary"
_VOCABULARY_PER_RANK = 128
"""Megatron-LM pads a vocabulary to a multiple of this for each tensor-parallel rank."""


@dataclass(frozen=True)
class Scope:
    """The settings of one node. Its path takes no part in comparisons.

    Attributes:
        splits: for each mesh axis, the dimensions that may be split over it.
        pending: rules that may match below: their index, and the rest of their pattern.
        recompute: whether this node is recomputed.
        micro_batches: how many micro-batches of its own this node runs in.
        max_ongoing: how many of them may be between their forward and backward pass; 0: all.
        along: the dimension that they are parts of.
        stage: the pipeline stage, if a rule sets it.
        matched: rules that match this node.
        path: the node's path.
    """

    splits: tuple[tuple[str, tuple[str, ...]], ...]
    pending: _Pending
    recompute: bool = False
    micro_batches: int = 1
    max_ongoing: int = 0
    along: str = ""
    stage: int | None = field(default=None, compare=False)
    matched: frozenset[int] = field(default_factory=frozenset, compare=False)
    path: str = field(default="", compare=False)

    @staticmethod
    def root(strategy: Strategy) -> Scope:
        """The scope of the whole model."""
        pending = tuple((number, pattern_of(rule)) for number, rule in enumerate(strategy.rules))
        return _settled(strategy, Scope((), pending))

    @property
    def limits_ongoing(self) -> bool:
        """Whether backward passes of its micro-batches run before all forward passes have."""
        return 0 < self.max_ongoing < self.micro_batches

    def child(self, strategy: Strategy, name: str) -> Scope:
        """The scope of a child, whose name may have several components.

        Raises:
            UserError: settings of its rules do not fit together, or it can have no stage.
        """
        rests = ((number, rest_of(pattern, name)) for number, pattern in self.pending)
        pending = tuple((number, rest) for number, rest in rests if rest is not None)
        path = f"{self.path}.{name}" if self.path else name
        found = _settled(strategy, Scope(self.splits, pending, path=path, stage=self.stage))
        if self.path and any(strategy.rules[number].stage is not None for number in found.matched):
            raise UserError(
                f"strategy: {path}: stage: only a child of the root can have one, for all below"
            )
        return found

    def splits_of(self, operator: Operator, mesh: Mesh) -> Splits:
        """The splits of an operator of this scope.

        Raises:
            UserError: a dimension cannot be split so; the text names the operator's path.
        """
        found: dict[str, tuple[str, ...]] = {}
        for axis, dims in self.splits:
            here = operator.among(dims)
            allowed = [dim for dim in here if dim not in operator.whole]
            if mesh.sizes[axis] == 1 or not here:
                continue
            if not allowed:
                raise UserError(
                    f"strategy: {self.path}: {here[0]} cannot be split (over {axis}): the operator "
                    "needs all of it on each rank"
                )
            found[allowed[0]] = (*found.get(allowed[0], ()), axis)
        for dim, axes in found.items():
            parts = mesh.parts(axes)
            if operator.size[dim] % parts:
                raise UserError(
                    f"strategy: {self.path}: {dim} has size {operator.size[dim]}, which cannot be "
                    f"split into {parts} equal parts (over {' x '.join(axes)})"
                    f"{_advice(operator, dim, parts, axes)}"
                )
        return found


def padding_advice(vocabulary: int, tp: int) -> str:
    """What to do about a vocabulary that tensor-parallel ranks cannot divide."""
    step = _VOCABULARY_PER_RANK * tp
    padded = -(-vocabulary // step) * step
    return (
        f"Megatron-LM pads it: set vocabulary={padded}, as in gpt2:vocabulary={padded}, or "
        "vocab_size in a config.json"
    )


def _advice(operator: Operator, dim: str, parts: int, axes: tuple[str, ...]) -> str:
    if dim == operator.features:
        return f"; a strategy file can leave it whole: split = {{ {axes[-1]} = [] }}"
    if dim == VOCABULARY:
        return f"; {padding_advice(operator.size[dim], parts)}"
    return ""


def pattern_of(rule: Rule) -> tuple[str, ...]:
    """The components of a rule's pattern; none: the root."""
    return tuple(rule.pattern.split(".")) if rule.pattern else ()


def rest_of(pattern: tuple[str, ...], name: str) -> tuple[str, ...] | None:
    """What is left of a pattern below a child, whose name may have several components.

    None: the child does not match.
    """
    components = name.split(".")
    if len(components) > len(pattern) or not all(map(fnmatchcase, components, pattern)):
        return None
    return pattern[len(components) :]


def _settled(strategy: Strategy, scope: Scope) -> Scope:
    """``scope`` with the settings of all rules that match it."""
    splits = dict(scope.splits)
    recompute, stage = False, scope.stage
    micro_batches, max_ongoing, along = 1, 0, ""
    matched = frozenset(number for number, rest in scope.pending if not rest)
    for number in sorted(matched):
        rule = strategy.rules[number]
        splits.update(rule.splits)
        recompute = recompute if rule.recompute is None else rule.recompute
        stage = stage if rule.stage is None else rule.stage
        if rule.micro_batches:
            micro_batches, max_ongoing = rule.micro_batches, rule.max_ongoing
            along = rule.along
    found = Scope(
        splits=tuple(sorted(splits.items(), key=lambda item: -AXES.index(item[0]))),
        pending=tuple(item for item in scope.pending if item[1]),
        recompute=recompute,
        micro_batches=micro_batches,
        max_ongoing=max_ongoing,
        along=along if micro_batches > 1 else "",
        stage=stage,
        matched=matched,
        path=scope.path,
    )
    if found.recompute and found.limits_ongoing:
        raise UserError(
            f"strategy: {scope.path}: recompute and max_ongoing: use one of them: with "
            "max_ongoing, nothing is kept that could be recomputed"
        )
    return found
