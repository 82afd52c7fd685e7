"""Processor time at the begin of iterations, and the file that holds it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from byteprophet.observe.processor_log import ProcessorLog
from byteprophet.observe.span_log import SpanLog
from byteprophet.observe.span_recording import SpanConsumer
from byteprophet.observe.windows import Windows
from byteprophet.timeline.events import Origin


def busy(until_ns: int) -> None:
    """Use processor time, in this thread."""
    while time.thread_time_ns() < until_ns:
        pass


def test_iterations_have_what_was_used_before_them(tmp_path: Path) -> None:
    log = SpanLog()
    log.start(Windows.parse("1:3", "windows"), 0)
    consumer = SpanConsumer(tmp_path, "worker-2", 2, log)
    for iteration in range(1, 6):
        log.begin_iteration(iteration)
        busy(time.thread_time_ns() + 3_000_000)
    consumer.close()
    data = json.loads((tmp_path / "processors" / "worker-2.json").read_text())
    assert data["cores"] == sorted(os.sched_getaffinity(0))
    assert (data["schema"], data["role"], data["rank"]) == (1, "worker-2", 2)
    # Iteration 3 ends the last one of the window.
    assert [row[0] for row in data["iterations"]] == [1, 2, 3]
    for before, after in zip(data["iterations"], data["iterations"][1:], strict=False):
        assert after[2] - before[2] >= 3_000_000
        assert after[3] - before[3] >= after[2] - before[2] - 1_000_000


def test_nothing_noted_is_no_file(tmp_path: Path) -> None:
    ProcessorLog().write(tmp_path, Origin("worker-0", 0))
    assert not (tmp_path / "processors").exists()
