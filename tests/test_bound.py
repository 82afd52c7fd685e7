"""The bound beside replays of drawn jobs: no strategy of any runtime is predicted to be faster."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet import schedulers
from byteprophet.bound import Ranks, all_reduce_bound_ns, bound_ns
from byteprophet.job import (
    Bucket,
    Cluster,
    Costs,
    Host,
    Job,
    Model,
    Parameter,
    Policy,
    Strategy,
    Times,
)
from byteprophet.job.compression import OneBit, RandomK, TopK
from byteprophet.job.routes import MESH, SERVERS, WAYS, Piece, Route
from byteprophet.job.staleness import with_staleness
from byteprophet.job.strategy import (
    BYTEPS,
    DDP,
    FSDP2,
    MIXED,
    OURS,
    WFBP,
    Compressed,
    Delay,
    with_compressed,
)
from byteprophet.measure.servers import Measured
from byteprophet.replay.predict import kind_of, predict
from byteprophet.replay.what_if import Changes
from byteprophet.strategy.explanation import explain
from byteprophet.strategy.local import local
from byteprophet.strategy.mixed import with_routes

from .thorough import examples

MS = 1_000_000
ITERATIONS = 8
SETTLED = 4
"""Iterations at the end, in which nothing is new any more."""

BURST_BYTES = 4_000
"""What links let pass at once: the smallest gradient. So nothing is left of it when iterations are
settled, though these wait for averages of up to three iterations before."""

KINDS = ("", "owners", "cast", "accumulated", "late", "compressed", "local")

sizes = st.sampled_from([4_000, 40_000, 400_000, 2_000_000])
times_ns = st.integers(0, 20).map(lambda tenths: tenths * MS // 2)
rates_bps = st.sampled_from([0, 200_000_000, 800_000_000, 3_000_000_000])


@st.composite
def jobs(draw: st.DrawFn, runtime: str) -> Job:
    """A job whose iterations are all alike, on any links, in any buckets."""
    ranks = draw(st.integers(2, 4))
    parameters = draw(st.integers(1, 5))
    shape = (ranks, ITERATIONS, parameters)

    def each(values: st.SearchStrategy[int]) -> np.ndarray:
        own = [[draw(values) for _ in range(parameters)] for _ in range(ranks)]
        return np.broadcast_to(np.array(own, np.int64)[:, None], shape)

    ready_ns = np.cumsum(each(times_ns)[..., ::-1], axis=2)[..., ::-1]
    rest_ns = np.array([draw(times_ns) for _ in range(ranks)])
    names = [f"p{place}.weight" for place in range(parameters)]
    model = Model(tuple(Parameter(name, draw(sizes)) for name in names))
    served = runtime in (BYTEPS, MIXED)
    burst_bytes = draw(st.sampled_from([0, BURST_BYTES]))
    rates = [draw(rates_bps) for _ in range(ranks)] if draw(st.booleans()) else None
    common_bps = draw(rates_bps)
    hosts = tuple(
        Host(rate_bps, rate_bps, burst_bytes) for rate_bps in rates or [common_bps] * ranks
    )
    servers = (Host(*[draw(rates_bps)] * 2, 0),) * draw(st.integers(1, 2)) if served else ()
    job = Job(
        model,
        Times(
            forward_ns=each(times_ns),
            ready_ns=ready_ns,
            backward_ns=np.broadcast_to(
                ready_ns[..., 0].max(axis=1, keepdims=True) + rest_ns[:, None], shape[:2]
            ),
            update_ns=each(st.integers(0, 2).map(lambda each: each * MS)),
            waits_for_all=draw(st.booleans()),
        ),
        Cluster(
            hosts,
            servers,
            Costs(
                delay_ns=draw(st.sampled_from([0, 200_000])),
                message_cost_ns=draw(st.sampled_from([0, 50_000])),
                cast_ns_per_byte=draw(st.sampled_from([0.0, 1.0])),
                keep_ns_per_byte=draw(st.sampled_from([0.0, 1.0])),
                answers_bytes=draw(st.sampled_from([0, 1 << 20])),
            ),
        ),
        Strategy(DDP),
    )
    if served:
        return _served(draw, job, runtime)
    if runtime in (DDP, WFBP, FSDP2):
        return replace(job, strategy=Strategy(runtime, _buckets(draw, job)))
    return _ours(draw, job, runtime)


def _buckets(draw: st.DrawFn, job: Job, sharded: bool = False) -> tuple[Bucket, ...]:
    """Gradients in the order of readiness, cut anywhere."""
    names = job.model.names[::-1]
    cuts = sorted({0, len(names), *draw(st.lists(st.integers(0, len(names)), max_size=3))})
    members = [names[a:b] for a, b in pairwise(cuts)]
    count = len(members)
    return tuple(
        Bucket(each, place, 2 * count - 1 - place, sharded) for place, each in enumerate(members)
    )


def _ours(draw: st.DrawFn, job: Job, runtime: str) -> Job:
    kind = draw(
        st.sampled_from(["", "owners", "cast", "accumulated", "late", "compressed", "local"])
    )
    sharded = runtime != "allreduce" and draw(st.booleans())
    strategy = Strategy(runtime, _buckets(draw, job, sharded))
    first = job.model.names[draw(st.integers(0, len(job.model) - 1))]
    if kind == "owners":
        weights = tuple(draw(st.integers(0, 3)) for _ in range(job.workers))
        strategy = replace(strategy, owners=weights if any(weights) else ())
    elif kind == "cast":
        strategy = replace(strategy, reduce_dtype="bf16")
    elif kind == "accumulated":
        strategy = replace(strategy, accumulation=draw(st.integers(2, 4)))
    elif kind == "late":
        strategy = with_staleness(strategy, [Delay(first, draw(st.integers(1, 2)))])
    elif kind == "compressed":
        how = draw(st.sampled_from([TopK(0.1), RandomK(0.1), OneBit()]))
        strategy = with_compressed(strategy, (Compressed((first,), how),))
    job = replace(job, strategy=strategy)
    return local(job, draw(st.integers(2, 5))) if kind == "local" else job


def _served(draw: st.DrawFn, job: Job, runtime: str) -> Job:
    name = draw(st.sampled_from(["fifo", "p3", "bytescheduler", "prophet"]))
    policy, partition_bytes = schedulers.resolve(name, {}, draw(st.sampled_from([65536, 1 << 20])))
    strategy = Strategy(BYTEPS, partition_bytes=partition_bytes)
    if draw(st.booleans()):
        strategy = replace(strategy, reduce_dtype="fp16")
    job = replace(job, strategy=strategy, policy=Policy(name, policy))
    return with_routes(job, _routes(draw, job), 0.5) if runtime == MIXED else job


def _routes(draw: st.DrawFn, job: Job) -> tuple[Route, ...]:
    """Gradients go one way or the other, or one piece each; the first one goes both ways."""
    routes = []
    for place, each in enumerate(job.model.parameters):
        ways = draw(st.sampled_from([(SERVERS,), (MESH,), WAYS])) if place else WAYS
        shares = {ways[0]: each.size_bytes}
        if len(ways) > 1:
            first = 4 * draw(st.integers(1, each.size_bytes // 4 - 1))
            shares = {ways[0]: first, ways[1]: each.size_bytes - first}
        pieces = tuple(Piece(size_bytes, way) for way, size_bytes in shares.items())
        routes.append(Route(each.name, pieces))
    return tuple(routes)


def test_ranks_need_not_be_in_step() -> None:
    """One rank computes 0.5 ms and has a link on which the gradient takes 0.64 ms either way."""
    ranks = Ranks(
        ready_ns=np.array([[500_000], [0]]),
        forward_ns=np.zeros((2, 1), np.int64),
        backward_ns=[500_000, 0],
        up_bps=[200_000_000, 0],
        down_bps=[200_000_000, 0],
        burst_bytes=[0, 0],
    )
    bound = all_reduce_bound_ns([16_000], ranks)
    there_ns, back_ns = 500_000 + 640_000, 640_000
    assert bound == (there_ns + back_ns) // 2


@pytest.mark.parametrize("runtime", [BYTEPS, MIXED, *OURS, DDP, WFBP, FSDP2])
@settings(max_examples=examples(30, 60), deadline=None)
@given(data=st.data())
def test_no_job_is_predicted_to_be_faster_than_its_bound(runtime: str, data: st.DataObject) -> None:
    job = data.draw(jobs(runtime))
    # Averages that are k steps late make iterations repeat after k + 1; the bound is of their mean.
    repeated = 1 + max((late.steps for late in job.strategy.staleness), default=0)
    iterations_ns = kind_of(job).iterations_ns(job)[-(SETTLED // repeated * repeated) :]
    assert bound_ns(job) <= iterations_ns.mean() + 1


@pytest.mark.parametrize("runtime", [BYTEPS, MIXED, *OURS, DDP])
@settings(max_examples=examples(10, 20), deadline=None)
@given(data=st.data())
def test_what_is_said_beside_a_prediction_is_not_above_it(
    runtime: str, data: st.DataObject
) -> None:
    """Iterations differ: the medians of parts are not those of one iteration.

    So ``strategy make --local-sgd`` once printed a bound above its prediction.
    """
    drawn = data.draw(jobs(runtime))
    factors = np.array([data.draw(st.integers(1, 8)) for _ in range(ITERATIONS)])
    times = replace(
        drawn.times,
        forward_ns=drawn.times.forward_ns * factors[:, None],
        ready_ns=drawn.times.ready_ns * factors[::-1, None],
        backward_ns=drawn.times.backward_ns * factors[::-1] + 1,
    )
    job = replace(drawn, times=times)
    played = kind_of(job).replay(job)
    begins_ns = played.replayed.start_ns[played.begin]
    ends_ns = played.replayed.end_ns[played.end]
    measured = Measured(job, np.concatenate([begins_ns, ends_ns[:, -1:]], axis=1))
    explained = explain(measured, job)
    assert explained.bound_ns <= explained.predicted.iteration_ns
    predicted = predict(measured, Changes())
    assert predicted.bound_ns <= predicted.median_ns
