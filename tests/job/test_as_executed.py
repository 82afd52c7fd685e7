"""Casting and accumulating as jobs execute them: times and sizes, against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet.bound import bound_ns
from byteprophet.graph import gloo_graph, mesh_graph
from byteprophet.job import Bucket, Cluster, Costs, Host, Job, Model, Parameter, Strategy, Times
from byteprophet.job.as_executed import as_executed
from byteprophet.replay import replay
from byteprophet.replay.predict import kind_of

MS = 1_000_000
SIZES = (400_000, 800_000, 200_000)
NAMES = ("a", "b", "c")
RATE_BPS = 800_000_000  # a byte takes 10 ns


def job(strategy: Strategy, costs: Costs | None = None, iterations: int = 5) -> Job:
    """Two ranks that are alike; gradients are ready in reverse order."""
    shape = (2, iterations, 3)
    return Job(
        Model(tuple(map(Parameter, NAMES, SIZES))),
        Times(
            forward_ns=np.broadcast_to([1 * MS, 2 * MS, 3 * MS], shape).astype(np.int64),
            ready_ns=np.broadcast_to([9 * MS, 5 * MS, 4 * MS], shape).astype(np.int64),
            backward_ns=np.full(shape[:2], 10 * MS, np.int64),
            update_ns=np.full(shape, 50_000, np.int64),
        ),
        Cluster((Host(RATE_BPS, RATE_BPS),) * 2, costs=costs or Costs()),
        strategy,
    )


def one_bucket(runtime: str = "allreduce", *, sharded: bool = False, **changes: object) -> Strategy:
    bucket = Bucket(("c", "b", "a"), 0, 1, sharded)
    return replace(Strategy(runtime, (bucket,)), **changes)


def test_casts_add_up_in_the_order_of_readiness() -> None:
    plain = job(one_bucket(reduce_dtype="bf16"), Costs(cast_ns_per_byte=2.0))
    times = as_executed(plain).times
    # c is cast first, then b, then a, whose backward waited for both.
    assert times.ready_ns[0, 0].tolist() == [
        9 * MS + 2 * sum(SIZES), 5 * MS + 2 * (200_000 + 800_000), 4 * MS + 2 * 200_000
    ]  # fmt: skip
    assert times.backward_ns[1, 3] == 10 * MS + 2 * sum(SIZES)
    assert times.update_ns[0, 1].tolist() == [50_000 + 2 * size for size in SIZES]
    assert np.array_equal(times.forward_ns, plain.times.forward_ns)
    again = as_executed(as_executed(plain))
    assert np.array_equal(again.times.ready_ns, times.ready_ns)


def test_a_job_without_changes_stays_as_it_is() -> None:
    recorded = job(one_bucket(reduce_dtype="bf16"))  # its times have the casts already
    assert as_executed(recorded) is recorded
    with_costs = job(one_bucket(), Costs(cast_ns_per_byte=2.0, keep_ns_per_byte=2.0))
    assert as_executed(with_costs) is with_costs


def test_steps_without_exchange_lie_between_the_first_forward_and_the_last_backward() -> None:
    costs = Costs(keep_ns_per_byte=1.0)
    times = as_executed(job(one_bucket(accumulation=3), costs)).times
    step_ns = 6 * MS + 10 * MS + sum(SIZES)
    assert times.forward_ns[0, 2].tolist() == [1 * MS, 2 * MS, 3 * MS + 2 * step_ns]
    assert times.ready_ns[0, 0, 2] == 4 * MS + 2 * 200_000  # added, and divided
    assert times.passes == 3
    uneven = job(one_bucket(accumulation=3))
    uneven.times.backward_ns[0, 1] += 4 * MS  # counts in both iterations before, and in its own
    late_ns = as_executed(uneven).times.forward_ns[0, :, 2] - (3 * MS + 2 * 16 * MS)
    assert late_ns.tolist() == [4 * MS, 0, 0, 0, 4 * MS]
    recorded = replace(job(one_bucket(accumulation=2)), times=times)
    with pytest.raises(ValueError, match="times of 3 passes for 2 steps"):
        as_executed(recorded)


@pytest.mark.parametrize(
    ("strategy", "share"),
    [
        (one_bucket(), 1.0),
        (one_bucket(reduce_dtype="bf16"), 0.5),
        (one_bucket("dear", sharded=True), 1.0),
        (one_bucket("dear", sharded=True, reduce_dtype="fp16"), 0.75),  # parameters stay whole
    ],
)
def test_bytes_on_the_wire(strategy: Strategy, share: float) -> None:
    built = mesh_graph.build(job(strategy, iterations=4))
    sent_bytes = replay(built.graph).link_bytes
    # With two ranks, each sends half of everything in each half of an all-reduce.
    assert sent_bytes.tolist() == [4 * share * sum(SIZES)] * 4


def test_bytes_of_distributed_data_parallel() -> None:
    plain, cast = (
        replay(gloo_graph.build(job(one_bucket("ddp", reduce_dtype=each))).graph).link_bytes.sum()
        for each in ("", "bf16")
    )
    assert plain == 2 * cast


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_an_accumulated_step_takes_its_share_of_the_exchange(steps: int) -> None:
    """One bucket: nothing hides its all-reduce, which comes once in so many steps."""
    one = job(one_bucket(accumulation=steps))
    step_ns = 6 * MS + 10 * MS
    exchange_ns = 10 * sum(SIZES) - 1 * MS  # less the rest of backward, after the last gradient
    update_ns = 50_000 * 3
    kind = kind_of(one)
    expected_ns = step_ns + (exchange_ns + update_ns) / steps
    assert kind.iterations_ns(one)[2:] == pytest.approx(expected_ns, rel=0.02)
    assert bound_ns(one) <= kind.iterations_ns(one)[2:].min()
    assert kind.daydream_ns(one) <= step_ns + exchange_ns + update_ns


def test_the_bound_is_that_of_what_travels() -> None:
    bounds = [bound_ns(job(one_bucket(reduce_dtype=each))) for each in ("", "bf16")]
    # The best order: a goes first as soon as it is ready, after 9 ms, and c gives way to b. Then b
    # has come after 17 ms, and b and c take 5. Half as many bytes: a has come after 11 ms.
    assert bounds == [17 * MS + 5 * MS, 11 * MS + 6 * MS]
