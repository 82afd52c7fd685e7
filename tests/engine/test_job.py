"""Simulated jobs as Python sees them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet import engine, schedulers
from byteprophet.engine.layout import PAGE_BYTES, layout, server_of
from byteprophet.errors import UserError
from byteprophet.network import payload_bps
from byteprophet.timeline.tables import tensor_of
from byteprophet.workload import Tensor, Workload

MS = 1_000_000
FREE = engine.Costs(delay_ns=0, message_cost_ns=0)
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
    costs = engine.Costs(delay_ns=MS, message_cost_ns=0)
    job = engine.SimulatedJob(
        one, "fifo", partition_bytes=100 * PAGE_BYTES, bandwidth_bps=GBIT, costs=costs
    )
    way_ns = 100 * PAGE_BYTES * 8e9 / (GBIT * 0.9564)
    expected_ns = 15 * MS + 2 * (way_ns + MS)
    assert engine.simulate(job).median_ns == pytest.approx(expected_ns, abs=4)


def test_tensors_are_cut_as_byteps_cuts_them() -> None:
    arrays = layout(WORKLOAD, 1_000_000, 1)
    page_bound = 245 * PAGE_BYTES  # 1,003,520
    assert arrays.first_partition.tolist() == [0, 1, 5, 6]
    last_of_middle = 4_000_000 - 3 * page_bound
    assert arrays.size_bytes.tolist() == [400_000, *[page_bound] * 3, last_of_middle, 40]
    assert arrays.ready_ns.tolist() == [70 * MS, 50 * MS, 10 * MS]


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
        job = engine.SimulatedJob(WORKLOAD, scheduler, bandwidth_bps=bandwidth_bps, servers=2)
        run = engine.simulate(job)
        assert run.iteration_ns.shape == (job.iterations,)
        assert run.bound_ratio >= 1
        assert (run.utilisation <= 1).all()
        updates = job.iterations + job.warmup_iterations
        assert (run.link_bytes[:, : job.workers] == updates * WORKLOAD.size_bytes).all()


def test_costs_and_slow_workers_cost() -> None:
    base = engine.SimulatedJob(WORKLOAD, "prophet", bandwidth_bps=GBIT // 10, costs=FREE)
    free_ns = engine.simulate(base).median_ns
    for worse in (
        replace(base, costs=replace(FREE, delay_ns=2 * MS)),
        replace(base, costs=replace(FREE, message_cost_ns=MS)),
        replace(base, costs=replace(FREE, sum_bps=GBIT // 10, sum_threads=1)),
        replace(base, worker_bandwidth_bps={1: GBIT // 60}),
        replace(base, server_bandwidth_bps=GBIT // 10),
        replace(base, scheduler="stock"),
    ):
        assert engine.simulate(worse).median_ns > free_ns + 3 * MS
    assert replace(base, worker_bandwidth_bps={1: GBIT // 60}).bound_ns > base.bound_ns


def test_records_are_of_the_jobs_own_transfers() -> None:
    job = engine.SimulatedJob(WORKLOAD, "p3", bandwidth_bps=GBIT, record=True)
    run = engine.simulate(job)
    partitions = len(layout(WORKLOAD, schedulers.resolve("p3", {})[1], 1).size_bytes)
    updates = job.iterations + job.warmup_iterations
    assert [len(transfers) for transfers in run.transfers] == [partitions * updates] * job.workers
    for worker, transfers in enumerate(run.transfers):
        assert sorted(set(transfers["iteration"])) == list(range(1, updates + 1))
        assert transfers["size_bytes"].sum() == updates * WORKLOAD.size_bytes
        backward_ns = run.backward_start_ns[worker][transfers["iteration"] - 1]
        ready_ns = np.array(WORKLOAD.ready_ns())[tensor_of(transfers)]
        assert (transfers["ready_ns"] == backward_ns + ready_ns).all()
    assert engine.simulate(replace(job, record=False)).start_ns.tolist() == run.start_ns.tolist()


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
        ({"costs": engine.Costs(delay_ns=-1)}, "times must be"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    job = engine.SimulatedJob(WORKLOAD, "p3")
    with pytest.raises(UserError, match=message):
        engine.simulate(replace(job, **change))  # type: ignore[arg-type]


def test_payload_of_a_link() -> None:
    assert payload_bps(None) is None
    assert payload_bps(GBIT) == 956_400_000
