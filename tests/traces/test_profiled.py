"""Traces of torch.profiler: some are made here, and some come from others."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.traces.load import load_traces
from byteprophet.traces.result import replay_traces

from ..python_process import start_python
from ..thorough import THOROUGH

CHECKOUT = Path(__file__).parents[2]
WORKER = CHECKOUT / "experiments" / "traces_worker.py"
SAMPLES = CHECKOUT.parent / "shared" / "cases" / "traces"
ALLOWED = 0.033
"""Lumos' mean error of replays (MLSys 2025)."""


def _start(*arguments: str | Path) -> subprocess.Popen[str]:
    quiet = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    return start_python(WORKER, *arguments, **quiet)


def test_threads_that_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "fork.json"
    assert _start("fork", path).wait(timeout=200) == 0
    traces = load_traces([path])
    result = replay_traces(traces)
    assert result.error == pytest.approx(0, abs=ALLOWED)
    assert len(result.iterations) == 6
    waiting = [task for task in traces[0].tasks if task.waits]
    lanes = {(task.lane, traces[0].tasks[other].lane) for task in waiting for other in task.waits}
    assert len(traces[0].lanes) >= 2
    assert any((other, lane) in lanes for lane, other in lanes)  # for each other
    # The same work as without the waits, but not at the same time.
    assert replay_traces(traces, with_waits=False).replayed_ns < result.replayed_ns


def test_ranks_that_wait_for_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    paths = [folder / f"rank{rank}.json" for rank in range(2)]
    ranks = [_start("ddp", path, str(rank), tmp_path / "store") for rank, path in enumerate(paths)]
    assert [rank.wait(timeout=200) for rank in ranks] == [0, 0]
    result = replay_traces(load_traces([folder]))
    assert result.built.matched == 2 * len(result.iterations)  # buckets
    # How far the replay is off says how evenly a busy machine ran the ranks, so it is not held to
    # anything here: experiments/traces.py prints it.
    uses = result.use_of_time()
    assert uses["communication"] > 0
    assert uses["compute"] > 0


@pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"{SAMPLES} is not there")
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("hta-rank_non_gpu.json.gz", [1009]),
        ("hta-sampled_rank-0.json.gz", [551, 552]),
        pytest.param(
            "kineto-tb-2021-02-worker0.pt.trace.json.gz", [5, 6, 7, 8, 9, 10], marks=THOROUGH
        ),
    ],
)
def test_samples_of_others(name: str, steps: list[int]) -> None:
    result = replay_traces(load_traces([SAMPLES / name]))
    assert [one.number for one in result.iterations] == steps
    for one in result.iterations:
        assert one.error == pytest.approx(0, abs=ALLOWED)
    assert sum(result.use_of_time().values()) == pytest.approx(result.replayed_ns, rel=0.001)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"{SAMPLES} is not there")
def test_a_sample_without_launches() -> None:
    with pytest.raises(UserError, match="16 of 18 kernels and copies have no launch"):
        load_traces([SAMPLES / "hta-base.json.gz"])
