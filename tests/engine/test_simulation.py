"""Simulated jobs as Python sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from byteprophet import engine, schedulers
from byteprophet.bound import bound_ns
from byteprophet.engine.simulation import ITERATIONS, WARMUP_ITERATIONS
from byteprophet.errors import UserError
from byteprophet.job import Costs, Job
from byteprophet.job.partitions import PAGE_BYTES, partitions_of, server_of
from byteprophet.timeline.tables import tensor_of
from byteprophet.workload import Tensor, Workload

MS = 1_000_000
FREE = Costs(delay_ns=0, message_cost_ns=0)
WORKLOAD = Workload(
    "three",
    8,
    (
        Tensor("first", 400_000, 10 * MS, 20 * MS),
        Tensor("middle", 4_000_000, 30 * MS, 40 * MS),
        Tensor("last", 40, 5 * MS, 10 * MS),
    ),
)
GBIT = 10**9


def test_one_tensor_takes_what_it_takes() -> None:
    one = Workload("one", 1, (Tensor("only", 100 * PAGE_BYTES, 5 * MS, 10 * MS),))
    costs = Costs(delay_ns=MS, message_cost_ns=0)
    job = engine.paced_job(
        one, "fifo", partition_bytes=100 * PAGE_BYTES, bandwidth_bps=GBIT, costs=costs
    )
    way_ns = 100 * PAGE_BYTES * 8e9 / (GBIT * 0.9564)
    expected_ns = 15 * MS + 2 * (way_ns + MS)
    assert engine.simulate(job).median_ns == pytest.approx(expected_ns, abs=4)


def test_tensors_are_cut_as_byteps_cuts_them() -> None:
    parts = partitions_of(tuple(tensor.size_bytes for tensor in WORKLOAD.tensors), 1_000_000, 1)
    page_bound = 245 * PAGE_BYTES  # 1,003,520
    assert parts.first.tolist() == [0, 1, 5, 6]
    last_of_middle = 4_000_000 - 3 * page_bound
    assert parts.size_bytes.tolist() == [400_000, *[page_bound] * 3, last_of_middle, 40]
    assert WORKLOAD.ready_ns() == (70 * MS, 50 * MS, 10 * MS)


def test_every_server_has_its_share_of_the_keys() -> None:
    # djb2 of "65537", by hand: 5381 * 33 + ord("6") and so on.
    value = 5381
    for digit in "65537":
        value = value * 33 + ord(digit)
    assert server_of(65537, 3) == value % 3
    counts = np.bincount([server_of(tensor << 16, 3) for tensor in range(300)], minlength=3)
    assert counts.min() > 50


@pytest.mark.parametrize("scheduler", schedulers.names)
def test_no_schedule_is_below_the_bound(scheduler: str) -> None:
    for bandwidth_bps in (GBIT // 5, GBIT, None):
        job = engine.paced_job(WORKLOAD, scheduler, bandwidth_bps=bandwidth_bps, servers=2)
        run = engine.simulate(job)
        assert run.iteration_ns.shape == (ITERATIONS,)
        assert run.bound_ratio >= 1
        assert (run.utilisation <= 1).all()
        updates = ITERATIONS + WARMUP_ITERATIONS
        assert (run.link_bytes[:, : job.workers] == updates * WORKLOAD.size_bytes).all()


def test_costs_and_slow_workers_cost() -> None:
    def slow(scheduler: str = "prophet", costs: Costs = FREE, **other: Any) -> Job:
        return engine.paced_job(WORKLOAD, scheduler, bandwidth_bps=GBIT // 10, costs=costs, **other)

    base = slow()
    free_ns = engine.simulate(base).median_ns
    slow_worker = slow(worker_bandwidth_bps={1: GBIT // 60})
    for worse in (
        slow(costs=replace(FREE, delay_ns=2 * MS)),
        slow(costs=replace(FREE, message_cost_ns=MS)),
        slow(costs=replace(FREE, sum_ns_per_byte=80.0, sum_threads=1)),
        slow_worker,
        slow(server_bandwidth_bps=GBIT // 10),
        slow("stock"),
    ):
        assert engine.simulate(worse).median_ns > free_ns + 3 * MS
    assert bound_ns(slow_worker) > bound_ns(base)


def test_records_are_of_the_jobs_own_transfers() -> None:
    job = engine.paced_job(WORKLOAD, "p3", bandwidth_bps=GBIT)
    run = engine.simulate(job, record=True)
    size_bytes = schedulers.resolve("p3", {})[1]
    partitions = len(partitions_of(job.model.sizes_bytes, size_bytes, 1).size_bytes)
    updates = ITERATIONS + WARMUP_ITERATIONS
    assert [len(transfers) for transfers in run.transfers] == [partitions * updates] * job.workers
    for worker, transfers in enumerate(run.transfers):
        assert sorted(set(transfers["iteration"])) == list(range(1, updates + 1))
        assert transfers["size_bytes"].sum() == updates * WORKLOAD.size_bytes
        backward_ns = run.backward_start_ns[worker][transfers["iteration"] - 1]
        ready_ns = np.array(WORKLOAD.ready_ns())[tensor_of(transfers)]
        assert (transfers["ready_ns"] == backward_ns + ready_ns).all()
    assert engine.simulate(job).start_ns.tolist() == run.start_ns.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scheduler": "nobody"}, "nobody"),
        ({"settings": {"credit": 1}}, "credit"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"workers": 2000}, "1 to 1024 workers"),
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"worker_bandwidth_bps": {2: GBIT}}, "there is no worker 2"),
        ({"bandwidth_bps": 100}, "a bandwidth must be"),
        ({"costs": Costs(delay_ns=-1)}, "times must be"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    iterations = change.pop("iterations", 4)
    with pytest.raises(UserError, match=message):
        engine.simulate(
            engine.paced_job(WORKLOAD, **{"scheduler": "p3", **change}), iterations=iterations
        )
