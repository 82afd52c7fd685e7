"""iteration_bound_ns against an independent simulation of one iteration in the fluid limit.

The simulation is exact (fractions) and knows nothing of the formula. Workers are alike, so one is
simulated; a tensor's parameters are back at the moment its last byte is pushed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

BITS_PER_SECOND_OF_A_BYTE_PER_NS = 8_000_000_000


@dataclass(frozen=True)
class Job:
    """Lists are in forward order; times in ns from the start of backward, rates in bytes per ns."""

    sizes: Sequence[int]
    ready: Sequence[int]
    forward: Sequence[int]
    backward: int


def preemptive_completions(job: Job, order: Sequence[int], rate: Fraction) -> list[Fraction]:
    """When each tensor has been sent by a link that always serves the first ready one of ``order``.

    Event by event: the chosen tensor is served until it is done or another one is released.
    """
    left = [Fraction(size) for size in job.sizes]
    done: list[Fraction | None] = [None] * len(left)
    now = Fraction(0)
    while None in done:
        ready = [i for i in order if done[i] is None and job.ready[i] <= now]
        releases = [job.ready[i] for i in order if done[i] is None and job.ready[i] > now]
        if not ready:
            now = Fraction(min(releases))
            continue
        chosen = ready[0]
        end = now + left[chosen] / rate
        if releases and min(releases) < end:
            left[chosen] -= (min(releases) - now) * rate
            now = Fraction(min(releases))
        else:
            done[chosen] = now = end
    return [time for time in done if time is not None]


def blocking_completions(job: Job, order: Sequence[int], rate: Fraction) -> list[Fraction]:
    """The same for whole messages in exactly the order given, waiting for each to be ready."""
    done = [Fraction(0)] * len(job.sizes)
    now = Fraction(0)
    for i in order:
        now = max(now, Fraction(job.ready[i])) + job.sizes[i] / rate
        done[i] = now
    return done


def iteration(job: Job, completions: Sequence[Fraction]) -> Fraction:
    """The end of the forward pass that waits per layer."""
    now = Fraction(job.backward)
    for done, forward in zip(completions, job.forward, strict=True):
        now = max(now, done) + forward
    return now


def shared_server_completions(
    job: Job, workers: int, rate: Fraction, server_rate: Fraction
) -> list[Fraction]:
    """Every worker sends most urgent first; together they get at most ``server_rate``.

    Alike workers share evenly at every moment, so each link runs at the smaller of both rates.
    """
    share = min(rate, server_rate / workers)
    return preemptive_completions(job, range(len(job.sizes)), share)


# Few distinct values, so that ties, gaps and contention are common.
times = st.integers(0, 12)
bandwidths = st.sampled_from([1, 3, 7]).flatmap(
    lambda part: st.integers(1, 30).map(
        lambda times_more: times_more * BITS_PER_SECOND_OF_A_BYTE_PER_NS // (10 * part)
    )
)


@st.composite
def jobs(draw: st.DrawFn, most_tensors: int = 7) -> Job:
    count = draw(st.integers(0, most_tensors))

    def numbers(strategy: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(strategy, min_size=count, max_size=count))

    ready = numbers(times)
    return Job(
        sizes=numbers(st.integers(0, 20)),
        ready=ready,
        forward=numbers(times),
        backward=max([*ready, 0]) + draw(st.integers(0, 5)),
    )


def bound_ns(
    job: Job,
    bandwidth_bps: int | None,
    workers: int = 1,
    servers: int = 1,
    server_bandwidth_bps: int | None = None,
) -> int:
    return _core.iteration_bound_ns(
        job.sizes,
        job.ready,
        job.forward,
        backward_ns=job.backward,
        bandwidth_bps=bandwidth_bps,
        workers=workers,
        servers=servers,
        server_bandwidth_bps=server_bandwidth_bps,
    )


def bytes_per_ns(bandwidth_bps: int) -> Fraction:
    return Fraction(bandwidth_bps, BITS_PER_SECOND_OF_A_BYTE_PER_NS)


@settings(max_examples=500)
@given(job=jobs(), bandwidth_bps=bandwidths)
def test_equals_the_fluid_optimum_of_one_link(job: Job, bandwidth_bps: int) -> None:
    strict_priority = range(len(job.sizes))
    completions = preemptive_completions(job, strict_priority, bytes_per_ns(bandwidth_bps))
    assert bound_ns(job, bandwidth_bps) == math.floor(iteration(job, completions))


@settings(max_examples=60)
@given(job=jobs(most_tensors=4), bandwidth_bps=bandwidths)
def test_no_order_beats_it(job: Job, bandwidth_bps: int) -> None:
    """Strict priority is not taken on trust: all orders, preemptive and not, are tried."""
    rate = bytes_per_ns(bandwidth_bps)
    bound = bound_ns(job, bandwidth_bps)
    for order in permutations(range(len(job.sizes))):
        for complete in (preemptive_completions, blocking_completions):
            assert bound <= iteration(job, complete(job, order, rate))


@settings(max_examples=300)
@given(
    job=jobs(),
    bandwidth_bps=bandwidths,
    workers=st.integers(1, 4),
    servers=st.integers(1, 3),
    server_bandwidth_bps=bandwidths,
)
def test_is_never_above_the_optimum_with_shared_servers(
    job: Job, bandwidth_bps: int, workers: int, servers: int, server_bandwidth_bps: int
) -> None:
    server_rate = servers * bytes_per_ns(server_bandwidth_bps)
    completions = shared_server_completions(job, workers, bytes_per_ns(bandwidth_bps), server_rate)
    optimum = iteration(job, completions)
    bound = bound_ns(job, bandwidth_bps, workers, servers, server_bandwidth_bps)
    assert bound <= optimum
    assert bound >= bound_ns(job, bandwidth_bps)
    assert bound >= math.floor(workers * sum(job.sizes) / server_rate)


@given(job=jobs())
def test_without_a_bandwidth_it_is_the_compute_time(job: Job) -> None:
    assert bound_ns(job, None) == job.backward + sum(job.forward)


@given(job=jobs(), bandwidth_bps=bandwidths)
def test_more_bandwidth_never_raises_it(job: Job, bandwidth_bps: int) -> None:
    assert bound_ns(job, 2 * bandwidth_bps) <= bound_ns(job, bandwidth_bps)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ready_ns": [1, 2]}, "differ in length"),
        ({"size_bytes": [-1]}, "size_bytes has a negative entry"),
        ({"backward_ns": -1}, "backward_ns is negative"),
        ({"bandwidth_bps": 0}, "bandwidth_bps must be positive"),
        ({"server_bandwidth_bps": -1}, "server_bandwidth_bps must be positive"),
        ({"workers": 0}, "workers and servers must be between"),
        ({"size_bytes": [1 << 62]}, "add up to too much"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "size_bytes": [1],
        "ready_ns": [1],
        "forward_ns": [1],
        "backward_ns": 1,
        "bandwidth_bps": 1000,
        "workers": 1,
        "servers": 1,
    }
    assert _core.iteration_bound_ns(**arguments) > 0  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        _core.iteration_bound_ns(**(arguments | change))  # type: ignore[arg-type]
