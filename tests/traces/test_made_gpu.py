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


def _with_reduces(job: Job, factor: float) -> Job:
    return replace(job, all_reduce_us=job.all_reduce_us * factor)
