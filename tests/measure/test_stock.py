"""A job of "stock" is measured without records of its transfers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.graph.ps_graph import build
from byteprophet.measure.servers import measure
from byteprophet.replay import replay
from byteprophet.timeline.tables import SERVED_TABLE, SPANS, Kind

from .recorded_replay import config_of, record
from .test_servers import LINK_BPS, a_job


@pytest.mark.parametrize("servers", [1, 2])
def test_a_job_of_stock_is_measured_as_it_was(servers: int) -> None:
    job = a_job("stock", servers)
    recorded, _, _ = record(job)
    limited = {"bandwidth_bps": round(LINK_BPS / 0.9564)}
    measured = measure(recorded, {**config_of(job), **limited})
    found = measured.job
    assert (found.model.names, found.model.sizes_bytes) == (job.model.names, job.model.sizes_bytes)
    assert found.strategy.partition_bytes == job.strategy.partition_bytes
    rates_bps = [host.up_bps for host in found.cluster.workers]
    assert rates_bps == pytest.approx([LINK_BPS] * 3, rel=1e-6)
    assert found.cluster.costs.request_lags_ns == ()
    for name in ("forward_ns", "ready_ns"):
        was, is_found = getattr(job.times, name), getattr(found.times, name)
        assert np.array_equal(is_found, was)
    # All updates of a step are one stretch of time, shared out by size.
    took_ns = found.times.update_ns.sum(axis=2)
    assert np.allclose(took_ns, job.times.update_ns.sum(axis=2), atol=len(job.model.names))
    again = build(found)
    again_ns = np.diff(replay(again.graph).start_ns[again.forward[..., 0]], axis=1).max(axis=0)
    error = np.median(again_ns[2:]) / np.median(measured.iteration_ns[2:-1]) - 1
    assert abs(error) < 0.02


def test_gradients_of_a_burst_are_ready_with_the_one_that_hands_them_over() -> None:
    job = a_job("stock", iterations=2)
    in_order = replace(job.times, ready_ns=-np.sort(-job.times.ready_ns, axis=2))
    job = replace(job, times=in_order)
    recorded, _, _ = record(job)
    last, before = len(job.model) - 1, len(job.model) - 2  # backward makes the last one first
    for index, events in enumerate(recorded):
        if events.table is SPANS:
            rows = events.rows.copy()
            backward = rows["kind"] == Kind.BACKWARD
            rows["size_bytes"][backward & (rows["name"] == before)] += job.model.sizes_bytes[last]
            rows["size_bytes"][backward & (rows["name"] == last)] = 0
            recorded[index] = replace(events, rows=rows)
    ready_ns = measure(recorded, config_of(job)).job.times.ready_ns
    assert np.array_equal(ready_ns[..., before], job.times.ready_ns[..., before])
    assert np.array_equal(ready_ns[..., last], ready_ns[..., before])


def test_gradients_may_arrive_when_the_next_iteration_has_begun() -> None:
    """A step of our front waits for nothing: under stock, too."""
    job = a_job("stock", iterations=8)
    recorded, _, _ = record(job)
    for index, events in enumerate(recorded):
        if events.table is not SPANS:
            continue
        rows = events.rows.copy()
        backward, whole = rows["kind"] == Kind.BACKWARD, rows["kind"] == Kind.ITERATION
        for number in np.unique(rows["iteration"][whole]).tolist():
            here = rows["iteration"] == number
            step_ns = rows["end_ns"][backward & here].max()
            rows["end_ns"][whole & here] = step_ns
            rows["begin_ns"][whole & (rows["iteration"] == number + 1)] = step_ns
        recorded[index] = replace(events, rows=rows)
    assert np.array_equal(measure(recorded, config_of(job)).job.times.ready_ns, job.times.ready_ns)


def test_what_cannot_be_told_apart_is_refused() -> None:
    job = a_job("stock", iterations=2)
    recorded, _, _ = record(job)
    without = [events for events in recorded if events.table is not SERVED_TABLE]
    with pytest.raises(UserError, match="servers recorded nothing"):
        measure(without, config_of(job))
    fewer, other = list(recorded), list(recorded)
    for index, events in enumerate(recorded):
        if events.table is SPANS:
            rows = events.rows
            backward = rows["kind"] == Kind.BACKWARD
            fewer[index] = replace(events, rows=rows[~(backward & (rows["name"] == 3))])
            changed = rows.copy()
            changed["size_bytes"][backward] += 4
            other[index] = replace(events, rows=changed)
    with pytest.raises(UserError, match=r"servers summed 62 tensors .* but spans have 61"):
        measure(fewer, config_of(job))
    with pytest.raises(UserError, match="in iteration 1 servers summed other sizes"):
        measure(other, config_of(job))
