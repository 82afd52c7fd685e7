"""What a change of a job's regions is expected to bring, by Theorems 1 and 3 where they hold.

Under ``allreduce``, buckets take turns on the link, so the theorems say without a replay how much
sooner all gradients are there (``serial_backward.py``). Of a split they expect the opposite of what
they expect of the merge that would undo it. What the forward pass saves is added.

Under other runtimes urgent gradients overtake others, and with servers, too. Where workers share
cores, messages slow down what they compute. The theorems do not hold there. What is expected is
what the change saves, less the longest delay that it brings to a gradient on the critical path.
That only puts moves in an order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from byteprophet.allreduce.groups import Groups
from byteprophet.job import Cluster, Job, Times
from byteprophet.job.as_executed import as_executed
from byteprophet.job.strategy import Strategy
from byteprophet.job.times import Int64Array
from byteprophet.optimize.computing import Computing
from byteprophet.optimize.moves import Hints
from byteprophet.optimize.serial_backward import SerialBackward
from byteprophet.optimize.serial_link import ROUNDING_NS
from byteprophet.optimize.theorems import (
    BOTH,
    OPERATION_FUSION,
    fuses_gradients_of_fused_operations,
)


@dataclass(frozen=True)
class Expected:
    """``gain_ns``: how much shorter an iteration becomes. ``theorem``: which one says so."""

    gain_ns: int
    theorem: str = ""


class RegionChanges:
    """Changes of the regions of ``job``, whose costs ``computing`` has learned."""

    def __init__(self, computing: Computing, job: Job, hints: Hints) -> None:
        plain = computing.plain(job)
        assert plain is not None
        self._computing, self._job, self._hints = computing, job, hints
        self._model = plain.model
        self._places = plain.model.places
        self._tensor_of = plain.tensor_of
        self._wire_bytes = np.array(job.wire_bytes)
        self._was = self._medians(job.strategy)
        self._buckets = [
            [self._places[name] for name in bucket.parameters] for bucket in job.strategy.buckets
        ]

    def expected(self, strategy: Strategy, names: Sequence[str], *, fuses: bool) -> Expected:
        """What to expect of ``strategy``, which has other regions.

        Args:
            strategy: the strategy after the change.
            names: the parameters of the modules that change, at least one.
            fuses: they become one region; otherwise they were one.
        """
        was, after = self._was, self._medians(strategy)
        forward_ns = int(was.forward_ns.sum() - after.forward_ns.sum())
        if self._hints.link is None:
            saved_ns = int(was.backward_ns.sum() - after.backward_ns.sum())
            return Expected(forward_ns + saved_ns - self._delay_ns(after))
        fine, coarse = (was, after) if fuses else (after, was)
        begin_ns, end_ns = self._span(fine, names)
        saved_ns = int(fine.backward_ns.sum() - coarse.backward_ns.sum())
        sooner_ns = self._serial(fine, self._buckets).sooner_ns(begin_ns, end_ns, saved_ns)
        sooner_ns = sooner_ns if fuses else -sooner_ns
        gain_ns = forward_ns + sooner_ns
        pays = sooner_ns >= 0 and gain_ns > self._hints.link.unsure_ns
        return Expected(gain_ns, OPERATION_FUSION if pays else "")

    def together(
        self, strategy: Strategy, regions: Iterable[Sequence[str]], expected: Expected
    ) -> tuple[Groups, Expected] | None:
        """The buckets in which all gradients of a region share one, and what to expect then.

        ``regions``: the parameters of new regions. ``expected``: of the change of regions alone.
        None if they share buckets already. Gradients that share a bucket with others that are
        complete later stay where they are.
        """
        after = self._medians(strategy)
        buckets, holds = self._buckets, True
        for names in filter(None, regions):
            begin_ns, end_ns = self._span(after, names)
            ready_ns = self._ready_ns(after, buckets)
            shared = [
                bucket
                for bucket, each_ns in zip(buckets, ready_ns, strict=True)
                if begin_ns < each_ns <= end_ns
            ]
            if len(shared) > 1:
                merged = sorted(place for bucket in shared for place in bucket)
                holds = holds and self._may_share(shared, merged)
                at = buckets.index(shared[0])
                buckets = [bucket for bucket in buckets if bucket not in shared]
                buckets.insert(at, merged)
        if len(buckets) == len(self._buckets):
            return None
        groups = tuple(map(tuple, buckets))
        link = self._hints.link
        if link is None:
            return groups, Expected(expected.gain_ns)
        apart, one = self._serial(after, self._buckets), self._serial(after, buckets)
        gain_ns = expected.gain_ns + apart.done_ns - one.done_ns
        return groups, Expected(gain_ns, BOTH if holds and gain_ns > link.unsure_ns else "")

    def _medians(self, strategy: Strategy) -> Times:
        """The medians under ``strategy``, with what it does to gradients."""
        alone = Cluster(self._job.cluster.workers[:1], costs=self._job.cluster.costs)
        times = self._computing.medians(self._job, strategy)
        one = replace(self._job, model=self._model, times=times, cluster=alone, strategy=strategy)
        return as_executed(one).times

    def _may_share(self, buckets: Sequence[Sequence[int]], merged: Sequence[int]) -> bool:
        """Whether Theorem 3 holds for these buckets."""
        link = self._hints.link
        if link is None:
            return False
        *first, last = (link.sync_ns(self._size_bytes(bucket)) for bucket in buckets)
        return fuses_gradients_of_fused_operations(
            sync_first_ns=sum(first),
            sync_second_ns=last,
            sync_fused_ns=link.sync_ns(self._size_bytes(merged)) - ROUNDING_NS * len(buckets),
        )

    def _span(self, times: Times, names: Sequence[str]) -> tuple[int, int]:
        """When the backward pass begins and ends with the parameters ``names``."""
        places = [self._places[name] for name in names]
        ready_ns = times.ready_ns[0, 0]
        end_ns = int(ready_ns[places].max())
        begin_ns = int(ready_ns[max(places) + 1 :].max(initial=0))
        return min(begin_ns, end_ns), end_ns

    def _serial(self, times: Times, buckets: Sequence[Sequence[int]]) -> SerialBackward:
        link = self._hints.link
        assert link is not None
        ready_ns = self._ready_ns(times, buckets)
        turns = sorted(range(len(buckets)), key=ready_ns.__getitem__)
        return SerialBackward(
            tuple(ready_ns[n] for n in turns),
            tuple(link.sync_ns(self._size_bytes(buckets[n])) for n in turns),
            int(times.backward_ns.max()),
        )

    def _ready_ns(self, times: Times, buckets: Sequence[Sequence[int]]) -> list[int]:
        ready_ns: Int64Array = times.ready_ns[0, 0]
        return [int(ready_ns[members].max()) for members in buckets]

    def _size_bytes(self, members: Sequence[int]) -> int:
        """On the wire. Where buckets take turns on a link, the job has a tensor per parameter."""
        return int(self._wire_bytes[members].sum())

    def _delay_ns(self, after: Times) -> int:
        """The longest delay of a gradient that is on the critical path."""
        on_path = np.zeros(len(self._model), bool)
        for bucket in self._hints.bucket_ns:
            on_path[self._buckets[bucket]] = True
        for tensor in self._hints.tensor_ns:
            on_path |= self._tensor_of == tensor
        later_ns = (after.ready_ns - self._was.ready_ns)[0, 0][on_path]
        return int(later_ns.max(initial=0))
