"""The time of collectives and messages on a cluster, between ranks that profiles name.

Rank ``r`` is GPU ``r % gpus`` of node ``r // gpus``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.collectives import CollectiveCosts, Group
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.traces.messages import Message


class LinkTimes:
    """The model of ``simulate/costs/collectives.py``, for ranks."""

    def __init__(self, cluster: Cluster) -> None:
        self._costs = CollectiveCosts(cluster, Mesh())
        self._groups: dict[Sequence[int], Group] = {}

    def collective_ns(self, kind: CollectiveKind, ranks: Sequence[int], size_bytes: int) -> float:
        """The time of a collective between ``ranks``, which must be hashable."""
        return self._costs.alone_ns(self._costs.transfer(kind, self._group(ranks), size_bytes))

    def message_ns(self, source: int, target: int, size_bytes: int) -> float:
        """The time of a message from one rank to another."""
        return self._costs.alone_ns(self._costs.send(size_bytes, source, target))

    def _group(self, ranks: Sequence[int]) -> Group:
        """Where the ranks are. Nodes need not have equally many; the fullest one counts."""
        if ranks not in self._groups:
            cluster = self._costs.cluster
            per_node = cluster.node.gpus
            of_node: dict[int, list[int]] = {}
            for rank in ranks:
                of_node.setdefault(rank // per_node, []).append(rank % per_node)
            local = max(len(gpus) for gpus in of_node.values())
            gpus = sorted({tuple(gpus) for gpus in of_node.values()})
            leaves = {cluster.leaf(node) for node in of_node}
            self._groups[ranks] = Group(local, len(of_node), tuple(gpus), len(leaves))
        return self._groups[ranks]


def members(message: Message) -> tuple[int, ...]:
    """The ranks of a message's group, ascending; empty: not known."""
    try:
        found = json.loads(message.members or "[]")
    except ValueError:
        return _shortened(message.members, message.ranks)
    if not isinstance(found, list) or not all(type(rank) is int and rank >= 0 for rank in found):
        return ()
    return tuple(sorted(set(found)))


def _shortened(text: str, ranks: int) -> tuple[int, ...]:
    """The ranks of a list that PyTorch has shortened, as [0, 8, ...], if they are equidistant."""
    begin, dots, _ = text.partition("...")
    first = [int(number) for number in re.findall(r"[0-9]{1,9}", begin)]
    if not dots or not 2 <= len(first) <= ranks or first[1] <= first[0]:
        return ()
    stride = first[1] - first[0]
    found = range(first[0], first[0] + ranks * stride, stride)
    return tuple(found) if list(found[: len(first)]) == first else ()
