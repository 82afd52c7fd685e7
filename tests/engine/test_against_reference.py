"""The engine against the slow reference: the same times, to the nanosecond."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet import _core
from byteprophet.timeline.tables import TRANSFER

from ..thorough import examples
from .reference import Reference, SlowJob

TIMES = ("ready_ns", "sent_ns", "acked_ns", "pulled_ns")
BYTE_PER_NS = 8_000_000_000

# Few distinct values, so that things happen at one time.
durations = st.integers(0, 6).map(lambda units: 50 * units)
sizes = st.one_of(st.integers(0, 4).map(lambda units: 100 * units), st.integers(1, 2000))
rates = st.sampled_from([0, BYTE_PER_NS, BYTE_PER_NS // 2, 3 * BYTE_PER_NS // 7])


@st.composite
def jobs(draw: st.DrawFn) -> SlowJob:
    servers = draw(st.integers(1, 3))
    tensors = draw(st.integers(1, 5))
    partition = st.tuples(sizes, st.integers(0, servers - 1))
    backward_ns = draw(durations)
    stock = draw(st.integers(0, 4)) == 0
    return SlowJob(
        partitions=tuple(tuple(draw(st.lists(partition, max_size=3))) for _ in range(tensors)),
        ready_ns=tuple(draw(st.integers(0, 2)) * backward_ns // 2 for _ in range(tensors)),
        forward_ns=tuple(draw(durations) for _ in range(tensors)),
        backward_ns=backward_ns,
        iterations=draw(st.integers(1, 3)),
        worker_bps=tuple(draw(st.lists(rates, min_size=1, max_size=3))),
        server_bps=tuple(draw(rates) for _ in range(servers)),
        delay_ns=draw(durations),
        message_cost_ns=draw(st.sampled_from([0, 0, 7, 50])),
        sum_bps=draw(st.sampled_from([0, 0, BYTE_PER_NS, 3 * BYTE_PER_NS])),
        sum_threads=draw(st.integers(1, 2)),
        answer_by_priority=not stock and draw(st.booleans()),
        stock_transport=stock,
        barrier=draw(st.integers(0, 4)) == 0,
        known_profile=draw(st.booleans()),
    )


@st.composite
def schedulers(draw: st.DrawFn) -> tuple[str, dict[str, int]]:
    name = draw(st.sampled_from(_core.policy_names()))
    window = draw(st.sampled_from([1, 300, 1000, 100_000]))
    windows = {
        "p3": {"outstanding_messages": 1 + window % 4},
        "bytescheduler": {"credit_bytes": window},
        "prophet": {"window_max_bytes": window, "partition_bytes": min(window, 500)},
    }
    return name, windows.get(name, {})


@settings(max_examples=examples(50, 200))
@given(job=jobs(), scheduler=schedulers())
def test_same_times(job: SlowJob, scheduler: tuple[str, dict[str, int]]) -> None:
    name, chosen = scheduler
    arrays: dict[str, Any] = {
        field: np.array(value, dtype=np.int32 if field == "server" else np.int64)
        if isinstance(value, (list, tuple))
        else value
        for field, value in job.arrays().items()
    }
    result = _core.simulate(name, chosen, record=True, **arrays)
    workers = Reference(job, name, chosen).run()

    assert result["start_ns"].tolist() == [worker.starts for worker in workers]
    assert result["backward_start_ns"].tolist() == [worker.backward_starts for worker in workers]
    for raw, worker in zip(result["transfers"], workers, strict=True):
        records = raw.view(TRANSFER)
        times = {
            (int(record["iteration"]) - 1, int(record["key"])): [
                int(record[time]) for time in TIMES
            ]
            for record in records
        }
        assert times == worker.transfers
        assert len(times) == len(records)
        assert (np.diff(records["pulled_ns"]) >= 0).all()
