"""Predictions of all-reduce jobs, against jobs whose truth is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.graph.measured import Measured
from byteprophet.graph.measured_ring import measure_ring
from byteprophet.network import payload_bps
from byteprophet.replay.predict import predict
from byteprophet.replay.ring import bound_ns, change, daydream_ns, iterations_ns
from byteprophet.replay.what_if import Changes
from byteprophet.timeline.events import events_path, save_events

from ..graph.recorded_ring import config_of, record
from ..graph.test_measured_ring import a_ring
from ..graph.test_ring_graph import DELAY_NS, FORWARD_NS, RATE_BPS, UPDATE_NS, job, ring_ns


def test_a_job_that_is_not_changed() -> None:
    ring = a_ring(iterations=12)
    prediction = predict(Measured(*measure_ring(record(ring), config_of(ring))), Changes())
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
    measured = Measured(*measure_ring(record(ring), config_of(ring)))
    prediction = predict(measured, changes)
    assert prediction.error is None
    truth_ns = float(np.median(iterations_ns(change(ring, changes))[5:]))
    assert prediction.median_ns == pytest.approx(truth_ns, rel=0.02)


def test_what_changes() -> None:
    ring = a_ring()
    changed = change(
        ring,
        Changes(bandwidth_bps=10**9, workers=5, compute_scale=0.5, link_latency_ns=7_000_000),
    )
    assert changed.network.worker_bps == (payload_bps(10**9),) * 5
    assert changed.network.delay_ns == 7_000_000
    assert changed.compute.update_ns.shape == (5, ring.iterations)
    assert np.array_equal(
        changed.compute.forward_ns[1], np.rint(ring.compute.forward_ns[1] * 0.5).astype(np.int64)
    )
    # The fourth rank is the first once more, in another order.
    assert np.array_equal(
        changed.compute.bucket_ns[3], np.roll(changed.compute.bucket_ns[0], 1, axis=0)
    )


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        (Changes(scheduler="fifo"), "--policy"),
        (Changes(servers=2), "--servers"),
        (Changes(partition_bytes=4096), "--partition-bytes"),
    ],
)
def test_what_only_byteps_has_is_refused(changes: Changes, option: str) -> None:
    with pytest.raises(UserError, match=f"{option}: this job all-reduces without BytePS"):
        change(a_ring(), changes)


def test_host_time_stays_when_links_change() -> None:
    """A byte takes 10 ns on the link and 5 besides; on one twice as fast, 5 and 5."""
    one = job(2, (800_000,), 0)
    one = replace(one, network=replace(one.network, host_ns_per_byte=5.0))
    per_step_ns = 400_000 * 15 + DELAY_NS
    expected_ns = FORWARD_NS + 2 * per_step_ns + UPDATE_NS
    assert iterations_ns(one)[0] == pytest.approx(expected_ns, abs=10)
    faster = replace(one.network, worker_bps=(2 * RATE_BPS,) * 2)
    expected_ns = FORWARD_NS + 2 * (400_000 * 10 + DELAY_NS) + UPDATE_NS
    assert iterations_ns(replace(one, network=faster))[0] == pytest.approx(expected_ns, abs=10)


def test_daydream_has_no_queues() -> None:
    """Two buckets at once: each would have the link for itself, without delays."""
    both = job(4, (400_000, 400_000), 2_000_000)
    alone_ns = ring_ns(4, 400_000) - 6 * DELAY_NS
    assert daydream_ns(both) == FORWARD_NS + 2_000_000 + alone_ns + UPDATE_NS


def test_the_bound_counts_what_every_rank_sends() -> None:
    """3/2 of a tensor's bytes leave each of four ranks; nothing else is before the next forward."""
    ring = job(4, (8_000_000,), 2_000_000)
    gradient_ns = np.full_like(ring.compute.gradient_ns, 2_000_000)
    ring = replace(ring, compute=replace(ring.compute, gradient_ns=gradient_ns))
    assert bound_ns(ring) == 2_000_000 + 8_000_000 * 3 // 2 * 10 + FORWARD_NS
    assert bound_ns(ring) < iterations_ns(ring)[0]


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
    assert printed["assumptions"]["bucket_bytes"] == list(ring.bucket_bytes)
    assert run_cli(["replay", str(run), "--bandwidth", "1gbit"]) == 0
    assert "all-reduce, 3 workers, 5 bucket(s)" in capsys.readouterr().out
    assert run_cli(["replay", str(run), "--policy", "fifo"]) == 2
    assert "--policy: this job all-reduces without BytePS" in capsys.readouterr().err
