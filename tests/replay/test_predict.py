"""Predictions, against jobs whose truth is known: recorded from a replay, changed, replayed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byteprophet import schedulers
from byteprophet.bound import bound_ns
from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.graph.ps_graph import build
from byteprophet.job import Job, Times
from byteprophet.measure.servers import measure
from byteprophet.network import payload_bps
from byteprophet.replay import replay
from byteprophet.replay.predict import predict
from byteprophet.replay.ps import change, daydream_ns
from byteprophet.replay.what_if import Changes
from byteprophet.timeline.events import events_path, save_events

from ..measure.recorded_replay import config_of, record
from ..measure.server_jobs import cluster_of, server_job
from ..measure.test_servers import a_job


def iteration_ns(job: Job) -> float:
    """The median iteration, the first five left out."""
    built = build(job)
    starts_ns = replay(built.graph).start_ns[built.begin]
    return float(np.median(np.diff(starts_ns.max(axis=0))[5:]))


def test_a_job_that_is_not_changed() -> None:
    job = a_job("prophet", iterations=12)
    prediction = predict(measure(record(job)[0], config_of(job)), Changes())
    assert prediction.measured_ns is not None
    assert abs(prediction.median_ns / prediction.measured_ns - 1) < 0.01
    assert prediction.error == pytest.approx(prediction.median_ns / prediction.measured_ns - 1)
    assert prediction.low_ns <= prediction.median_ns <= prediction.high_ns
    assert prediction.bound_ns <= prediction.median_ns


@pytest.mark.parametrize(
    "changes",
    [
        Changes(bandwidth_bps=250_000_000),
        Changes(bandwidth_bps=1_000_000_000),
        Changes(scheduler="prophet"),
        Changes(scheduler="stock"),
        Changes(partition_bytes=524_288),
        Changes(workers=4),
        Changes(servers=2),
        Changes(compute_scale=2.0),
        Changes(link_latency_ns=2_000_000),
    ],
    ids=str,
)
def test_a_changed_job_is_predicted_from_the_one_that_was_recorded(changes: Changes) -> None:
    job = a_job("bytescheduler", iterations=12)
    prediction = predict(measure(record(job)[0], config_of(job)), changes)
    assert prediction.measured_ns is None
    assert prediction.error is None
    assert prediction.median_ns == pytest.approx(iteration_ns(change(job, changes)), rel=0.02)


def test_what_changes() -> None:
    job = a_job("p3")
    changed = change(
        job,
        Changes(
            bandwidth_bps=10**9,
            scheduler="fifo",
            partition_bytes=1 << 19,
            workers=5,
            servers=3,
            compute_scale=0.5,
            link_latency_ns=7,
        ),
    )
    assert [host.up_bps for host in changed.cluster.workers] == [payload_bps(10**9)] * 5
    assert (changed.workers, changed.servers, changed.cluster.costs.delay_ns) == (5, 3, 7)
    assert (changed.push_policy.name, changed.strategy.partition_bytes) == ("fifo", 1 << 19)
    assert changed.push_policy.settings == schedulers.resolve("fifo", {}, 1 << 19)[0]
    half = np.rint(job.times.forward_ns * 0.5)
    assert np.array_equal(changed.times.forward_ns[:3], half)
    # The fourth is the first again, an iteration later.
    assert np.array_equal(changed.times.forward_ns[3][1:], half[0][:-1])
    assert change(job, Changes()) == job
    unlimited = change(job, Changes(bandwidth_bps=0)).cluster.workers
    assert [(host.up_bps, host.down_bps) for host in unlimited] == [(0, 0)] * job.workers


def test_a_policy_that_follows_its_link_has_the_partitions_of_the_new_one() -> None:
    job = a_job("prophet", iterations=2)
    assert (
        change(job, Changes(bandwidth_bps=10**10)).strategy.partition_bytes == 2 << 20
    )  # 2.5 ms of it
    assert (
        change(job, Changes(bandwidth_bps=4 * 10**8)).strategy.partition_bytes == 256 << 10
    )  # 5.5 ms
    assert (
        change(job, Changes(bandwidth_bps=25 * 10**7)).strategy.partition_bytes == 128 << 10
    )  # 4.4 ms
    assert change(job, Changes(bandwidth_bps=10**8)).strategy.partition_bytes == 64 << 10  # 5.5 ms
    given = Changes(bandwidth_bps=10**10, partition_bytes=1 << 19)
    assert change(job, given).strategy.partition_bytes == 1 << 19
    others = change(a_job("p3", iterations=2), Changes(bandwidth_bps=10**10, scheduler="prophet"))
    assert others.push_policy.settings["partition_bytes"] == 2 << 20


def test_a_plan_is_made_for_the_new_link() -> None:
    job = a_job("prophet", iterations=2)
    settings = {**job.push_policy.settings, "plan_bandwidth_bps": 480_000_000}
    policy = replace(job.push_policy, settings=settings, ready_times=((0, -1, 100, 10),))
    job = replace(job, policy=policy)
    faster = change(job, Changes(bandwidth_bps=10**9, compute_scale=2.0))
    assert faster.push_policy.settings["plan_bandwidth_bps"] == payload_bps(10**9)
    assert faster.push_policy.ready_times == ((0, -1, 200, 20),)
    paper = change(job, Changes(scheduler="prophet-paper")).push_policy
    assert paper.ready_times == policy.ready_times
    assert change(job, Changes(scheduler="p3")).push_policy.ready_times == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bandwidth_bps": -1}, "bandwidth bps -1: must be from 0 to"),
        ({"compute_scale": float("nan")}, "compute scale nan: must be from 1e-06 to 1e[+]06"),
        ({"compute_scale": float("inf")}, "compute scale inf: must be from 1e-06 to 1e[+]06"),
        ({"workers": 10**9}, "workers 1000000000: must be from 1 to 1024"),
        ({"link_latency_ns": -1}, "link latency ns -1: must be from 0 to"),
    ],
)
def test_changes_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Changes(**changes)


def test_simpler_answers() -> None:
    """One tensor of 6 MB on a link of 48 Mbit/s: a second each way."""
    job = a_job("fifo", iterations=1)
    one = change(job, Changes(workers=1))
    only = slice(0, 1)
    for times_ns in (one.times.forward_ns, one.times.ready_ns, one.times.backward_ns):
        times_ns[...] = 10**8
    one = server_job(
        one.model.names[only],
        (6_000_000,),
        Times(
            one.times.forward_ns[..., only],
            one.times.ready_ns[..., only],
            one.times.backward_ns,
            one.times.update_ns[..., only],
        ),
        cluster_of((48_000_000,), (0,)),
        "fifo",
        4096,
    )
    assert daydream_ns(one) == 2_200_000_000  # ready, there and back, forward
    assert bound_ns(one) == 1_200_000_000  # its answers come while it is sent


@pytest.fixture
def run(tmp_path: Path) -> Path:
    job = a_job("fifo", iterations=6)
    for events in record(job)[0]:
        save_events(events_path(tmp_path, events.table, events.origin.role), events)
    config = config_of(job)
    settings = "\n".join(f"{name} = {value}" for name, value in config["settings"].items())
    lines = [f"{name} = {config[name]!r}" for name in config if name != "settings"]
    text = "\n".join(lines).replace("'", '"') + f"\n[settings]\n{settings}\n"
    (tmp_path / "config.toml").write_text(text)
    return tmp_path


def test_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["replay", str(run), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == 1
    assert abs(said["error"]) < 0.01
    assert said["assumptions"]["scheduler"] == "fifo"
    assert (said["assumptions"]["local_sgd"], said["assumptions"]["compressed"]) == (None, 0)
    recorded_ms = f"recorded  {said['recorded_ns'] / 1e6:.1f} ms"
    assert run_cli(["replay", str(run), "--policy", "prophet", "--bandwidth", "2gbit"]) == 0
    text = capsys.readouterr().out
    assert "prophet, 3 workers" in text
    assert recorded_ms in text
    assert run_cli(["replay", str(run / "nothing")]) == 2
    assert "there is no such run directory" in capsys.readouterr().err
    assert run_cli(["replay", str(run), "--policy", "best"]) == 2
    assert "choose one of" in capsys.readouterr().err
    assert run_cli(["replay", str(run), "--link-latency", "nan"]) == 2
    assert "--link-latency nan: must be from 0 to 3.6e+06 milliseconds" in capsys.readouterr().err
    assert run_cli(["replay", str(run), "--bandwidth", "unlimited", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["measured_ns"] is None
    assert set(said["assumptions"]["payload_bps"]) == {None}
    config = run / "config.toml"
    text = config.read_text()
    config.write_text(f"local_ranks = 2\n{text}")
    assert run_cli(["replay", str(run)]) == 2
    assert "has no spans of rank 3" in capsys.readouterr().err  # of six
    config.write_text(text)
    next((run / "events").glob("spans-worker-1*")).unlink()
    assert run_cli(["replay", str(run)]) == 2
    assert "has no spans of rank 1: run the job with --record" in capsys.readouterr().err
