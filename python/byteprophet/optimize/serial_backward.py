"""A backward pass whose buckets use the link one after the other, as Theorem 1 speaks of it.

The theorem speaks of two operations with a gradient each. A region of the model has many, and its
gradients are in any buckets. Fusing some operations that follow each other, of a region or of two,
makes all their gradients complete together, at their end. So buckets whose last gradient is among
them become ready at that time, and the theorem holds with their transfers as one: those of the
earlier operations are t(s(n-1)), and the last one is t(s(n)). Buckets whose last gradient comes
later move with the later operations, by what fusing saves, whatever else is in them.
``experiments/region_theorems.py`` compares this with replays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from byteprophet.optimize.theorems import operation_fusion_gain_ns, sooner_by_operation_fusion_ns


@dataclass(frozen=True)
class SerialBackward:
    """Times of buckets in the order in which they use the link, in ns from any common origin.

    Attributes:
        ready_ns: when the last gradient of each bucket is complete, in ascending order.
        sync_ns: how long the link is busy with each bucket.
        end_ns: when the backward pass ends.
    """

    ready_ns: tuple[int, ...]
    sync_ns: tuple[int, ...]
    end_ns: int

    @cached_property
    def synced_ns(self) -> tuple[int, ...]:
        """When the link is through with each bucket."""
        synced_ns, free_ns = [], 0
        for ready_ns, sync_ns in zip(self.ready_ns, self.sync_ns, strict=True):
            free_ns = max(free_ns, ready_ns) + sync_ns
            synced_ns.append(free_ns)
        return tuple(synced_ns)

    @property
    def done_ns(self) -> int:
        """When all gradients are synchronised and the backward pass has ended."""
        return max(self.end_ns, self.synced_ns[-1] if self.synced_ns else 0)

    def between(self, begin_ns: int, end_ns: int) -> tuple[int, int]:
        """The first bucket that is ready after ``begin_ns``, and the first one after ``end_ns``."""
        return (
            sum(ready_ns <= begin_ns for ready_ns in self.ready_ns),
            sum(ready_ns <= end_ns for ready_ns in self.ready_ns),
        )

    def sooner_ns(self, begin_ns: int, end_ns: int, saved_ns: int) -> int:
        """How much sooner all is done, by Theorem 1, if some operations are fused.

        Args:
            begin_ns: when the first of these operations begins.
            end_ns: when the last of them ends.
            saved_ns: what fusing them saves; negative: the fused operation takes longer.
        """
        first, behind = self.between(begin_ns, end_ns)
        *sync_ns, last_ns = (0, *self.sync_ns[first:behind])
        synced_ns = self.synced_ns[behind - 1] if behind else 0
        gain_ns = 0
        if first < behind:
            gain_ns = operation_fusion_gain_ns(
                synced_before_ns=self.synced_ns[first - 1] if first else 0,
                ready_second_ns=end_ns,
                synced_second_ns=synced_ns,
                saved_ns=saved_ns,
                sync_first_ns=sum(sync_ns),
                sync_second_ns=last_ns,
            )
        left_ns, by_compute_ns = 0, self.end_ns
        for ready_ns, each_ns in reversed(
            [*zip(self.ready_ns, self.sync_ns, strict=True)][behind:]
        ):
            left_ns += each_ns
            by_compute_ns = max(by_compute_ns, ready_ns + left_ns)
        done_ns = max(synced_ns + left_ns, by_compute_ns)
        return sooner_by_operation_fusion_ns(
            gain_ns,
            saved_ns,
            link_slack_ns=done_ns - left_ns - synced_ns,
            compute_slack_ns=done_ns - by_compute_ns,
        )
