"""Spans from MXNet's engine: made of time stamps in a fake engine, in MXNet's, and in a job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mxnet", reason="MXNet has an environment of its own: make test-mxnet")

from job_worker import LAYERS

from byteprophet.launcher import JobSpec, run_job
from byteprophet.mxnet.engine_spans import EngineSpans
from byteprophet.mxnet.recording import EngineRecording
from byteprophet.observe.span_log import SpanLog
from byteprophet.observe.windows import Windows
from byteprophet.timeline.events import Events
from byteprophet.timeline.read_events import load_rank
from byteprophet.timeline.tables import SPANS, TRANSFERS, Kind, Rows, tensor_of

WORKER = Path(__file__).with_name("job_worker.py")


class Engine:
    """Completes arrays on request; each array is represented by its name."""

    def __init__(self) -> None:
        self._asked: dict[str, list[int]] = {}
        self._stamps: list[tuple[int, int]] = []

    def push(self, array: str, number: int) -> None:
        self._asked.setdefault(array, []).append(number)

    def complete(self, array: str, time_ns: int) -> None:
        self._stamps += [(number, time_ns) for number in self._asked.pop(array)]

    def take(self) -> Rows:
        stamps, self._stamps = self._stamps, []
        return np.array(stamps, [("number", np.uint64), ("time_ns", np.int64)])


def spans_of(log: SpanLog) -> list[tuple[str, str, int, int, int]]:
    return [
        (Kind(kind).name, name, iteration, begin_ns, end_ns)
        for begin_ns, end_ns, _, iteration, name, _, kind in log.take(100)
    ]


def test_spans_are_what_the_stamps_say() -> None:
    """Two layers; in the second iteration the first waits for its parameters."""
    log, engine = SpanLog(), Engine()
    log.start(Windows((0, 10)), 0)
    spans = EngineSpans(log, engine)
    for iteration, at_ns in ((1, 100), (2, 200)):
        spans.layer(["a.w", "a.b"], "a", called_ns=at_ns - 90)
        spans.layer(["b.w"], "b", called_ns=at_ns - 80)
        for name in ("a.w", "a.b", "b.w"):
            spans.gradient(name, f"{name} gradient")
            spans.sum(name, f"{name} sum", iteration)
            spans.update(name, f"{name} value", iteration)
        log.skip_to(iteration + 1)
        for array, after_ns in (
            ("a", 5), ("b", 9), ("b.w gradient", 20), ("a.w gradient", 30), ("a.b gradient", 30),
            ("b.w sum", 32), ("b.w value", 33), ("a.w sum", 50), ("a.b sum", 51), ("a.w value", 60),
            ("a.b value", 62),
        ):  # fmt: skip
            engine.complete(array, at_ns + after_ns)
            if after_ns % 3 == 0:
                spans.take()
    spans.close()
    found = spans_of(log)
    assert [span for span in found if span[2] == 1] == [
        ("FORWARD", "a.w", 1, 10, 105),
        ("FORWARD", "b.w", 1, 105, 109),
        ("BACKWARD", "b.w", 1, 109, 120),
        ("BACKWARD", "a.w", 1, 120, 130),
        ("BACKWARD", "a.b", 1, 130, 130),
        ("UPDATE", "b.w", 1, 132, 133),
        ("UPDATE", "a.w", 1, 150, 160),
        ("UPDATE", "a.b", 1, 160, 162),
        ("ITERATION", "iteration", 1, 10, 130),
    ]
    assert [span for span in found if span[2] == 2][:3] == [
        ("WAIT", "a.w", 2, 130, 162),
        ("FORWARD", "a.w", 2, 162, 205),
        ("FORWARD", "b.w", 2, 205, 209),
    ]


def test_late_stamps_stay_in_their_iterations() -> None:
    """A gradient completes before its layer, and before the previous iteration's last gradient."""
    log, engine = SpanLog(), Engine()
    log.start(Windows((0, 10)), 1)
    spans = EngineSpans(log, engine)
    for iteration in (1, 2, 3):
        spans.layer(["w"], f"layer {iteration}", called_ns=1)
        for name in ("v", "w"):
            spans.gradient(name, f"{name} gradient {iteration}")
        log.skip_to(iteration + 1)
    for array, time_ns in (
        ("layer 1", 10), ("v gradient 1", 20),
        ("v gradient 2", 30), ("w gradient 1", 35), ("layer 2", 40), ("w gradient 2", 50),
        ("layer 3", 60),
    ):  # fmt: skip
        engine.complete(array, time_ns)
    spans.close()
    assert spans_of(log) == [
        ("FORWARD", "w", 1, 1, 10),
        ("BACKWARD", "v", 1, 10, 20),
        ("ITERATION", "iteration", 1, 1, 20),
        ("BACKWARD", "v", 2, 20, 30),
        ("BACKWARD", "w", 1, 20, 20),
        ("FORWARD", "w", 2, 30, 40),
        ("BACKWARD", "w", 2, 40, 50),
        ("ITERATION", "iteration", 2, 20, 50),
        ("FORWARD", "w", 3, 50, 60),
    ]


def test_stamps_of_an_earlier_life_mean_nothing() -> None:
    log, engine = SpanLog(), Engine()
    log.start(Windows((0, 10)), 1)
    EngineSpans(log, engine).layer(["old"], "left", called_ns=1)
    spans = EngineSpans(log, engine)
    spans.layer(["new"], "a", called_ns=10)
    engine.complete("left", 20)
    engine.complete("a", 30)
    spans.close()
    assert spans_of(log) == [("FORWARD", "new", 1, 10, 30)]
    assert log.lost() == 0


def test_stamps_that_were_overwritten_are_lost() -> None:
    """One stamp more than the ring can hold: the first is lost, and nothing of it is kept."""
    log, engine = SpanLog(), Engine()
    log.start(Windows((0, 10)), 1)
    spans = EngineSpans(log, engine)
    for number in range((1 << 16) + 1):
        spans.sum("w", f"{number}", 1)
    for number in range(1, (1 << 16) + 1):
        engine.complete(f"{number}", number)
    spans.take()
    assert log.lost() == 1
    assert not spans._meanings


def test_one_that_failed_asks_for_nothing() -> None:
    log, engine = SpanLog(), Engine()
    log.start(Windows((0, 10)), 1)
    spans = EngineSpans(log, engine)
    spans.abandon()
    assert not spans.on
    spans.gradient("w", "gradient")
    assert not engine._asked


def test_a_stamp_is_of_when_the_array_is_complete() -> None:
    """It is not the time of the request, and it does not wait for the engine's later work."""
    code = """
import os, time
os.environ["BYTEPS_SCHEDULER"] = "fifo"
import byteprophet.mxnet
import mxnet as mx
from byteprophet._plugin import load
from byteprophet.mxnet.engine_stamps import EngineStamps
stamps = EngineStamps(load("mxnet"))
small, large = mx.nd.ones((10, 10)), mx.nd.ones((1500, 1500))
mx.nd.waitall()
begin = time.monotonic_ns()
small = small + 1
stamps.push(small, 1)
for _ in range(3):
    large = mx.nd.dot(large, large)
stamps.push(large, 2)
asked = time.monotonic_ns()
small.wait_to_read()
small_there = time.monotonic_ns()
large.wait_to_read()
there = time.monotonic_ns()
mx.nd.waitall()
times = dict(stamps.take().tolist())
assert sorted(times) == [1, 2], times
assert begin <= times[1] <= times[2]
assert asked <= times[2], (asked, times)
assert times[1] < there
print("right")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.stdout == "right\n", done.stderr


def named(spans: Events, rows: Rows, kind: Kind) -> list[str]:
    return [spans.names[n] for n in rows["name"][rows["kind"] == kind].tolist()]


@pytest.mark.job
@pytest.mark.parametrize("case", ["train_imperative", "train_hybrid", "train_clipped"])
def test_layers_gradients_and_updates_of_a_job(case: str, tmp_path: Path) -> None:
    """They agree with the plug-in's transfers, whose stamps are independent."""
    spec = JobSpec(
        command=(sys.executable, str(WORKER), case),
        run_directory=tmp_path / "run",
        directory=tmp_path,
        scheduler="prophet",
        environment={"BYTEPROPHET_RECORD": "1"},
        timeout_s=200.0,
    )
    run_job(spec, None).check()
    parameters = [
        f"{layer}_{part}"
        for layer in LAYERS
        for part in (("gamma", "beta") if "norm" in layer else ("weight", "bias"))
    ]
    layers = parameters[:1] if case == "train_hybrid" else parameters[::2]
    begun_before_sent = []
    for rank in range(2):
        spans, sent = (load_rank(tmp_path / "run", table, rank) for table in (SPANS, TRANSFERS))
        assert spans.lost == 0
        numbers = {name: number for number, name in sent.names.items()}
        whole = spans.rows[spans.rows["kind"] == Kind.ITERATION]
        assert whole["iteration"].tolist() == list(range(1, len(whole) + 1))
        assert np.array_equal(whole["end_ns"][:-1], whole["begin_ns"][1:])
        for iteration in whole["iteration"].tolist():
            rows = spans.rows[spans.rows["iteration"] == iteration]
            assert sorted(named(spans, rows, Kind.FORWARD)) == sorted(layers)
            ends = {
                kind: {spans.names[r["name"]]: r for r in rows if r["kind"] == kind}
                for kind in (Kind.BACKWARD, Kind.UPDATE)
            }
            assert set(ends[Kind.BACKWARD]) == set(ends[Kind.UPDATE]) == set(parameters)
            device = rows[np.isin(rows["kind"], (Kind.FORWARD, Kind.BACKWARD, Kind.WAIT))]
            assert (device["begin_ns"][1:] >= device["end_ns"][:-1]).all()
            assert device["begin_ns"].min() >= whole["begin_ns"][iteration - 1]
            assert device["end_ns"].max() == whole["end_ns"][iteration - 1]
            for name in parameters:
                mine = (tensor_of(sent.rows) == numbers[name]) & (
                    sent.rows["iteration"] == iteration
                )
                transfers = sent.rows[mine]
                assert len(transfers)
                begun_ns = ends[Kind.BACKWARD][name]["begin_ns"]
                begun_before_sent.append(begun_ns <= transfers["ready_ns"].min())
                assert ends[Kind.UPDATE][name]["end_ns"] >= transfers["pulled_ns"].max()
    # A stamp may be late on a busy machine; the next gradient's span then begins late, too.
    assert np.mean(begun_before_sent) > 0.8


def test_a_block_that_is_hybridized_later_is_one_layer_with_all_its_parameters() -> None:
    import mxnet as mx

    block = mx.gluon.nn.HybridSequential(prefix="")
    block.add(mx.gluon.nn.Dense(3, in_units=4, prefix="child_"))
    block.params.get("own", shape=(1,))
    block._reg_params["own"] = block.params["own"]
    recording = EngineRecording()
    recording.train([*block.collect_params().values()])
    found = []
    for hybridized in (False, True, False):
        block.hybridize(hybridized)
        found.append(sorted(parameter.name for parameter in recording._parameters(block)))
    assert found == [["own"], ["child_bias", "child_weight", "own"], ["own"]]


def test_nothing_is_asked_for_unless_it_is_recorded() -> None:
    log = SpanLog()
    assert not EngineSpans(log, Engine()).on
    log.start(Windows((3, 5)), 0)
    spans = EngineSpans(log, Engine())
    wanted = []
    for iteration in range(8):
        log.skip_to(iteration)
        wanted.append(spans.on)
    assert wanted == [False, False, False, True, True, True, False, False]
