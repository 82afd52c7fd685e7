"""The log of spans and its file: bounded, from many threads, nothing twice, losses counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from byteprophet.observe.observer import NoTransfers, Observer
from byteprophet.observe.span_log import Span, SpanLog
from byteprophet.observe.span_recording import SpanConsumer
from byteprophet.observe.windows import Windows
from byteprophet.timeline.read_events import load_events, load_rank
from byteprophet.timeline.tables import SPANS, TRANSFER, Kind

NO_TRANSFERS = np.zeros(0, TRANSFER)


def recording(windows: str = "", capacity: int = 1000) -> SpanLog:
    log = SpanLog(capacity)
    log.start(Windows.parse(windows, "windows"), 0)
    return log


def test_threads_have_lanes_and_lose_nothing(tmp_path: Path) -> None:
    log, threads, each = recording(capacity=10**6), 4, 5000

    def work(thread: int) -> None:
        for n in range(each):
            log.add(Kind.COMPUTE, f"{thread}", n, n + 1, iteration=thread, size_bytes=n)

    consumer = SpanConsumer(tmp_path, "worker-3", 3, log)
    observer = Observer(NoTransfers(), [consumer], period_s=0.01)
    observer.start()
    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    observer.close()
    events = load_rank(tmp_path, SPANS, 3)
    assert (events.whole, events.lost, events.origin.role) == (True, 0, "worker-3")
    lanes = set()
    for thread in range(threads):
        rows = events.rows[events.rows["iteration"] == thread]
        assert rows["begin_ns"].tolist() == rows["size_bytes"].tolist() == list(range(each))
        assert {events.names[n] for n in rows["name"].tolist()} == {str(thread)}
        lanes.add(tuple(set(rows["lane"].tolist())))
    assert all(len(lane) == 1 for lane in lanes)


def test_what_does_not_fit_is_counted_where_it_is_missing(tmp_path: Path) -> None:
    log = recording(capacity=10)
    consumer = SpanConsumer(tmp_path, "w", 0, log)
    for turn in range(2):
        for n in range(10 + 5 * turn):
            log.add(Kind.COMPUTE, "x", n, n)
        consumer.take(NO_TRANSFERS)
    consumer.close()
    events = load_rank(tmp_path, SPANS, 0)
    assert (len(events.rows), events.lost) == (20, 5)


def test_iterations_end_where_the_next_begin_and_windows_are_kept() -> None:
    now = [0]
    log = SpanLog(clock=lambda: now[0])
    log.start(Windows.parse("2:4", "windows"), 0)
    seen = []
    for number in range(1, 7):
        now[0] = 100 * number
        log.begin_iteration(number)
        seen.append(log.on)
        with log.span(Kind.FORWARD, "layer"):
            now[0] += 10
        with log.span(Kind.UPDATE, "late", iteration=number - 1):
            now[0] += 10
    spans = [Span(*row) for row in log.take(100)]
    of = {
        kind: [(s.iteration, s.begin_ns, s.end_ns) for s in spans if s.kind == kind]
        for kind in (Kind.ITERATION, Kind.FORWARD, Kind.UPDATE)
    }
    assert of[Kind.ITERATION] == [(2, 200, 300), (3, 300, 400)]
    assert of[Kind.FORWARD] == [(2, 200, 210), (3, 300, 310)]
    assert of[Kind.UPDATE] == [(2, 310, 320), (3, 410, 420)]
    assert seen == [False, True, True, True, False, False]


def test_nothing_is_added_while_off() -> None:
    log = SpanLog()
    log.begin_iteration(1)
    with log.span(Kind.WAIT, "x"):
        pass
    log.add(Kind.WAIT, "x", 1, 2)
    log.begin_iteration(2)
    assert log.take(10) == []


_WRITER = """
import sys, time
from pathlib import Path
from byteprophet.session import process
from byteprophet.observe.observer import NoTransfers, Observer
from byteprophet.observe.span_log import SpanLog
from byteprophet.observe.span_recording import SpanConsumer
from byteprophet.observe.windows import Windows
from byteprophet.timeline.tables import Kind
log = SpanLog()
log.start(Windows.parse("", ""), 0)
process.observe(Observer(NoTransfers(), [SpanConsumer(Path(sys.argv[1]), "w", 0, log)]))
said = open(sys.argv[2], "wb", buffering=0)
while True:
    now = time.monotonic_ns()
    log.add(Kind.COMPUTE, "x", now, now)
    said.write(b"%d\\n" % now)
    time.sleep(0.001)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_ended_by_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    said = tmp_path / "said"
    process = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path), str(said)])
    try:
        while not said.exists() or said.stat().st_size < 30_000:
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        os.kill(process.pid, number)
        assert process.wait(60) == -number
    done = [int(line) for line in said.read_text().splitlines()]
    events = load_events(tmp_path / "events" / "spans-w.arrows")
    kept = events.rows["begin_ns"].tolist()
    assert kept[: len(done)] == done[: len(kept)]  # in order, without gaps
    assert events.lost == 0
    if number == signal.SIGTERM:
        assert events.whole
        assert len(done) <= len(kept) <= len(done) + 1
    else:
        # Nothing that was done a second before the end is missing, unless the machine stood still.
        assert done[-1] - kept[-1] < 1_000_000_000
