"""How fast the links of an all-reduce job are, from when its collectives began and ended.

A collective moves bytes from when all ranks have begun it; what one rank waits for another is no
time of the link. Collectives overlap, and share the links, so the unit is a busy period: from a
time at which none is under way to the next such. In it every link carries, in each direction,
2 (ranks - 1) / ranks of the bytes of all its buckets, and no faster than it can. The steps of one
bucket at least are not hidden behind another's, so

    duration = bytes / rate + steps * delay

A limiter that has saved up while the link was idle lets some bytes pass at once: then the delay
would come out negative, and is taken to be 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from byteprophet.graph.model import Int64Array
from byteprophet.graph.ring_job import RingNetwork

_Floats = npt.NDArray[np.float64]

_UNLIKE = 1.5  # times as many bytes in one period as in another: rate and delay can be told apart


def measure_links(
    began_ns: Int64Array, ended_ns: Int64Array, bucket_bytes: Sequence[int]
) -> RingNetwork:
    """The network; times of collectives of shape (ranks, iterations, buckets), on one clock."""
    ranks = len(began_ns)
    if ranks == 1:
        return RingNetwork((0,))
    moved_bytes = np.array(bucket_bytes) * 2 * (ranks - 1) / ranks
    all_began_ns, all_ended_ns = began_ns.max(axis=0), ended_ns.max(axis=0)
    periods = np.array(
        [
            period
            for began, ended in zip(all_began_ns, all_ended_ns, strict=True)
            for period in _busy_periods(began, ended, moved_bytes)
        ]
    )
    rate_bps, latency_ns = _fit(periods[:, 0], periods[:, 1])
    delay_ns = round(max(0.0, latency_ns) / (2 * (ranks - 1)))
    return RingNetwork((round(rate_bps),) * ranks, delay_ns)


def _busy_periods(
    began_ns: Int64Array, ended_ns: Int64Array, moved_bytes: _Floats
) -> Iterator[tuple[float, float]]:
    """Bytes and durations."""
    order = np.argsort(began_ns, kind="stable")
    since_ns = until_ns = int(began_ns[order[0]])
    size_bytes = 0.0
    for bucket in order.tolist():
        if began_ns[bucket] > until_ns:
            yield size_bytes, until_ns - since_ns
            since_ns, size_bytes = int(began_ns[bucket]), 0.0
        until_ns = max(until_ns, int(ended_ns[bucket]))
        size_bytes += moved_bytes[bucket]
    yield size_bytes, max(1, until_ns - since_ns)


def _fit(size_bytes: _Floats, duration_ns: _Floats) -> tuple[float, float]:
    """Bits per second, and what a period takes beyond its bytes; robust against outliers."""
    small, large = np.quantile(size_bytes, (0.1, 0.9))
    per_byte_ns, latency_ns = float(np.median(duration_ns / size_bytes)), 0.0
    if large > _UNLIKE * small:
        low = size_bytes <= np.median(size_bytes)
        spread_bytes = np.median(size_bytes[~low]) - np.median(size_bytes[low])
        slope = (np.median(duration_ns[~low]) - np.median(duration_ns[low])) / spread_bytes
        rest_ns = float(np.median(duration_ns - slope * size_bytes))
        if slope > 0 and rest_ns > 0:
            per_byte_ns, latency_ns = float(slope), rest_ns
    return 8e9 / per_byte_ns, latency_ns
