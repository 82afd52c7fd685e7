"""Replays and predictions of jobs on GPUs whose true times are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from byteprophet.traces.load import load_traces
from byteprophet.traces.result import replay_traces
from byteprophet.traces.retarget import Target, retarget

from .made_gpu import Job, write_profiles

JOBS = {
    "limited by the GPU": Job(),
    "limited by links": Job(all_reduce_us=3000),
    "limited by launches": Job(kernel_us=30, operator_us=100, all_reduce_us=200),
    "with records of waits": Job(layers=12, operator_us=150, sync_records=True),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
@pytest.mark.parametrize("recorded", ["one rank", "all ranks"])
def test_a_replay_takes_as_long_as_the_job(job: Job, recorded: str, tmp_path: Path) -> None:
    true_us = write_profiles(tmp_path, job)
    traces = load_traces([tmp_path if recorded == "all ranks" else tmp_path / "rank0.json"])
    result = replay_traces(traces)
    assert result.built.matched == (job.steps * job.layers // 2 if len(traces) > 1 else 0)
    replayed_us = [one.replayed_ns / 1000 for one in result.iterations]
    # The true times are those of the slowest rank, which need not be the recorded one.
    assert replayed_us == pytest.approx(true_us, rel=0.001 if len(traces) > 1 else 0.01)
    # Without waits of threads and streams for each other, the same tasks take a fraction of it.
    assert replay_traces(traces, with_waits=False).replayed_ns < 0.6 * result.replayed_ns
    assert sum(result.use_of_time().values()) == pytest.approx(result.replayed_ns, rel=0.02)


CHANGES = {
    "links half as fast": (Target(link_scale=0.5), lambda job: _with_reduces(job, 2)),
    "links six times slower": (Target(link_scale=1 / 6), lambda job: _with_reduces(job, 6)),
    "links four times as fast": (Target(link_scale=4), lambda job: _with_reduces(job, 1 / 4)),
    # A ring of 8 moves 7/8 of a tensor twice through each rank, one of 2 moves 1/2.
    "8 ranks": (Target(data_parallel=8), lambda job: _with_reduces(job, 7 / 4)),
    "kernels half as long": (
        Target(compute_scale=0.5),
        lambda job: replace(job, kernel_us=job.kernel_us / 2),
    ),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_prediction_is_near_the_changed_job(job: Job, change: str, tmp_path: Path) -> None:
    target, changed = CHANGES[change]
    write_profiles(tmp_path / "recorded", job)
    true_us = write_profiles(tmp_path / "changed", changed(job))
    traces = load_traces([tmp_path / "recorded"])
    result = replay_traces(traces, retarget(traces, target))
    assert result.replayed_ns / 1000 == pytest.approx(mean(true_us), rel=0.005)


FULL = Job(
    layers=40,
    steps=3,
    kernel_us=100,
    operator_us=30,
    all_reduce_us=300,
    reads_loss=False,
    queue=300,
    warm_up=12,
)
"""Nothing but the queue of launches holds up the host."""

QUEUES = {
    "limited by the GPU": FULL,
    "limited by links": replace(FULL, all_reduce_us=1200),
    "limited by launches with faster kernels": replace(FULL, kernel_us=40, all_reduce_us=60),
    "events take places": replace(FULL, queues_events=True, sync_records=True),
    "earlier kernels are not recorded": replace(
        FULL, all_reduce_us=100, keeps_backlog=False, steps=6
    ),
    "the profile begins with an empty queue": replace(FULL, warm_up=0, steps=6),
}

RATES = {
    "kernels half as long": (0.5, 1),
    "kernels twice as long": (2, 1),
    "links half as fast": (1, 0.5),
    "links twice as fast": (1, 2),
}


@pytest.mark.parametrize("job", QUEUES.values(), ids=QUEUES)
def test_a_full_queue_of_launches_gives_the_host_the_pace_of_the_gpu(
    job: Job, tmp_path: Path
) -> None:
    true_us = write_profiles(tmp_path / "recorded", job)
    traces = load_traces([tmp_path / "recorded"])
    recorded = replay_traces(traces)
    assert recorded.replayed_ns / 1000 == pytest.approx(mean(true_us), rel=0.001)
    assert recorded.built.unmatched == 0
    assert all(bool(trace.inferred_ns) is not job.keeps_backlog for trace in traces)
    for name, (compute, links) in RATES.items():
        changed = replace(
            job, kernel_us=job.kernel_us * compute, all_reduce_us=job.all_reduce_us / links
        )
        true_us = write_profiles(tmp_path / "changed", changed)
        target = Target(compute_scale=compute, link_scale=links)
        result = replay_traces(traces, retarget(traces, target))
        assert result.replayed_ns / 1000 == pytest.approx(mean(true_us), rel=0.033), name


def test_a_host_that_gets_ahead_is_caught_in_the_long_run(tmp_path: Path) -> None:
    """Its queue was nearly empty in the trace, and is not full at the trace's end."""
    job = replace(FULL, kernel_us=20, all_reduce_us=40, warm_up=30)
    write_profiles(tmp_path / "recorded", job)
    true_us = write_profiles(tmp_path / "changed", replace(job, kernel_us=40))
    traces = load_traces([tmp_path / "recorded"])
    recorded = replay_traces(traces)
    assert recorded.long_run_ns is not None
    assert recorded.long_run_ns == pytest.approx(recorded.replayed_ns, rel=0.01)
    result = replay_traces(traces, retarget(traces, Target(compute_scale=2)))
    assert result.long_run_ns is not None
    assert result.long_run_ns / 1000 == pytest.approx(mean(true_us), rel=0.033)
    assert result.replayed_ns < 0.8 * result.long_run_ns


def test_one_iteration_does_not_tell_the_long_run(tmp_path: Path) -> None:
    write_profiles(tmp_path, Job(steps=1))
    assert replay_traces(load_traces([tmp_path])).long_run_ns is None


def _with_reduces(job: Job, factor: float) -> Job:
    return replace(job, all_reduce_us=job.all_reduce_us * factor)
