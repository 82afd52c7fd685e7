"""Builds a strategy node by node, as a user writes it in Python.

tree = Tree(Mesh(tp=2, dp=4))
tree.split("batch", "dp")
tree["layers.*.attention"].split("heads", "tp")
tree["layers.*.mlp"].split("inner", "tp").recompute()
tree.schedule(micro_batches=8)
strategy = tree.strategy()

Settings that have no method are fields of ``Strategy``: ``replace(strategy, ring=True)`` of
``dataclasses`` sets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from byteprophet.errors import UserError
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.tree.strategy import Rule, Strategy


class Node:
    """The nodes whose path matches a pattern. Each method returns the node itself."""

    def __init__(self, tree: Tree, pattern: str) -> None:
        self._tree = tree
        self._pattern = pattern

    def split(self, dims: str | Sequence[str], axis: str) -> Node:
        """Split a dimension over a mesh axis, here and below.

        Args:
            dims: the dimension, or several, of which each operator takes the first that it has.
            axis: the mesh axis, whose size is the number of parts.
        """
        named = (dims,) if isinstance(dims, str) else tuple(dims)
        self._tree.add(Rule(self._pattern, splits=((axis, named),)))
        return self

    def recompute(self) -> Node:
        """Run the forward pass again in the backward pass, and keep only its inputs."""
        self._tree.add(Rule(self._pattern, recompute=True))
        return self

    def schedule(self, micro_batches: int, *, max_ongoing: int = 0, along: str = "batch") -> Node:
        """Run in micro-batches of the node's own, one after the other.

        Args:
            micro_batches: how many.
            max_ongoing: how many may be between their forward and their backward pass; 0: all. Only
                the last block of a model can have fewer.
            along: the dimension that they are parts of.
        """
        rule = Rule(
            self._pattern, micro_batches=micro_batches, max_ongoing=max_ongoing, along=along
        )
        self._tree.add(rule)
        return self

    def map(self, stage: int) -> Node:
        """Run on this pipeline stage."""
        self._tree.add(Rule(self._pattern, stage=stage))
        return self


class Tree(Node):
    """The root of the strategy tree of any model; ``tree[path]`` is a node."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(self, "")
        self._strategy = Strategy(mesh)
        self._rules: list[Rule] = []

    def __getitem__(self, path: str) -> Node:
        return Node(self, path)

    def add(self, rule: Rule) -> None:
        """Add a rule; it holds before earlier ones."""
        self._rules.append(rule)

    def schedule(
        self,
        micro_batches: int,
        kind: str = "1f1b",
        *,
        max_ongoing: int = 0,
        along: str = "batch",
        micro_batch: int = 1,
        chunks: int = 1,
    ) -> Tree:
        """Set the pipeline schedule; see ``Strategy``. The root is cut along "batch" only."""
        if along != "batch":
            raise UserError(f"strategy: root: schedule along {along}: must be along batch")
        self._strategy = replace(
            self._strategy,
            micro_batches=micro_batches,
            max_ongoing=max_ongoing,
            schedule=kind,
            micro_batch=micro_batch,
            chunks=chunks,
        )
        return self

    def shard(self, zero: int, *, overlap: bool = True, precision: str = "bf16") -> Tree:
        """Set what data-parallel ranks shard and send; see ``Strategy``."""
        self._strategy = replace(self._strategy, zero=zero, overlap=overlap, precision=precision)
        return self

    def strategy(self) -> Strategy:
        """The strategy as data."""
        return replace(self._strategy, rules=tuple(self._rules))
