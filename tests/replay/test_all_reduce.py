"""Predictions of all-reduce jobs, against jobs whose truth is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from byteprophet.bound import bound_ns
from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.job import Bucket, Strategy
from byteprophet.job.strategy import ALL_REDUCE as ALL_REDUCE_RUNTIME
from byteprophet.job.strategy import DEAR
from byteprophet.measure.all_reduce import measure_all_reduce
from byteprophet.measure.servers import Measured
from byteprophet.network import payload_bps
from byteprophet.replay.all_reduce import ALL_REDUCE, change, daydream_ns, with_strategy
from byteprophet.replay.predict import predict
from byteprophet.replay.what_if import Changes
from byteprophet.timeline.events import events_path, save_events

from ..graph.test_gloo_graph import DELAY_NS, FORWARD_NS, RATE_BPS, UPDATE_NS, job, ring_ns
from ..measure.recorded_gloo import bucket_bytes, config_of, record
from ..measure.test_barriered import a_ring


def test_a_job_that_is_not_changed() -> None:
    ring = a_ring(iterations=12)
    prediction = predict(
        Measured(*measure_all_reduce(record(ring), config_of(ring), None)), Changes()
    )
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
        Changes(workers=2),
        Changes(workers=5),
        Changes(compute_scale=2.0),
        Changes(link_latency_ns=2_000_000),
    ],
    ids=str,
)
def test_a_changed_job_is_predicted_from_the_one_that_was_recorded(changes: Changes) -> None:
    ring = a_ring(iterations=12)
    measured = Measured(*measure_all_reduce(record(ring), config_of(ring), None))
    prediction = predict(measured, changes)
    assert prediction.error is None
    truth_ns = float(np.median(ALL_REDUCE.iterations_ns(change(ring, changes))[5:]))
    assert prediction.median_ns == pytest.approx(truth_ns, rel=0.02)


def test_what_changes() -> None:
    ring = a_ring()
    changed = change(
        ring,
        Changes(bandwidth_bps=10**9, workers=5, compute_scale=0.5, link_latency_ns=7_000_000),
    )
    assert [host.up_bps for host in changed.cluster.workers] == [payload_bps(10**9)] * 5
    assert changed.cluster.costs.delay_ns == 7_000_000
    assert changed.times.update_ns.shape == (5, ring.iterations, len(ring.model))
    assert np.array_equal(
        changed.times.forward_ns[1], np.rint(ring.times.forward_ns[1] * 0.5).astype(np.int64)
    )
    # The fourth rank is the first once more, in another order.
    assert np.array_equal(changed.times.ready_ns[3], np.roll(changed.times.ready_ns[0], 1, axis=0))


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        (Changes(scheduler="fifo"), "--policy"),
        (Changes(servers=2), "--servers"),
        (Changes(partition_bytes=4096), "--partition-bytes"),
    ],
)
def test_what_only_byteps_has_is_refused(changes: Changes, option: str) -> None:
    with pytest.raises(UserError, match=f"{option}: only for jobs of BytePS"):
        change(a_ring(), changes)


def test_an_unknown_runtime_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="--runtime fast: choose one of allreduce, dear, "):
        change(a_ring(), Changes(runtime="fast"))


def test_host_time_stays_when_links_change() -> None:
    """A byte takes 10 ns on the link and 5 besides; on one twice as fast, 5 and 5."""
    one = job(2, (800_000,), 0)
    costs = replace(one.cluster.costs, host_ns_per_byte=5.0)
    one = replace(one, cluster=replace(one.cluster, costs=costs))
    per_step_ns = 400_000 * 15 + DELAY_NS
    expected_ns = FORWARD_NS + 2 * per_step_ns + UPDATE_NS
    assert ALL_REDUCE.iterations_ns(one)[0] == pytest.approx(expected_ns, abs=10)
    faster = one.cluster.with_rate(2 * RATE_BPS, 0)
    expected_ns = FORWARD_NS + 2 * (400_000 * 10 + DELAY_NS) + UPDATE_NS
    assert ALL_REDUCE.iterations_ns(replace(one, cluster=faster))[0] == pytest.approx(
        expected_ns, abs=10
    )


def test_daydream_has_no_queues() -> None:
    """Two buckets at once: each would have the link for itself, without delays."""
    both = job(4, (400_000, 400_000), 2_000_000)
    alone_ns = ring_ns(4, 400_000) - 6 * DELAY_NS
    assert daydream_ns(both) == FORWARD_NS + 2_000_000 + alone_ns + UPDATE_NS


def test_the_bound_counts_what_every_rank_sends() -> None:
    """3/2 of a tensor's bytes leave each of four ranks; nothing else is before the next forward."""
    ring = job(4, (8_000_000,), 2_000_000)
    assert bound_ns(ring) == 2_000_000 + 8_000_000 * 3 // 2 * 10 + FORWARD_NS
    assert bound_ns(ring) < ALL_REDUCE.iterations_ns(ring)[0]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ring = a_ring(iterations=12)
    run = tmp_path / "run"
    (run / "events").mkdir(parents=True)
    (run / "config.toml").write_text(tomli_w.dumps(config_of(ring)))
    for events in record(ring):
        save_events(events_path(run, events.table, events.origin.role), events)
    assert run_cli(["replay", str(run), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["measured_ns"] > 0
    assert abs(printed["error"]) < 0.01
    assert printed["assumptions"]["workers"] == 3
    assert printed["assumptions"]["bucket_bytes"] == bucket_bytes(ring)
    assert run_cli(["replay", str(run), "--bandwidth", "1gbit"]) == 0
    assert "ddp, 3 workers, 5 bucket(s)" in capsys.readouterr().out
    assert run_cli(["replay", str(run), "--policy", "fifo"]) == 2
    assert "--policy: only for jobs of BytePS" in capsys.readouterr().err


def test_updates_follow_what_ranks_own() -> None:
    """A rank that owns nothing updates nothing; its times otherwise are the mean of the others'."""
    ring = a_ring(iterations=6)
    names = ring.model.names
    buckets = (Bucket(names, 0, 1, sharded=True),)
    equal = replace(ring, strategy=Strategy(DEAR, buckets))
    weights = (2, 1, *(0 for _ in range(ring.workers - 2)))
    unequal = with_strategy(equal, replace(equal.strategy, owners=weights))
    was_ns, is_ns = equal.times.update_ns, unequal.times.update_ns
    assert not is_ns[2:].any()
    assert is_ns[0] == pytest.approx(was_ns[0] * ring.workers * 2 / 3, abs=1)
    assert is_ns[1] == pytest.approx(was_ns[1] * ring.workers / 3, abs=1)
    back_ns = with_strategy(unequal, equal.strategy).times.update_ns
    assert back_ns[:2] == pytest.approx(was_ns[:2], abs=2)
    assert back_ns[2:] == pytest.approx(
        np.broadcast_to(was_ns[:2].mean(axis=0), back_ns[2:].shape), abs=3
    )


def test_other_workers_own_equally_much() -> None:
    ring = a_ring(iterations=6)
    strategy = Strategy(ALL_REDUCE_RUNTIME, (Bucket(ring.model.names, 0, 1),), owners=(1, 0, 2))
    assert ring.workers == 3
    changed = change(replace(ring, strategy=strategy), Changes(workers=4))
    assert changed.strategy.owners == ()
    kept = change(replace(ring, strategy=strategy), Changes(bandwidth_bps=10**9))
    assert kept.strategy.owners == (1, 0, 2)
