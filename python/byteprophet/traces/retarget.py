"""Predicts a job of which there is a trace, with other data parallelism or other links.

The recorded time of a collective is multiplied by what a model says: its time as it would be, over
its time as it was. The model is ``simulate/costs/collectives.py``, for the cluster on which the
trace was recorded and the one in question. Without a cluster, the model is the bytes that a ring
moves through each rank, without latency. Everything else keeps its time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.collectives import CollectiveCosts, Group
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.traces.graph import Durations
from byteprophet.traces.messages import Message
from byteprophet.traces.work import RankTrace, Task, Use

_KINDS = {
    kind.value: kind
    for kind in (
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.ALL_TO_ALL,
    )
}
_LARGE_BYTES = 1 << 30
"""Of a collective whose size is not recorded: bandwidth limits it."""


@dataclass(frozen=True)
class Target:
    """What is different from the recorded job.

    Attributes:
        data_parallel: the number of data-parallel ranks; None: as it was.
        group: the name of the process group of data parallelism; "": the only one.
        recorded_on: the cluster of the trace; None: not stated.
        cluster: the cluster in question; None: that of the trace.
        link_scale: links are so many times as fast.
        compute_scale: kernels, or operators of a trace without a device, take so many times as
            long.
    """

    data_parallel: int | None = None
    group: str = ""
    recorded_on: Cluster | None = None
    cluster: Cluster | None = None
    link_scale: float = 1.0
    compute_scale: float = 1.0

    @property
    def is_as_recorded(self) -> bool:
        """Whether nothing is different."""
        return self == Target(recorded_on=self.recorded_on)


def retarget(traces: Sequence[RankTrace], target: Target) -> Durations:
    """The times of tasks in the job in question.

    Raises:
        UserError: the traces do not say what is needed: which group is that of data parallelism,
            or how many ranks it has.
    """
    if target.cluster is not None and target.recorded_on is None:
        raise UserError("another cluster needs the one on which the trace was recorded")
    if (
        target.recorded_on is not None
        and target.cluster is not None
        and target.cluster.gpu.name != target.recorded_on.gpu.name
    ):
        raise UserError(
            f"{target.cluster.name} has other GPUs than {target.recorded_on.name}: a trace does "
            "not tell how long kernels take there"
        )
    group = _data_parallel_group(traces, target)
    world_size = max((trace.world_size for trace in traces), default=0) or len(traces)
    factors: dict[Message, float] = {}

    def durations(task: Task, duration_ns: int) -> int:
        if task.use in (Use.KERNEL, Use.OPERATOR):
            return round(duration_ns * target.compute_scale)
        if task.message is None:
            return duration_ns
        if task.message not in factors:
            factors[task.message] = _factor(task.message, target, group, world_size)
        return round(duration_ns * factors[task.message])

    return durations


def not_modelled(traces: Sequence[RankTrace], target: Target) -> dict[str, int]:
    """The recorded time of communication, by kind, that keeps its time though the group changes."""
    if target.data_parallel is None:
        return {}
    group = _data_parallel_group(traces, target)
    found: dict[str, int] = {}
    for trace in traces:
        for task in trace.tasks:
            message = task.message
            if message is not None and message.group == group and message.kind not in _KINDS:
                kind = message.kind or "unknown kinds"
                found[kind] = found.get(kind, 0) + task.duration_ns
    return found


def _data_parallel_group(traces: Sequence[RankTrace], target: Target) -> str | None:
    """The name of the group whose size changes; None: none does."""
    if target.data_parallel is None:
        return None
    if target.data_parallel < 1:
        raise UserError(f"{target.data_parallel} data-parallel ranks: must be at least 1")
    path = traces[0].path
    groups = {
        task.message.group
        for trace in traces
        for task in trace.tasks
        if task.message is not None and task.message.kind not in ("send", "receive")
    }
    if not groups:
        raise UserError(f"{path}: has no collectives: it does not depend on other ranks")
    if target.group:
        matching = {name for name in groups if target.group in (name, *name.split())}
        if len(matching) != 1:
            names = ", ".join(sorted(name or "(not named)" for name in groups))
            raise UserError(f"{path}: has no process group {target.group}, only {names}")
        return matching.pop()
    if len(groups) > 1:
        names = ", ".join(sorted(name or "(not named)" for name in groups))
        raise UserError(f"{path}: has several process groups: which is data parallelism's? {names}")
    return groups.pop()


def _factor(message: Message, target: Target, group: str | None, world_size: int) -> float:
    """The time of a collective in the job in question, over its recorded one."""
    kind = _KINDS.get(message.kind)
    members = _members(message)
    ranks = len(members) or message.ranks or world_size
    new_ranks = ranks
    if group is not None and message.group == group and target.data_parallel is not None:
        new_ranks = target.data_parallel
    if kind is None:
        return 1.0 if message.kind == "barrier" else 1 / target.link_scale
    if ranks < 2:
        if new_ranks == ranks:
            return 1.0
        raise UserError(
            "an exchange of one rank does not tell how long it takes between several: use a "
            "trace of at least 2 data-parallel ranks"
        )
    if target.recorded_on is None:
        passed = (new_ranks - 1) / new_ranks / ((ranks - 1) / ranks)
        return passed / target.link_scale
    stride = members[1] - members[0] if len(members) > 1 else 1
    size_bytes = message.size_bytes or _LARGE_BYTES
    cluster = _scaled(target.cluster or target.recorded_on, target.link_scale)
    before_ns = _time_ns(target.recorded_on, kind, ranks, stride, size_bytes)
    return _time_ns(cluster, kind, new_ranks, stride, size_bytes) / before_ns


def _time_ns(
    cluster: Cluster, kind: CollectiveKind, ranks: int, stride: int, size_bytes: int
) -> float:
    per_node = cluster.node.gpus
    local = len(range(0, min(per_node, ranks * stride), stride))
    costs = CollectiveCosts(cluster, Mesh())
    transfer = costs.transfer(kind, Group(local, -(-ranks // local)), size_bytes)
    return transfer.latency_ns + transfer.size_bytes / costs.rate(transfer)


def _scaled(cluster: Cluster, factor: float) -> Cluster:
    """The cluster with links that are ``factor`` times as fast."""
    node, network = cluster.node, cluster.network
    return replace(
        cluster,
        node=replace(
            node,
            gpu_bytes_per_s=max(1, round(node.gpu_bytes_per_s * factor)),
            link_bytes_per_s=round(node.link_bytes_per_s * factor),
        ),
        network=replace(
            network, adapter_bits_per_s=max(8, round(network.adapter_bits_per_s * factor))
        ),
    )


def _members(message: Message) -> Sequence[int]:
    """The ranks of a message's group; empty: not known."""
    try:
        found = json.loads(message.members or "[]")
    except ValueError:  # profiles shorten long lists: [0, 1, 2, ...]
        return ()
    if not isinstance(found, list) or not all(type(rank) is int and rank >= 0 for rank in found):
        return ()
    ranks = sorted(set(found))
    return ranks if len(ranks) < 2 or ranks[1] > ranks[0] else ()
