"""A link that buckets use one after the other, as Theorem 2 speaks of it.

Under ``allreduce``, the bucket that is ready first has the link first, for its reduce-scatter and
its all-gather, and the next one follows. So the times at which buckets are ready in a replay, and
how long the link is busy with a bucket of any size, say what the theorem expects of a merge or a
split, without another replay.

The link of a real job is not quite so orderly. While a bucket waits for other ranks between its two
halves, the next one may begin. The two then end in another order, but the link is busy for as long.
So q(n) is computed from the times at which buckets are ready, and not taken from the replay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from byteprophet.graph.mesh_transfers import FRAME_BYTES
from byteprophet.job import Job
from byteprophet.optimize.theorems import tensor_fusion_gain_ns

ROUNDING_NS = 2
"""By how much ``sync_ns`` may be off, because both halves are rounded."""


@dataclass(frozen=True)
class SerialLink:
    """The link in a replayed iteration; times are in ns from its begin.

    Attributes:
        ready_ns: when all ranks may send a bucket, by its place in the strategy.
        synced_ns: when the link is through with it, if all buckets take their turns.
        ranks: the number of ranks.
        frame_ns: the cost of a frame.
        ns_per_byte: of each byte on the link.
        unsure_ns: smaller gains and losses may come out otherwise.
    """

    ready_ns: tuple[int, ...]
    synced_ns: tuple[int, ...]
    ranks: int
    frame_ns: int
    ns_per_byte: float
    unsure_ns: int

    @classmethod
    def of(cls, job: Job, ready_ns: tuple[int, ...]) -> SerialLink:
        """The slowest link of ``job``, whose ranks own equally much: all others wait for it."""
        costs, model = job.cluster.costs, job.model
        slowed = [host.slowed_by(costs.host_ns_per_byte) for host in job.cluster.workers]
        rate_bps = min((host.slower_bps for host in slowed if host.slower_bps), default=0)
        ns_per_byte = 8e9 / rate_bps if rate_bps else 0.0
        link = cls(
            ready_ns, (), job.workers, costs.message_cost_ns, ns_per_byte, 2 * costs.delay_ns
        )
        synced_ns, free_ns = [0] * len(ready_ns), 0
        for place in sorted(range(len(ready_ns)), key=ready_ns.__getitem__):
            names = job.strategy.buckets[place].parameters
            size_bytes = sum(job.wire_bytes[model.places[name]] for name in names)
            free_ns = max(free_ns, ready_ns[place]) + link.sync_ns(size_bytes)
            synced_ns[place] = free_ns
        return replace(link, synced_ns=tuple(synced_ns))

    def sync_ns(self, size_bytes: int) -> int:
        """How long the link is busy with both halves of a bucket."""
        shard_bytes = -(-size_bytes // self.ranks)
        frames = max(1, -(-shard_bytes // FRAME_BYTES))
        sent_bytes = size_bytes - size_bytes // self.ranks
        return 2 * (frames * self.frame_ns + round(sent_bytes * self.ns_per_byte))

    def merge_gain_ns(self, before: int | None, second: int, size_bytes: int) -> int:
        """What Theorem 2 expects of merging bucket ``second`` with the one that is ready before it.

        Args:
            before: the bucket that is ready before both, or None.
            second: the later bucket, by its place in the strategy.
            size_bytes: the size of both.
        """
        return tensor_fusion_gain_ns(
            synced_before_ns=0 if before is None else self.synced_ns[before],
            ready_second_ns=self.ready_ns[second],
            synced_second_ns=self.synced_ns[second],
            sync_fused_ns=self.sync_ns(size_bytes),
        )

    def split_gain_ns(
        self, before: int | None, bucket: int, earlier_ns: int, sizes_bytes: tuple[int, int]
    ) -> int:
        """What Theorem 2 expects of splitting ``bucket``, which would undo a merge.

        Args:
            before: the bucket that is ready before it, or None.
            bucket: its place in the strategy.
            earlier_ns: by how much the first part is ready earlier than the second.
            sizes_bytes: the sizes of the two parts.
        """
        before_ns = 0 if before is None else self.synced_ns[before]
        ready_ns = self.ready_ns[bucket]
        first_ns = max(before_ns, ready_ns - earlier_ns) + self.sync_ns(sizes_bytes[0])
        return -tensor_fusion_gain_ns(
            synced_before_ns=before_ns,
            ready_second_ns=ready_ns,
            synced_second_ns=max(first_ns, ready_ns) + self.sync_ns(sizes_bytes[1]),
            sync_fused_ns=self.sync_ns(sum(sizes_bytes)),
        )
