"""An all-reduce job as plain data: what ranks compute when, which buckets they reduce, over what.

What a graph is built from (``ring_graph.py``): measured, rank by rank and iteration by iteration,
or assumed. Changing it is asking "what if".
"""

from __future__ import annotations

from dataclasses import dataclass

from byteprophet.graph.model import Int64Array


@dataclass(frozen=True)
class RingCompute:
    """What ranks compute. Shapes: W ranks, I iterations, L layers in forward order, B buckets.

    ``forward_ns`` (W, I, L): of the layers, one after the other.
    ``gradient_ns`` (W, I, L): when all gradients of a layer are complete, from the begin of
    backward. ``bucket_ns`` (W, I, B): when a bucket is complete, from the same.
    ``update_ns`` (W, I): from when all sums are there to the begin of the next iteration.
    """

    forward_ns: Int64Array
    gradient_ns: Int64Array
    bucket_ns: Int64Array
    update_ns: Int64Array


@dataclass(frozen=True)
class RingNetwork:
    """Links of ranks. Rates are of payload, per direction; 0: not limited.

    ``host_ns_per_byte``: what a byte takes besides, while it is on no link: a receiver adds it up
    and copies it. ``delay_ns``: from the end of a message to when its receiver goes on.
    """

    worker_bps: tuple[int, ...]
    delay_ns: int = 0
    host_ns_per_byte: float = 0.0

    @property
    def reduced_bps(self) -> tuple[int, ...]:
        """At which bytes pass, on the link and besides; 0: at once."""
        return tuple(self._reduced_bps(rate_bps) for rate_bps in self.worker_bps)

    def _reduced_bps(self, rate_bps: int) -> int:
        if not self.host_ns_per_byte:
            return rate_bps
        return round(8e9 / ((8e9 / rate_bps if rate_bps else 0) + self.host_ns_per_byte))


@dataclass(frozen=True)
class RingJob:
    """A job. ``size_bytes``: of the layers' gradients. ``bucket_bytes``: in the order of reduction.

    ``at_once``: collectives that a rank works on at a time, as gloo's threads do in PyTorch.
    """

    layers: tuple[str, ...]
    size_bytes: tuple[int, ...]
    bucket_bytes: tuple[int, ...]
    compute: RingCompute
    network: RingNetwork
    at_once: int = 2

    @property
    def workers(self) -> int:
        """How many ranks."""
        return len(self.network.worker_bps)

    @property
    def title(self) -> str:
        """What it is, in words."""
        return f"all-reduce, {self.workers} workers, {len(self.bucket_bytes)} bucket(s)"

    @property
    def iterations(self) -> int:
        """How many are computed."""
        return int(self.compute.update_ns.shape[1])
