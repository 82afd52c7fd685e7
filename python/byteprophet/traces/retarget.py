"""Predicts a job of which there is a trace, with other data parallelism or other links.

The recorded time of a collective is multiplied by what a model says: its time as it would be, over
its time as it was. The model is ``simulate/costs/collectives.py``, for the cluster on which the
trace was recorded and the one in question. Without a cluster, the model is the bytes that a ring
moves through each rank, without latency. A message follows the model where its two ranks are known.
What has no model keeps its time, and ``not_modelled`` says so. Where only ``link_scale`` changes,
it scales what has no model, too. All other tasks keep their times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.traces.data_parallel import data_parallel_groups
from byteprophet.traces.graph import Durations
from byteprophet.traces.link_times import LinkTimes, members
from byteprophet.traces.matching import Matching, match
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

_MOST_UNKNOWN = 0.05
"""The part of communication that may be unmatched, or be of unknown size where it matters."""


@dataclass(frozen=True)
class Target:
    """What is different from the recorded job.

    Attributes:
        data_parallel: the number of data-parallel ranks; None: as it was.
        group: the name or the description of the process groups of data parallelism; "": the only
            one.
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

    @property
    def changes_links(self) -> bool:
        """Whether links are different."""
        return self.cluster is not None or self.link_scale != 1


def retarget(
    traces: Sequence[RankTrace], target: Target, matching: Matching | None = None
) -> Durations:
    """The times of tasks in the job in question. ``matching`` is theirs, if it is known already.

    Raises:
        UserError: the traces do not say what is needed: which group is that of data parallelism,
            how many ranks it has, how long communication takes without waiting, or its sizes.
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
    factors = _Factors(traces, target)
    if target.changes_links or target.data_parallel is not None:
        _check_matching(traces, matching or match(traces))
    _check_sizes(traces, factors, target)

    def durations(task: Task, duration_ns: int) -> int:
        if task.use in (Use.KERNEL, Use.OPERATOR):
            return round(duration_ns * target.compute_scale)
        factor = None if task.message is None else factors.of(task.message)
        return duration_ns if factor is None else round(duration_ns * factor)

    return durations


def not_modelled(traces: Sequence[RankTrace], target: Target) -> dict[str, int]:
    """The recorded time of communication, by kind, that keeps its time for want of a model."""
    factors = _Factors(traces, target)
    found: dict[str, int] = {}
    for message, duration_ns in _communication(traces):
        if factors.of(message) is None:
            kind = message.kind or "unknown kinds"
            found[kind] = found.get(kind, 0) + duration_ns
    return found


def not_sized(traces: Sequence[RankTrace], target: Target) -> int:
    """The recorded time of communication whose sizes the model lacks, and takes as large."""
    return _not_sized(traces, _Factors(traces, target))


def _not_sized(traces: Sequence[RankTrace], factors: _Factors) -> int:
    return sum(ns for message, ns in _communication(traces) if factors.takes_as_large(message))


def _communication(traces: Sequence[RankTrace]) -> Iterator[tuple[Message, int]]:
    """The messages of all ranks, and how long each took."""
    for trace in traces:
        for task in trace.tasks:
            if task.message is not None:
                yield task.message, task.duration_ns


def _too_large_share(traces: Sequence[RankTrace], part_ns: int) -> float:
    """The share of communication that ``part_ns`` is; 0 if so much may be unknown."""
    total_ns = sum(ns for _, ns in _communication(traces))
    return part_ns / total_ns if part_ns > _MOST_UNKNOWN * total_ns else 0.0


def _check_matching(traces: Sequence[RankTrace], matching: Matching) -> None:
    """Refuses collectives whose times are mostly waiting, as if data moved meanwhile."""
    share = _too_large_share(traces, matching.unmatched_ns)
    if share:
        raise UserError(
            f"{traces[0].path}: {share:.0%} of the time of communication is of "
            "collectives that other ranks did not record as often, or in other sizes, or that more "
            "ranks recorded than their group has, or of messages that do not name both ranks, so "
            "that waiting is not known: were all steps recorded completely?"
        )


def _check_sizes(traces: Sequence[RankTrace], factors: _Factors, target: Target) -> None:
    """Refuses another latency where sizes are not known, because it matters to small ones only."""
    before, after = target.recorded_on, target.cluster
    if before is None or after is None or before.network.step_ns == after.network.step_ns:
        return
    share = _too_large_share(traces, _not_sized(traces, factors))
    if share:
        raise UserError(
            f"{traces[0].path}: does not state the sizes of {share:.0%} of its "
            "communication, without which another latency between nodes tells nothing: profile "
            "with record_shapes=True"
        )


class _Factors:
    """Of each message: its time in the job in question, over its recorded one."""

    def __init__(self, traces: Sequence[RankTrace], target: Target) -> None:
        self._path = traces[0].path
        self._target = target
        self._groups = frozenset[str]()
        if target.data_parallel is not None:
            if target.data_parallel < 1:
                raise UserError(f"{target.data_parallel} data-parallel ranks: must be at least 1")
            self._groups = data_parallel_groups(traces, target.group)
        self._world_size = max(trace.world_size for trace in traces)
        self._times: tuple[LinkTimes, LinkTimes] | None = None
        if target.recorded_on is not None:
            cluster = _scaled(target.cluster or target.recorded_on, target.link_scale)
            self._times = LinkTimes(target.recorded_on), LinkTimes(cluster)
        self._found: dict[Message, float | None] = {}
        self._large: set[Message] = set()

    def of(self, message: Message) -> float | None:
        """The factor; None: there is no model of what changes."""
        if message not in self._found:
            self._found[message] = self._factor(message)
        return self._found[message]

    def takes_as_large(self, message: Message) -> bool:
        """Whether the factor is that of a large size, because the size is not known."""
        self.of(message)
        return message in self._large

    def _size_bytes(self, message: Message) -> int:
        if not message.size_bytes:
            self._large.add(message)
        return message.size_bytes or _LARGE_BYTES

    def _factor(self, message: Message) -> float | None:
        resized = message.group in self._groups
        if not resized and not self._target.changes_links:
            return 1.0
        kind = _KINDS.get(message.kind)
        if kind is not None:
            return self._of_collective(message, kind, resized)
        if resized:
            return None
        ends = self._ends(message)
        if self._times is not None and ends is not None:
            size_bytes = self._size_bytes(message)
            before, after = (times.message_ns(*ends, size_bytes) for times in self._times)
            return after / before
        if self._target.cluster is not None:
            return None
        return 1.0 if message.kind == "barrier" else 1 / self._target.link_scale

    def _of_collective(self, message: Message, kind: CollectiveKind, resized: bool) -> float:
        target = self._target
        known = members(message)
        ranks = len(known) or message.ranks or self._world_size
        new_ranks = target.data_parallel if resized and target.data_parallel else ranks
        if not ranks:
            if self._times is None and not resized:
                return 1 / target.link_scale
            raise UserError(
                f"{self._path}: does not state its number of ranks, which the model of "
                f"{message.kind} needs: use --link-scale, without --cluster and --data-parallel"
            )
        if ranks < 2:
            if new_ranks == ranks:
                return 1.0
            raise UserError(
                "an exchange of one rank does not tell how long it takes between several: use a "
                "trace of at least 2 data-parallel ranks"
            )
        if self._times is None:
            passed = (new_ranks - 1) / new_ranks / ((ranks - 1) / ranks)
            return passed / target.link_scale
        before: Sequence[int] = known or range(ranks)
        after = before
        if new_ranks != ranks:
            stride = before[1] - before[0]
            after = range(before[0] % stride, new_ranks * stride, stride)
        size_bytes = self._size_bytes(message)
        old, new = self._times
        return new.collective_ns(kind, after, size_bytes) / old.collective_ns(
            kind, before, size_bytes
        )

    def _ends(self, message: Message) -> tuple[int, int] | None:
        """The ranks between which a message goes, within the job; None: not known."""
        ranks: Sequence[int] = members(message)
        if not ranks and message.ranks == self._world_size:
            ranks = range(self._world_size)
        if message.peers is None or max(message.peers) >= len(ranks):
            return None
        source, target = message.peers
        return ranks[source], ranks[target]


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
