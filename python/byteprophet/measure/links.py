"""Measures the speed of the links under gloo's collectives, from when these began and ended.

A collective moves bytes once all ranks have begun it; before that, ranks wait for each other and
the link is not busy. Collectives overlap and share the links, so the unit of measurement is a busy
period, between two times at which no collective is in flight. During a busy period, every link
carries in each direction what the collectives move: for an all-reduce, 2 (ranks - 1) / ranks of its
bytes. At least one collective's steps are not hidden behind another collective, so

    duration = bytes / rate + steps * delay

A rate limiter lets a burst of bytes pass at once after a pause. On limited links, these do not
count in the fit. A fitted delay that is negative is taken to be 0. If all busy periods carry about
as many bytes, as those of a job with two buckets, they do not tell rate and delay apart. On limited
links, what they take beyond the time of their bytes then counts as delay first, up to what gloo's
all-reduce of a few bytes takes.

On limited links, the fitted rate is at most the limit. Any additional time per byte is the host's
part, which does not change with the links.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
from byteprophet.job import Cluster, Costs, Host
from byteprophet.job.times import Int64Array
from byteprophet.network.namespaces import PAYLOAD_BURST_BYTES
from byteprophet.workload.as_job import limited_host

_Floats = npt.NDArray[np.float64]

_MOST = 1000  # periods; time and memory grow with the square of their number
_UNLIKE = 1.5  # periods whose bytes differ by this factor tell rate and delay apart
SMALL_NS = 2_000_000  # gloo's all-reduce of 64 bytes


def measure_links(
    began_ns: Int64Array,
    ended_ns: Int64Array,
    moved_bytes: _Floats,
    limits_bps: Sequence[int | None],
    steps: int,
) -> Cluster:
    """The cluster; times of collectives of shape (ranks, iterations, collectives), on one clock.

    ``moved_bytes``: bytes that each collective moves over every link, shape (collectives,).
    ``limits_bps``: the configured payload rates of the ranks' links; None: not known. ``steps``:
    the number of messages of a collective that follow one another.
    """
    ranks = len(began_ns)
    if ranks == 1:
        return Cluster((Host(),))
    if not moved_bytes.all():
        raise UserError("some collectives have no sizes: the recording does not contain them")
    if (ended_ns <= began_ns.max(axis=0)).all():
        raise UserError("collectives ended before all ranks began them: ranks' clocks differ")
    all_began_ns, all_ended_ns = began_ns.max(axis=0), ended_ns.max(axis=0)
    moved = np.broadcast_to(moved_bytes, all_began_ns.shape)
    periods = list(_busy_periods(all_began_ns.ravel(), all_ended_ns.ravel(), moved.ravel()))
    return _cluster(periods, limits_bps, ranks, steps, SMALL_NS)


def measure_mesh_links(
    operations: Sequence[Mapping[tuple[int, str], tuple[int, int, int]]],
    limits_bps: Sequence[int | None],
    steps: int = 2,
) -> Cluster:
    """The cluster of ranks that own equally much and send shards by ``native/exchange``.

    ``operations``: per rank, by iteration and name, the start, end and bytes of its reduce-scatters
    and all-gathers, on one clock. A rank's incoming bytes are in flight from when another rank has
    begun the operation until this rank has received all of them. If configured rates differ, only
    the slowest links are looked at, because ranks with faster ones wait for those.
    """
    ranks = len(operations)
    if ranks == 1:
        return Cluster((Host(),))
    known_bps = [limit_bps for limit_bps in limits_bps if limit_bps is not None]
    periods: list[_Period] = []
    most = _MOST // ranks  # so that those of each rank count
    for receiver, own in enumerate(operations):
        if len(known_bps) == ranks and known_bps[receiver] > min(known_bps):
            continue
        arriving = [
            (others[key][0], end_ns, size_bytes / ranks)
            for sender, others in enumerate(operations)
            for key, (_, end_ns, size_bytes) in own.items()
            if sender != receiver and key in others
        ]
        if not arriving:
            raise UserError(f"rank {receiver} has no collective in common with the others")
        began_ns, ended_ns, size_bytes = (
            np.array(values) for values in zip(*arriving, strict=True)
        )
        found = list(_busy_periods(began_ns, np.maximum(began_ns, ended_ns), size_bytes))
        periods += found[-most:]
    return _cluster(periods, limits_bps, ranks, steps)


def configured_mesh_links(limits_bps: Sequence[int | None]) -> Cluster:
    """The cluster of ranks that own unequal shards: links as they were configured.

    Both halves of different buckets then overlap on different directions of links, so that the
    times of operations do not tell what a byte takes. Raises ``UserError`` if a link had no limit.
    """
    known_bps = [limit_bps for limit_bps in limits_bps if limit_bps is not None]
    if len(known_bps) < len(limits_bps):
        raise UserError(
            "ranks own unequal shards, and not all links were limited: their rates cannot be "
            "measured; record the job with --bandwidth, or with equal owners"
        )
    return Cluster(tuple(map(limited_host, known_bps)))


class _Period(NamedTuple):
    """A time in which links were busy, after one in which they were ``idle_ns``."""

    size_bytes: float
    duration_ns: int
    idle_ns: float


def _cluster(
    periods: Sequence[_Period],
    limits_bps: Sequence[int | None],
    ranks: int,
    steps: int,
    assumed_ns: int = 0,
) -> Cluster:
    """Fit a cluster to ``periods``.

    ``assumed_ns``: the largest latency of a period where its bytes do not tell.
    """
    known_bps = tuple(limit_bps for limit_bps in limits_bps if limit_bps is not None)
    limited_ns = 8e9 / min(known_bps) if len(known_bps) == ranks else 0.0
    size_bytes, duration_ns, idle_ns = np.array(periods, np.float64).T
    if limited_ns:
        burst_bytes = np.minimum(PAYLOAD_BURST_BYTES, idle_ns / limited_ns)
        size_bytes = np.maximum(1.0, size_bytes - burst_bytes)
    ns_per_byte, latency_ns = _fit(size_bytes, duration_ns, limited_ns, assumed_ns)
    delay_ns = round(latency_ns / steps)
    if limited_ns:
        costs = Costs(delay_ns=delay_ns, host_ns_per_byte=ns_per_byte - limited_ns)
        return Cluster(tuple(map(limited_host, known_bps)), costs=costs)
    rate_bps = round(8e9 / ns_per_byte)
    return Cluster((Host(rate_bps, rate_bps),) * ranks, costs=Costs(delay_ns=delay_ns))


def _busy_periods(
    began_ns: Int64Array, ended_ns: Int64Array, moved_bytes: _Floats
) -> Iterator[_Period]:
    """The busy periods. Before the first one, links were idle for long."""
    order = np.argsort(began_ns, kind="stable")
    since_ns = until_ns = int(began_ns[order[0]])
    size_bytes, idle_ns = 0.0, math.inf
    for bucket in order.tolist():
        if began_ns[bucket] > until_ns:
            yield _Period(size_bytes, max(1, until_ns - since_ns), idle_ns)
            since_ns, size_bytes = int(began_ns[bucket]), 0.0
            idle_ns = since_ns - until_ns
        until_ns = max(until_ns, int(ended_ns[bucket]))
        size_bytes += moved_bytes[bucket]
    yield _Period(size_bytes, max(1, until_ns - since_ns), idle_ns)


def _fit(
    size_bytes: _Floats, duration_ns: _Floats, least_ns: float, assumed_ns: int
) -> tuple[float, float]:
    """The time of a byte, at least ``least_ns``, and a period's time beyond its bytes, both in ns.

    Robust against outliers: uses repeated medians (Siegel 1982) of the slopes between periods. Only
    periods whose bytes differ enough are compared, so that noise does not decide.
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
        assumed_ns = 0
    if assumed_ns and least_ns:
        beyond_ns = float(np.median(duration_ns - least_ns * size_bytes))
        latency_ns = min(float(assumed_ns), max(0.0, beyond_ns))
        ns_per_byte = float(np.median((duration_ns - latency_ns) / size_bytes))
        return max(least_ns, ns_per_byte), latency_ns
    # Weighted by bytes, because half of all periods may be short and carry hardly any bytes.
    each_ns = duration_ns / size_bytes
    order = np.argsort(each_ns)
    passed_bytes = np.cumsum(size_bytes[order])
    middle = np.searchsorted(passed_bytes, passed_bytes[-1] / 2)
    return max(least_ns, float(each_ns[order[middle]])), 0.0
