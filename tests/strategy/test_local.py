"""Local SGD, predicted: closed forms, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet.bound import bound_ns
from byteprophet.errors import UserError
from byteprophet.job import Bucket, Cluster, Host, Job, Strategy
from byteprophet.job.as_executed import as_executed
from byteprophet.job.strategy_file import Used
from byteprophet.replay.all_reduce import ALL_REDUCE
from byteprophet.replay.under import under
from byteprophet.strategy.compressed import compressed
from byteprophet.strategy.delayed import delayed
from byteprophet.strategy.local import local

from .jobs import mesh_job, one_gradient, served_job

MS = 1_000_000
RATE_BPS = 800_000_000  # a byte takes 10 ns


def one(sharded: bool = False) -> Job:
    """Two ranks, one gradient of 8 MB: 3 ms forward, 10 ms backward, 2 ms update."""
    update_ns = 1 * MS if sharded else 2 * MS  # of a rank's share
    return Job(
        *one_gradient(2, update_ns),
        Cluster((Host(RATE_BPS, RATE_BPS),) * 2),
        Strategy("dear", (Bucket(("large",), 0, 1, sharded),)),
    )


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("steps", [2, 8])
def test_an_exchange_is_shared_by_steps(steps: int, sharded: bool) -> None:
    job = local(one(sharded), steps)
    assert not job.strategy.buckets[0].sharded
    # Every rank updates everything, in every step. 8 MB, in two halves, take 80 ms.
    expected_ns = (steps * (3 + 10 + 2) + 80) * MS // steps
    (*_, last_ns) = ALL_REDUCE.iterations_ns(job)
    assert last_ns == pytest.approx(expected_ns, abs=20)
    assert bound_ns(job) == pytest.approx(expected_ns, abs=20)
    assert ALL_REDUCE.daydream_ns(job) == pytest.approx(expected_ns, abs=20)
    executed = as_executed(job)
    assert as_executed(executed) is executed


def test_less_often_is_faster_and_a_file_says_the_same() -> None:
    base = mesh_job([RATE_BPS // 2] * 4, "dear")
    times_ns = []
    for steps in (2, 4, 16):
        job = local(base, steps)
        times_ns.append(int(np.median(ALL_REDUCE.iterations_ns(job)[2:])))
        assert under(base, Used(job.model, job.strategy, 0), "FILE").strategy == job.strategy
    assert times_ns == sorted(times_ns, reverse=True)
    assert local(base, None) is base


def test_what_is_refused() -> None:
    job = one()
    with pytest.raises(UserError, match="--local-sgd 1: must be a number of steps from 2 to 1024"):
        local(job, 1)
    with pytest.raises(UserError, match="--local-sgd: byteps averages no parameters; allreduce"):
        local(served_job([RATE_BPS] * 2, [RATE_BPS]), 4)
    base = mesh_job([RATE_BPS] * 2)
    cast = replace(base, strategy=replace(base.strategy, reduce_dtype="bf16"))
    others = (cast, compressed(base, ["large=onebit"], "--compress"), delayed(base, ["large=1"]))
    for other in others:
        with pytest.raises(UserError, match="no gradients are averaged, so they cannot be cast"):
            local(other, 4)
