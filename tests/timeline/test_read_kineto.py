"""torch.profiler's traces: a real one of a DDP step over gloo, and what only a GPU would write."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from byteprophet.errors import UserError
from byteprophet.timeline.events import Events
from byteprophet.timeline.perfetto import write_perfetto
from byteprophet.timeline.read_kineto import read_kineto
from byteprophet.timeline.tables import SPANS, Kind

from .perfetto_rules import broken_rules, read_trace

PARAMETERS = 64 * 64 + 64 + 64 * 10 + 10


def of_kind(events: Events, kind: Kind) -> list[dict[str, Any]]:
    return [
        {**{n: row[n].item() for n in SPANS.columns}, "name": events.names[row["name"].item()]}
        for row in events.rows
        if row["kind"] == kind
    ]


def test_a_real_step(ddp: list[Path]) -> None:
    for rank, path in enumerate(ddp):
        events = read_kineto(path, rank=7)  # it says its own
        assert (events.origin.role, events.origin.rank) == (f"worker-{rank}", rank)
        assert abs(int(events.rows["begin_ns"][0]) - time.time_ns()) < 3600 * 10**9
        steps = of_kind(events, Kind.ITERATION)
        assert [step["iteration"] for step in steps] == [2, 3]
        assert [step["name"] for step in steps] == ["ProfilerStep#1", "ProfilerStep#2"]
        forward = of_kind(events, Kind.FORWARD)
        assert [span["name"] for span in forward] == ["DistributedDataParallel.forward"] * 2
        reduced = [s for s in of_kind(events, Kind.COLLECTIVE) if s["name"] == "gloo:all_reduce"]
        assert [span["size_bytes"] for span in reduced] == [4 * PARAMETERS] * 2
        assert [span["iteration"] for span in reduced] == [2, 3]
        updates = of_kind(events, Kind.UPDATE)
        assert [span["name"] for span in updates] == ["Optimizer.step#SGD.step"] * 2
        backward = Counter(s["name"] for s in of_kind(events, Kind.BACKWARD))
        assert backward["AddmmBackward0"] == backward["ReluBackward0"] * 2 == 4
        assert backward["torch::autograd::AccumulateGrad"] == 8
        for step, passes in zip(steps, zip(forward, reduced, updates, strict=True), strict=True):
            times = [(span["begin_ns"], span["end_ns"]) for span in passes]
            # A step is noted when it has begun: later by what its thread waited for a processor.
            # A collective's end is noted by gloo's thread, after it has let the update go on.
            assert times[0][0] <= times[0][1] <= times[1][0] <= times[2][0] < step["end_ns"]


def test_times_keep_their_nanoseconds(ddp: list[Path]) -> None:
    """Against the text of the file itself."""
    text = ddp[0].read_text()
    base_ns = json.loads(text)["baseTimeNanoseconds"]
    at = text.index('"name": "ProfilerStep#1"')
    ts, dur = (text[text.index(f'"{n}": ', at) + len(f'"{n}": ') :] for n in ("ts", "dur"))
    ts, dur = (value[: min(value.index(","), value.index("\n"))] for value in (ts, dur))
    (step, _) = of_kind(read_kineto(ddp[0]), Kind.ITERATION)
    whole, part = ts.split(".")
    assert step["begin_ns"] == base_ns + int(whole) * 1000 + int(part.ljust(3, "0"))
    whole, _, part = dur.partition(".")
    assert step["end_ns"] - step["begin_ns"] == int(whole) * 1000 + int(part.ljust(3, "0"))


def test_as_a_timeline(ddp: list[Path], tmp_path: Path) -> None:
    events = [read_kineto(path) for path in ddp]
    written = write_perfetto(tmp_path / "t.json", events)
    assert written.slices == sum(len(table.rows) for table in events)
    assert broken_rules(read_trace(tmp_path / "t.json")) == []


def event(category: str, name: str, ts: Any, dur: Any, tid: Any = 7, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur,
        "args": args,
    }  # fmt: skip


GPU = [
    event("user_annotation", "ProfilerStep#4", 0, 100, 1),
    event("gpu_user_annotation", "ProfilerStep#4", 0, 100),
    event("cpu_op", "aten::mm", 1, 4, 1),
    event("cuda_runtime", "cudaLaunchKernel", 2, 1, 1),
    event("python_function", "train.py(3): step", 0, 90, 1),
    event("user_annotation", "nccl:all_reduce", 5, 3, 1),
    event("user_annotation", "## forward ##", 0, 4, 1),
    event("user_annotation", "Backward pass", 5, 4, 1),
    event("user_annotation", "forwarding mail", 12, 4, 1),
    event("kernel", "ampere_sgemm_128x64", 3, 10),
    event("gpu_memcpy", "Memcpy HtoD", 20, 5, 20, bytes=4096),
    event(
        "kernel", "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)", 20, 40, 20,
        **{"Collective name": "_allgather_base", "In msg nelems": 10, "Out msg nelems": 20,
           "dtype": "BFloat16"},
    ),
    event("kernel", "ncclDevKernel_SendRecv(ncclDevComm*)", 70, 5, 20,
          **{"Collective name": "send", "In msg nelems": 3, "Out msg nelems": 3, "dtype": "Float"}),
    {"ph": "f", "cat": "ac2g", "id": 1, "pid": 0, "tid": 7, "ts": 3, "name": "ac2g", "bp": "e"},
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "python"}},
]  # fmt: skip


def write(path: Path, events: Any, **more: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **more}))
    return path


def test_what_a_gpu_adds(tmp_path: Path) -> None:
    events = read_kineto(write(tmp_path / "t.json", GPU), rank=3)
    assert events.origin.rank == 3
    found = {
        name: (Kind(kind).name, size, iteration)
        for name, kind, size, iteration in zip(
            (events.names[i] for i in events.rows["name"].tolist()),
            events.rows["kind"].tolist(),
            events.rows["size_bytes"].tolist(),
            events.rows["iteration"].tolist(),
            strict=True,
        )
    }
    assert found == {
        "ProfilerStep#4": ("ITERATION", 0, 5),
        "aten::mm": ("COMPUTE", 0, 5),
        "nccl:all_reduce": ("COMPUTE", 0, 5),
        "## forward ##": ("FORWARD", 0, 5),
        "Backward pass": ("BACKWARD", 0, 5),
        "forwarding mail": ("COMPUTE", 0, 5),
        "ampere_sgemm_128x64": ("COMPUTE", 0, 5),
        "Memcpy HtoD": ("COMPUTE", 4096, 5),
        "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)": ("COLLECTIVE", 40, 5),
        "ncclDevKernel_SendRecv(ncclDevComm*)": ("SEND", 12, 5),
    }
    # Streams are lanes of their own.
    lanes = {events.names[row["name"].item()]: row["lane"].item() for row in events.rows}
    assert lanes["ampere_sgemm_128x64"] not in (lanes["Memcpy HtoD"], lanes["aten::mm"])


def test_a_span_that_is_too_short_by_rounding_takes_no_time(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [event("cpu_op", "x", "5", "-0.001")])
    (span,) = of_kind(read_kineto(path), Kind.COMPUTE)
    assert (span["begin_ns"], span["end_ns"]) == (5000, 5000)


@pytest.mark.parametrize(
    ("events", "more", "named"),
    [
        ([], {}, "has no operations"),
        ([GPU[-1]], {}, "has no operations"),
        ({}, {}, "no list traceEvents"),
        ([7], {}, "event 0: must be an object"),
        ([event("cpu_op", "x", "soon", 1)], {}, "event 0: ts 'soon': must be a number"),
        ([event("cpu_op", "x", True, 1)], {}, "event 0: ts 'True': must be a number"),
        ([event("cpu_op", "x", "1e999999999", 1)], {}, "event 0: ts"),
        ([event("cpu_op", "x", float("nan"), 1)], {}, "event 0: ts 'nan': must be a number"),
        ([event("cpu_op", "x", 1, None)], {}, "event 0: dur 'None': must be a number"),
        ([event("cpu_op", "x", 1, -2)], {}, "'x': cannot begin at 1000 ns and take -2000 ns"),
        ([event("cpu_op", "x", 2**60, 1)], {}, "'x': cannot begin"),
        ([event("cpu_op", "x", 2**63, 1)], {}, "event 0: ts '9223372036854775808'"),
        ([event("cpu_op", "x", 10**4299, 1)], {}, "event 0: ts '1000"),
        ([event("cpu_op", 7, 1, 1)], {}, "event 0: name 7: must be of str"),  # type: ignore[arg-type]
        (GPU, {"distributedInfo": {"rank": -1}}, "rank -1: must be an integer from 0"),
        (GPU, {"baseTimeNanoseconds": "x"}, "baseTimeNanoseconds 'x'"),
    ],
)
def test_what_is_wrong_is_named(events: Any, more: Any, named: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", events, **more)
    with pytest.raises(UserError) as caught:
        read_kineto(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cut_off_anywhere(ddp: list[Path], tmp_path: Path) -> None:
    for source in ddp:
        content = source.read_bytes().rstrip()
        for length in range(0, len(content), max(1, len(content) // 150)):
            cut = tmp_path / "cut.json"
            cut.write_bytes(content[:length])
            with pytest.raises(UserError) as caught:
                read_kineto(cut)
            assert str(caught.value).startswith(f"{cut}: is ")
            assert "\n" not in str(caught.value)
