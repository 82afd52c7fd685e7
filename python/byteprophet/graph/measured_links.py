"""How fast the links of an all-reduce job are, from when its collectives began and ended.

A collective moves bytes from when all ranks have begun it; what one rank waits for another is no
time of the link. Collectives overlap, and share the links, so the unit is a busy period: from a
time at which none is under way to the next such. In it every link carries, in each direction,
2 (ranks - 1) / ranks of the bytes of all its buckets, and no faster than it can. The steps of one
bucket at least are not hidden behind another's, so

    duration = bytes / rate + steps * delay

A limiter that has saved up while the link was idle lets some bytes pass at once: then the delay
would come out negative, and is taken to be 0. Where links were limited, bytes are not faster than
the limit; what one takes longer is the host's part, which stays when links change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
from byteprophet.graph.model import Int64Array
from byteprophet.graph.ring_job import RingNetwork

_Floats = npt.NDArray[np.float64]

_MOST = 1000  # periods; what follows takes their square
_UNLIKE = 1.5  # times as many bytes in one period as in another: rate and delay can be told apart


def measure_links(
    began_ns: Int64Array,
    ended_ns: Int64Array,
    bucket_bytes: Sequence[int],
    limits_bps: Sequence[int | None],
) -> RingNetwork:
    """The network; times of collectives of shape (ranks, iterations, buckets), on one clock.

    ``limits_bps``: the payload rates of the ranks' links, as configured; None: not known.
    """
    ranks = len(began_ns)
    if ranks == 1:
        return RingNetwork((0,))
    moved_bytes = np.array(bucket_bytes) * 2 * (ranks - 1) / ranks
    if not moved_bytes.all():
        raise UserError("some collectives say no bytes: they were not recorded with them")
    if (ended_ns <= began_ns.max(axis=0)).all():
        raise UserError("collectives ended before all ranks began them: ranks' clocks are apart")
    all_began_ns, all_ended_ns = began_ns.max(axis=0), ended_ns.max(axis=0)
    periods = np.array(
        [
            period
            for began, ended in zip(all_began_ns, all_ended_ns, strict=True)
            for period in _busy_periods(began, ended, moved_bytes)
        ]
    )
    known_bps = tuple(limit_bps for limit_bps in limits_bps if limit_bps is not None)
    limited_ns = 8e9 / min(known_bps) if len(known_bps) == ranks else 0.0
    ns_per_byte, latency_ns = _fit(periods[:, 0], periods[:, 1], limited_ns)
    delay_ns = round(latency_ns / (2 * (ranks - 1)))
    if limited_ns:
        return RingNetwork(known_bps, delay_ns, ns_per_byte - limited_ns)
    return RingNetwork((round(8e9 / ns_per_byte),) * ranks, delay_ns)


def _busy_periods(
    began_ns: Int64Array, ended_ns: Int64Array, moved_bytes: _Floats
) -> Iterator[tuple[float, float]]:
    """Bytes and durations."""
    order = np.argsort(began_ns, kind="stable")
    since_ns = until_ns = int(began_ns[order[0]])
    size_bytes = 0.0
    for bucket in order.tolist():
        if began_ns[bucket] > until_ns:
            yield size_bytes, max(1, until_ns - since_ns)
            since_ns, size_bytes = int(began_ns[bucket]), 0.0
        until_ns = max(until_ns, int(ended_ns[bucket]))
        size_bytes += moved_bytes[bucket]
    yield size_bytes, max(1, until_ns - since_ns)


def _fit(size_bytes: _Floats, duration_ns: _Floats, least_ns: float) -> tuple[float, float]:
    """What a byte takes, ``least_ns`` or more, and a period beyond its bytes, in ns.

    Robust against outliers: repeated medians (Siegel 1982) of the slopes between periods unlike
    enough for their difference to be one of bytes and not of luck.
    """
    size_bytes, duration_ns = size_bytes[-_MOST:], duration_ns[-_MOST:]
    more_bytes = size_bytes[:, None] - size_bytes
    larger_bytes = np.maximum(size_bytes[:, None], size_bytes)
    unlike = np.abs(more_bytes) > (1 - 1 / _UNLIKE) * larger_bytes
    small, large = np.quantile(size_bytes, (0.1, 0.9))
    if large > _UNLIKE * small:
        longer_ns = duration_ns[:, None] - duration_ns
        slopes = np.divide(longer_ns, more_bytes, out=np.full_like(longer_ns, np.nan), where=unlike)
        of_each = np.nanmedian(slopes[unlike.any(axis=1)], axis=1)
        ns_per_byte = max(least_ns, float(np.median(of_each)))
        latency_ns = float(np.median(duration_ns - ns_per_byte * size_bytes))
        if ns_per_byte > 0 and latency_ns > 0:
            return ns_per_byte, latency_ns
    # The median byte's, as half of all periods may be short ones with hardly any bytes.
    each_ns = duration_ns / size_bytes
    order = np.argsort(each_ns)
    passed_bytes = np.cumsum(size_bytes[order])
    middle = np.searchsorted(passed_bytes, passed_bytes[-1] / 2)
    return max(least_ns, float(each_ns[order[middle]])), 0.0
