"""``record``: training without BytePS, alone and under DistributedDataParallel."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import byteprophet.torch as bps
from byteprophet.errors import UserError
from byteprophet.job.strategy_file import read_strategy
from byteprophet.measure.all_reduce import measure_all_reduce
from byteprophet.measure.waits import waits_for_all
from byteprophet.session import process
from byteprophet.timeline.events import Events
from byteprophet.timeline.read_events import load_events
from byteprophet.timeline.tables import ALL_AVERAGES, Kind, Rows
from byteprophet.torch.ddp import models
from byteprophet.torch.live_fronts import live_fronts
from byteprophet.torch.record import record_unasked

from ...python_process import run_python, start_python

recorder = sys.modules["byteprophet.torch.record"]  # hidden by the function of this name
WORKER = Path(__file__).with_name("ddp_worker.py")


def of(events: Events, kind: Kind, iteration: int | None = None) -> list[tuple[str, Rows]]:
    """Names and rows, in the order of the file."""
    return [
        (events.names[row["name"]], row)
        for row in events.rows
        if row["kind"] == kind and iteration in (None, row["iteration"])
    ]


def names(events: Events, kind: Kind, iteration: int) -> list[str]:
    return [name for name, _ in of(events, kind, iteration)]


def train_job(folder: Path, size: int, record: bool) -> set[str]:
    """The hashes of all ranks' parameters."""
    folder.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BYTE")}
    directory = str(folder) if record else ""
    processes = [
        start_python(
            WORKER, rank, size, folder / "meet", directory, env=environment, stdout=subprocess.PIPE
        )
        for rank in range(size)
    ]
    hashes = {process.communicate(timeout=200)[0] for process in processes}
    assert [process.returncode for process in processes] == [0] * size
    return hashes


@pytest.mark.job
@pytest.mark.parametrize("size", [2, 3])
def test_distributed_data_parallel(tmp_path: Path, size: int) -> None:
    recorded = train_job(tmp_path / "recorded", size, record=True)
    assert recorded == train_job(tmp_path / "not", size, record=False)
    assert len(recorded) == 1
    layers = [("0", 64 * 700 + 700), ("2", 700 * 700 + 700), ("4", 700 * 7 + 7)]
    parameters = [f"{layer}.{part}" for layer, _ in layers for part in ("weight", "bias")]
    for rank in range(size):
        folder = tmp_path / "recorded" / "events"
        events = load_events(folder / f"spans-worker-{rank}.arrows")
        assert (events.origin.rank, events.whole, events.lost) == (rank, True, 0)
        windowed = load_events(folder / f"spans-worker-{rank}~2.arrows")
        assert set(windowed.rows["iteration"].tolist()) == {2, 3}
        for recording, iterations in ((events, range(1, 7)), (windowed, (2, 3))):
            whole = {
                row["iteration"]: (row["begin_ns"], row["end_ns"])
                for _, row in of(recording, Kind.ITERATION)
            }
            assert list(whole) == list(iterations)
            for iteration in iterations:
                assert names(recording, Kind.FORWARD, iteration) == [name for name, _ in layers]
                assert sorted(names(recording, Kind.BACKWARD, iteration)) == sorted(parameters)
                assert names(recording, Kind.UPDATE, iteration) == ["optimizer"]
                ((_, wait),) = of(recording, Kind.WAIT, iteration)
                reduced = of(recording, Kind.COLLECTIVE, iteration)
                assert wait["begin_ns"] == max(row["begin_ns"] for _, row in reduced)
                assert wait["end_ns"] == max(row["end_ns"] for _, row in reduced)
                moved = sum(int(row["size_bytes"]) for _, row in reduced)
                assert moved == 4 * sum(elements for _, elements in layers)
                buckets = 1 if recording is events and iteration == 1 else 2  # 1: not yet rebuilt
                assert len({name for name, _ in reduced}) == len(reduced) >= buckets
                begin_ns, end_ns = whole[iteration]
                rows = recording.rows[recording.rows["iteration"] == iteration]
                assert begin_ns <= rows["begin_ns"].min()
                assert rows["end_ns"].max() == end_ns
        lanes = {
            name: {int(row["lane"]) for n, row in of(events, Kind.COLLECTIVE) if n == name}
            for name, _ in of(events, Kind.COLLECTIVE)
        }
        assert len(set().union(*lanes.values())) == len(lanes)  # they overlap: one lane each
    config = {"workers": size, "local_ranks": 1, "steps": [], "worker_bandwidth_bps": {}}
    job, _ = measure_all_reduce(
        [load_events(folder / f"spans-worker-{rank}.arrows") for rank in range(size)],
        config,
        None,
    )
    assert job.model.names == tuple(name for name, _ in layers)
    assert job.model.sizes_bytes == tuple(4 * elements for _, elements in layers)
    bucketed = [name for bucket in job.strategy.buckets for name in bucket.parameters]
    assert sorted(bucketed) == sorted(job.model.names)
    used = read_strategy(tmp_path / "recorded")
    assert used is not None
    assert used.since == 2
    assert [list(bucket.parameters) for bucket in used.strategy.buckets] == [
        ["4.bias", "4.weight", "2.bias", "2.weight"],
        ["0.bias", "0.weight"],
    ]
    exact, _ = measure_all_reduce(
        [load_events(folder / f"spans-worker-{rank}.arrows") for rank in range(size)], config, used
    )
    assert exact.model.names == tuple(parameters)
    assert exact.model.size_bytes == job.model.size_bytes
    assert exact.strategy == used.strategy
    assert not exact.strategy.fixed
    assert exact.iterations == 5
    assert 4 <= job.iterations <= 6  # those with the buckets that stay
    assert job.times.between_ns is None
    accumulated = [load_events(folder / f"spans-worker-{rank}~3.arrows") for rank in range(size)]
    for iteration in range(1, 5):
        assert names(accumulated[0], Kind.FORWARD, iteration) == 3 * [name for name, _ in layers]
        assert sorted(names(accumulated[0], Kind.BACKWARD, iteration)) == sorted(3 * parameters)
        assert len(of(accumulated[0], Kind.COLLECTIVE, iteration)) == 2
    held, start_ns = measure_all_reduce(accumulated, config, None)
    assert (held.model, held.iterations) == (job.model, 4)
    between_ns = held.times.between_ns
    assert between_ns is not None
    assert (between_ns > 0).all()
    assert (held.times.forward_ns[..., -1] > between_ns).all()
    worked_ns = held.times.forward_ns.sum(axis=2) + held.times.backward_ns
    assert (worked_ns <= np.diff(start_ns)).all()
    clipped = [load_events(folder / f"spans-worker-{rank}~4.arrows") for rank in range(size)]
    assert names(clipped[0], Kind.WAIT, 2) == ["all gradients", ALL_AVERAGES]
    waiting, _ = measure_all_reduce(clipped, config, None)
    assert waiting.times.waits_for_all
    assert not held.times.waits_for_all


def test_what_needs_all_averages_is_recorded(tmp_path: Path) -> None:
    """Scaling does, and clipping, through a name from before the recording, too."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    off = torch.amp.GradScaler("cpu", enabled=False)
    with bps.record(model, tmp_path):
        for needs in (
            lambda: None,
            lambda: off.unscale_(optimizer),
            lambda: scaler.unscale_(optimizer),
            lambda: clip_grad_norm_(model.parameters(), 1.0),
            lambda: clip_grad_value_(model.parameters(), 1.0),
        ):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 3)).sum()).backward()
            needs()
            optimizer.step()
    events = load_events(tmp_path / "events" / "spans-worker-0.arrows")
    assert [row["iteration"] for _, row in of(events, Kind.WAIT)] == [3, 4, 5]
    assert {name for name, _ in of(events, Kind.WAIT)} == {ALL_AVERAGES}
    assert waits_for_all(events, [3, 4, 5])
    assert waits_for_all(events, range(1, 6))
    assert not waits_for_all(events, range(4))


def test_started_and_stopped_by_hand(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    before = (dict(vars(model)["_forward_hooks"]), dict(vars(model)["_forward_pre_hooks"]))
    record = bps.record(model, tmp_path)
    model(torch.ones(1, 3)).sum().backward()
    for _ in range(2):
        record.start()
        record.start()
        model(torch.ones(1, 3)).sum().backward()
        with torch.no_grad():
            model(torch.ones(1, 3))
        record.stop()
        record.stop()
        model(torch.ones(1, 3)).sum().backward()
    assert (vars(model)["_forward_hooks"], vars(model)["_forward_pre_hooks"]) == before
    for name in ("spans-worker-0", "spans-worker-0~2"):
        events = load_events(tmp_path / "events" / f"{name}.arrows")
        kinds = [Kind(kind) for kind in events.rows["kind"].tolist()]
        assert kinds == [Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD, Kind.ITERATION]
        assert names(events, Kind.FORWARD, 1) == ["Linear"]


def test_the_job_says_which_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPROPHET_RUN", str(tmp_path))
    monkeypatch.setenv("BYTEPROPHET_RECORD_STEPS", "2:4")
    model = nn.Linear(3, 2)
    with bps.record(model):
        for _ in range(5):
            model(torch.ones(1, 3)).sum().backward()
    events = load_events(tmp_path / "events" / "spans-worker-0.arrows")
    assert set(events.rows["iteration"].tolist()) == {2, 3}


def test_what_cannot_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BYTEPROPHET_RUN", raising=False)
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="give a directory"):
        bps.record(model)
    with pytest.raises(UserError, match="steps=5:5: must be FIRST:STOP"):
        bps.record(model, tmp_path, steps=(5, 5))
    with pytest.raises(RuntimeError, match="no job with a run directory"):
        bps.start_recording()
    bps.stop_recording()  # there is nothing to stop


def test_what_the_script_records_itself_is_not_recorded_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BYTEPROPHET_RUN", str(tmp_path / "run"))
    monkeypatch.setenv("BYTEPROPHET_RECORD", "1")
    monkeypatch.delenv("DMLC_ROLE", raising=False)
    gc.collect()  # optimizers of earlier tests
    assert not live_fronts()
    process.stop()  # what they have joined
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
        record_unasked(model)
        record_unasked(nn.parallel.DistributedDataParallel(nn.Linear(4, 2)))  # only the first
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
        with bps.record(model, tmp_path / "own"):
            for _ in range(3):
                model(torch.ones(1, 3)).sum().backward()
    finally:
        distributed.destroy_process_group()
    for folder, iterations in (("run", [1, 2]), ("own", [1, 2, 3])):
        (path,) = (tmp_path / folder / "events").iterdir()
        events = load_events(path)
        assert events.whole
        assert [int(row["iteration"]) for _, row in of(events, Kind.ITERATION)] == iterations


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process."""
    gc.collect()  # optimizers of earlier tests
    process.stop()  # what they have joined
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_the_script_may_have_a_communication_hook(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    with bps.record(model, tmp_path / "run"):
        model.register_comm_hook(None, default_hooks.allreduce_hook)
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
    assert capfd.readouterr().err.count("the model has a communication hook of its own") == 1
    events = load_events(tmp_path / "run" / "events" / "spans-worker-0.arrows")
    assert len(of(events, Kind.ITERATION)) == 2
    assert not of(events, Kind.COLLECTIVE)


@pytest.mark.usefixtures("alone")
def test_a_model_whose_gradients_ours_exchange_is_refused(tmp_path: Path) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    nothing: Any = None
    models.add(model, models.Public("dear", nothing, lambda _: None, nothing))
    known = models.known(model)
    assert known is not None
    with pytest.raises(RuntimeError, match=r"or BYTEPROPHET_SYNC: call start_recording\(\)"):
        bps.record(model, tmp_path / "run").start()
    known.keeps_own_exchange("it is a test")
    with bps.record(model, tmp_path / "run"):
        model(torch.ones(1, 3)).sum().backward()
    assert (tmp_path / "run").exists()


@pytest.mark.usefixtures("alone")
def test_a_start_after_a_micro_batch_begins_an_iteration(tmp_path: Path) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    record = bps.record(model, tmp_path / "run")
    record.start()
    with model.no_sync():
        model(torch.ones(1, 3)).sum().backward()
    record.stop()
    with record:
        model(torch.ones(1, 3)).sum().backward()
    events = load_events(tmp_path / "run" / "events" / "spans-worker-0~2.arrows")
    assert [row["iteration"] for _, row in of(events, Kind.ITERATION)] == [1]


@pytest.mark.usefixtures("alone")
def test_each_directory_gets_the_buckets(tmp_path: Path) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    for folder, iterations in (("early", 1), ("one", 3), ("two", 2)):
        with bps.record(model, tmp_path / folder):
            for _ in range(iterations):
                model(torch.ones(1, 3)).sum().backward()
    assert read_strategy(tmp_path / "early") is None  # buckets were not yet rebuilt
    one, two = (read_strategy(tmp_path / folder) for folder in ("one", "two"))
    assert one is not None
    assert two is not None
    assert one.strategy.buckets == two.strategy.buckets


@pytest.mark.usefixtures("alone")
def test_one_rank_in_our_class_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPROPHET_RUN", str(tmp_path / "run"))
    monkeypatch.setenv("BYTEPROPHET_RECORD", "1")
    monkeypatch.delenv("DMLC_ROLE", raising=False)
    monkeypatch.setattr(recorder, "_unasked", None)
    model = bps.DistributedDataParallel(nn.Linear(3, 2), sync="allreduce")
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
    unasked = recorder._unasked
    assert unasked is not None
    unasked.stop()
    (path,) = (tmp_path / "run" / "events").iterdir()
    assert len(of(load_events(path), Kind.ITERATION)) == 2


def test_beside_a_distributed_optimizer(tmp_path: Path, attach: object, network: object) -> None:
    model = nn.Linear(3, 2)
    optimizer = attach(torch.optim.SGD(model.parameters(), lr=0.1), network)  # type: ignore[operator]
    with pytest.raises(RuntimeError, match="call start_recording"):
        bps.record(model, tmp_path).start()
    assert not (tmp_path / "events").exists()
    del optimizer


def test_a_script_that_ends_without_stop(tmp_path: Path) -> None:
    script = f"""
import torch
import byteprophet.torch as bps
model = torch.nn.Linear(3, 2)
bps.record(model, {str(tmp_path)!r}).start()
model(torch.ones(1, 3)).sum().backward()
"""
    run_python("-c", script, timeout=100).check_returncode()
    events = load_events(tmp_path / "events" / "spans-worker-0.arrows")
    assert events.whole
    kinds = [Kind(kind) for kind in events.rows["kind"].tolist()]
    assert kinds == [Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD]  # when it ended is not known
