"""BytePS' own comm.json: what a real job writes, and what its processes leave half-written."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.launcher import JobSpec, run_job
from byteprophet.timeline.perfetto import write_perfetto
from byteprophet.timeline.read_comm_json import read_comm_json
from byteprophet.timeline.tables import Kind

from .perfetto_rules import broken_rules, read_trace

# BytePS writes comm.json from a thread of its own when the last tensor has reached the end step.
_JOB = """
import os, pathlib, sys, time
import torch
import byteps.torch as bps
trace = pathlib.Path(sys.argv[1], os.environ["DMLC_WORKER_ID"])
(trace / "0").mkdir(parents=True)
os.environ["BYTEPS_TRACE_DIR"] = str(trace)
bps.init()
for step in range(6):
    for name in ("a", "b"):
        tensor = torch.full((300000,), 1.0 + bps.rank())
        bps.synchronize(bps.byteps_push_pull(tensor, average=False, name=name))
deadline, written = time.monotonic() + 60, trace / "0/comm.json"
while not (written.exists() and '"displayTimeUnit"' in written.read_text()):
    assert time.monotonic() < deadline
    time.sleep(0.1)
bps.shutdown()
"""
_PARTITIONS = 5  # 1.2 MB in 262144


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("traced")
    (directory / "job.py").write_text(_JOB)
    spec = JobSpec(
        command=(sys.executable, "job.py", str(directory / "traces")),
        run_directory=directory / "run",
        directory=directory,
        scheduler="stock",
        partition_bytes=262144,
        environment={
            "BYTEPS_TRACE_ON": "1",
            "BYTEPS_TRACE_START_STEP": "2",
            "BYTEPS_TRACE_END_STEP": "4",
        },
        timeout_s=100.0,
    )
    run_job(spec).check()
    return [directory / "traces" / str(worker) / "0" / "comm.json" for worker in range(2)]


@pytest.mark.job
def test_a_real_job(traces: list[Path], tmp_path: Path) -> None:
    read = [read_comm_json(path, rank) for rank, path in enumerate(traces)]
    for rank, events in enumerate(read):
        assert (events.origin.role, events.origin.machine) == (f"worker-{rank}", "")
        rows = events.rows
        assert abs(int(rows["begin_ns"][0]) - time.time_ns()) < 3600 * 10**9
        names = [events.names[name] for name in rows["name"].tolist()]
        found = Counter(zip(names, rows["kind"].tolist(), strict=True))
        assert found["byteps.a", Kind.COLLECTIVE] == found["byteps.b", Kind.COLLECTIVE] == 3
        for part in range(_PARTITIONS):
            assert found[f"byteps.a.PUSH [{part}]", Kind.SEND] == 3
            assert found[f"byteps.b.PULL [{part}]", Kind.RECEIVE] == 3
            assert found[f"byteps.a.COPYD2H [{part}]", Kind.COMPUTE] == 3
        assert f"byteps.a.PUSH [{_PARTITIONS}]" not in names
        assert set(rows["iteration"].tolist()) == {1, 2, 3}
        # A tensor's stages lie inside its push_pull.
        for iteration in (1, 2, 3):
            chosen = (rows["iteration"] == iteration) & [n.startswith("byteps.a") for n in names]
            whole = rows[chosen & (rows["kind"] == Kind.COLLECTIVE)][0]
            assert np.all(rows[chosen]["begin_ns"] >= whole["begin_ns"])
            assert np.all(rows[chosen]["end_ns"] <= whole["end_ns"])
    written = write_perfetto(tmp_path / "t.json", read)
    assert written.slices == sum(len(events.rows) for events in read)
    assert broken_rules(read_trace(tmp_path / "t.json")) == []


@pytest.mark.job
def test_cut_off_anywhere(traces: list[Path], tmp_path: Path) -> None:
    content, cut = traces[0].read_bytes().rstrip(), tmp_path / "comm.json"
    for length in range(0, len(content), 97):
        cut.write_bytes(content[:length])
        with pytest.raises(UserError) as caught:
            read_comm_json(cut)
        assert str(caught.value).startswith(f"{cut}: is ")
        assert "\n" not in str(caught.value)


def event(**changes: Any) -> dict[str, Any]:
    return {
        "ph": "X", "args": {"name": "Comm.t"}, "pid": "Comm.t", "name": "Comm.t.PUSH",
        "ts": 100, "dur": 5, "tid": "65538", "cat": "Comm", **changes,
    }  # fmt: skip


def test_stages_and_times(tmp_path: Path) -> None:
    path = tmp_path / "comm.json"
    path.write_text(
        json.dumps({"traceEvents": [event(ts=300), event(), event(tid="total", name="Comm.t")]})
    )
    events = read_comm_json(path, rank=4)
    assert events.origin.role == "worker-4"
    found = [
        (events.names[row["name"].item()], *(row[n].item() for n in ("begin_ns", "iteration")))
        for row in events.rows
    ]
    assert sorted(found) == [
        ("t", 100_000, 1),
        ("t.PUSH [2]", 100_000, 1),
        ("t.PUSH [2]", 300_000, 2),
    ]


@pytest.mark.parametrize(
    ("events", "named"),
    [
        ([], "has no events: the job ended before BYTEPS_TRACE_END_STEP"),
        ([event(cat="cpu_op")], "event 0: is not one of BytePS' own traces"),
        ([event(ph="B")], "event 0: is not one of BytePS' own traces"),
        ([event(pid=7)], "event 0: pid 7: must be of str"),
        ([event(pid="t")], "event 0: 't': must begin with Comm."),
        ([event(tid="x")], "tid 'x': do not match"),
        ([event(tid="9" * 5000)], "do not match"),
        ([event(name="Comm.other.PUSH")], "do not match"),
        ([event(ts=None)], "event 0: ts 'None': must be a number"),
        ([event(dur=-3)], "cannot begin at 100000 ns and take -3000 ns"),
        ("x", "no list traceEvents"),
    ],
)
def test_what_is_wrong_is_named(events: Any, named: str, tmp_path: Path) -> None:
    path = tmp_path / "comm.json"
    path.write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(UserError) as caught:
        read_comm_json(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
