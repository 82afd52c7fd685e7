"""torch.profiler's traces in all the forms that its versions, other tools and shells give them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from byteprophet.errors import UserError
from byteprophet.timeline.events import Events
from byteprophet.timeline.export_chakra import write_chakra
from byteprophet.timeline.perfetto import write_perfetto
from byteprophet.timeline.read_chakra import read_chakra
from byteprophet.timeline.sources import load_sources
from byteprophet.timeline.tables import SPANS, Kind

from .perfetto_rules import broken_rules, read_trace

Rows = list[tuple[Any, ...]]


def rows(events: Events) -> Rows:
    """All spans as plain values, lanes numbered by where their first spans are."""
    lanes: dict[int, int] = {}
    found = []
    for row in events.rows:
        begin, end, size, iteration, lane, kind = (row[n].item() for n in SPANS.columns)
        lane = lanes.setdefault(lane, len(lanes))
        name = events.names[row["name"].item()]
        found.append((begin, end, size, iteration, lane, Kind(kind).name, name))
    return found


def load(path: Path, content: bytes | str) -> Events:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (events,) = load_sources([path])
    return events


def told(path: Path, events: list[dict[str, Any]]) -> dict[str, tuple[str, int, int]]:
    """By name: kind, bytes and duration in microseconds."""
    found = load(path, json.dumps({"traceEvents": events}))
    return {name: (kind, size, (e - b) // 1000) for b, e, size, _, _, kind, name in rows(found)}


def event(category: str, name: str, ts: Any, dur: Any, tid: Any = 7, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur,
        "args": args,
    }  # fmt: skip


def in_pairs(whole: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Begins and ends in place of whole events, as a profiler writes them while it records."""
    marks: list[dict[str, Any]] = []
    still_open: dict[Any, list[tuple[Decimal, dict[str, Any]]]] = {}

    def end(stack: list[tuple[Decimal, dict[str, Any]]]) -> None:
        ts, one = stack.pop()
        marks.append({"ph": "E", "pid": one["pid"], "tid": one["tid"], "ts": str(ts)})

    for one in sorted(whole, key=lambda one: (Decimal(one["ts"]), -Decimal(one["dur"]))):
        stack = still_open.setdefault((one["pid"], one["tid"]), [])
        while stack and stack[-1][0] <= Decimal(one["ts"]):
            end(stack)
        marks.append({**one, "ph": "B"})
        stack.append((Decimal(one["ts"]) + Decimal(one["dur"]), one))
    for stack in still_open.values():
        while stack:
            end(stack)
    return marks


FORMS: dict[str, Callable[[dict[str, Any]], bytes | str]] = {
    "without schemaVersion": lambda t: json.dumps({k: t[k] for k in t if k != "schemaVersion"}),
    "events first": lambda t: json.dumps(dict(reversed(t.items()))),
    "with a byte order mark": lambda t: b"\xef\xbb\xbf" + json.dumps(t).encode(),
    "by a shell of Windows": lambda t: (
        json.dumps(t, indent=1).replace("\n", "\r\n").encode("utf-16")
    ),
    "gzipped without saying so": lambda t: gzip.compress(json.dumps(t).encode()),
    "with keys twice": lambda t: json.dumps(t).replace('"dur":', '"dur": -1, "dur":'),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_real_trace_in_other_clothes(ddp: list[Path], form: str, tmp_path: Path) -> None:
    """Times stay text, so that they are written as they were."""
    trace = json.loads(ddp[0].read_text(), parse_float=str)
    (events,) = load_sources([ddp[0]])
    assert rows(load(tmp_path / "t.json", FORMS[form](trace))) == rows(events)


def test_a_real_trace_without_its_flows_names_and_metadata(ddp: list[Path], tmp_path: Path) -> None:
    trace = json.loads(ddp[0].read_text(), parse_float=str)
    (events,) = load_sources([ddp[0]])
    kept = [one for one in trace["traceEvents"] if one["ph"] == "X"]
    for one in kept:
        one["pid"] = f"host:{one['pid']}"
        one["tid"] = -one["tid"] if isinstance(one["tid"], int) else one["tid"]
        one["args"] = {k: v for k, v in one.get("args", {}).items() if k.startswith("Input")}
    base = {"baseTimeNanoseconds": trace["baseTimeNanoseconds"], "traceEvents": kept}
    assert rows(load(tmp_path / "t.json", json.dumps(base))) == rows(events)
    bare = rows(load(tmp_path / "t.json", json.dumps(kept)))
    base_ns = trace["baseTimeNanoseconds"]
    assert [(b + base_ns, e + base_ns, *more) for b, e, *more in bare] == rows(events)


def test_begins_and_ends_in_place_of_whole_events(ddp: list[Path], tmp_path: Path) -> None:
    trace = json.loads(ddp[0].read_text(), parse_float=str)
    (events,) = load_sources([ddp[0]])
    trace["traceEvents"] = in_pairs([one for one in trace["traceEvents"] if one["ph"] == "X"])
    found = load(tmp_path / "t.json", json.dumps(trace))
    without_lanes = [sorted((*row[:4], *row[5:]) for row in rows(e)) for e in (found, events)]
    assert without_lanes[0] == without_lanes[1]


def test_a_begin_or_an_end_alone_is_left_out(tmp_path: Path) -> None:
    def mark(phase: str, name: str, ts: int, **more: Any) -> dict[str, Any]:
        return {"ph": phase, "cat": "cpu_op", "name": name, "pid": 0, "tid": 1, "ts": ts, **more}

    assert told(
        tmp_path / "t.json",
        [
            mark("E", "began before", 3),
            mark("B", "outer", 5),
            mark("B", "a Python function", 6, cat="python_function"),
            mark("B", "inner", 7),
            {"ph": "E", "pid": 0, "tid": 1, "ts": 9},
            {"ph": "E", "pid": 0, "tid": 1, "ts": 10},
            mark("E", "outer", 15, cat=None),
            mark("B", "around", 20),
            mark("B", "without an end", 21),
            mark("E", "around", 25),
            mark("B", "still under way", 30),
        ],
    ) == {
        "outer": ("COMPUTE", 0, 10),
        "inner": ("COMPUTE", 0, 2),
        "around": ("COMPUTE", 0, 5),
    }


def test_what_python_itself_exports(tmp_path: Path) -> None:
    """A list, without categories: what torch wrote before 1.8, and without Kineto still does."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(activities=[ProfilerActivity.CPU]) as profiler, record_function("My forward"):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    profiler.events().export_chrome_trace(str(tmp_path / "list.json"))
    profiler.export_chrome_trace(str(tmp_path / "whole.json"))
    listed, whole = load_sources([tmp_path / "list.json", tmp_path / "whole.json"])

    def kinds(events: Events) -> Counter[tuple[str, str]]:
        return Counter((row[5], row[6]) for row in rows(events))

    assert kinds(listed).keys() == kinds(whole).keys()  # Python merges nested ones of one name
    assert kinds(listed)["BACKWARD", "AddmmBackward0"] == 1
    assert kinds(listed)["UPDATE", "Optimizer.step#SGD.step"] == 1
    device = {**json.loads((tmp_path / "list.json").read_text())[0], "pid": "CUDA functions"}
    assert (
        told(tmp_path / "t.json", [{**device, "name": "My forward"}])["My forward"][0] == "COMPUTE"
    )


def test_the_categories_of_2021(tmp_path: Path) -> None:
    shapes = {"Input dims": [[3]], "Input type": ["float"]}
    assert told(
        tmp_path / "t.json",
        [
            event("Operator", "ProfilerStep#5", 0, 100, "7"),
            event("Operator", "DistributedDataParallel.forward", 1, 5),
            event("Operator", "aten::nll_loss_forward", 2, 1),
            event("Operator", "aten::convolution_backward", 30, 1),
            event("Operator", "CudnnConvolutionBackward", 20, 5, 8),
            event("Operator", "torch::autograd::AccumulateGrad", 26, 5, 8),
            event("Operator", "Optimizer.step#SGD.step", 50, 9),
            event("Operator", "gloo:all_reduce", 40, 5, **shapes),
            event("Kernel", "sgemm", 60, 9, "stream 7"),
            event("Memcpy", "Memcpy HtoD", 70, 2, "stream 7", bytes=64),
            event("Memset", "Memset", 80, 2, "stream 7", bytes=16),
            event("Runtime", "cudaLaunchKernel", 80, 2),
            event("Trace", "PyTorch Profiler (0)", 0, 200, "PyTorch Profiler"),
        ],
    ) == {
        "ProfilerStep#5": ("ITERATION", 0, 100),
        "DistributedDataParallel.forward": ("FORWARD", 0, 5),
        "aten::nll_loss_forward": ("COMPUTE", 0, 1),
        "aten::convolution_backward": ("COMPUTE", 0, 1),
        "CudnnConvolutionBackward": ("BACKWARD", 0, 5),
        "torch::autograd::AccumulateGrad": ("BACKWARD", 0, 5),
        "Optimizer.step#SGD.step": ("UPDATE", 0, 9),
        "gloo:all_reduce": ("COLLECTIVE", 12, 5),
        "sgemm": ("COMPUTE", 0, 9),
        "Memcpy HtoD": ("COMPUTE", 64, 2),
        "Memset": ("COMPUTE", 16, 2),
    }  # fmt: skip


def call(ts: int, title: str, correlation: int, tid: int = 1, **shapes: Any) -> list[Any]:
    """A call of NCCL, and its launch: with the shapes and types that its three events have."""
    none: dict[str, Any] = {}
    return [
        event("cpu_op", "c10d::x_", ts, 9, tid, **shapes.get("operator", none)),
        event("cpu_op", "record_param_comms", ts + 1, 7, tid, **shapes.get("parameters", none)),
        event("user_annotation", f"nccl:{title}", ts + 2, 5, tid, **shapes.get("annotation", none)),
        event("cuda_runtime", "cudaLaunchKernel", ts + 4, 1, tid, correlation=correlation),
    ]


def tensors(*shapes: Any, kind: str = "float") -> dict[str, Any]:
    return {"Input Dims": list(shapes), "Input type": [kind] * len(shapes)}


def test_kernels_have_the_sizes_of_their_calls(tmp_path: Path) -> None:
    def kernel(number: int, **more: Any) -> dict[str, Any]:
        name = f"ncclKernel_{number}(ncclDevComm*)"
        return event("kernel", name, 500 + 10 * number, 5, 20, correlation=number, **more)

    lists = {"Input Dims": [[[3], [5]], []], "Input type": ["TensorList", ""]}
    message = {"In msg nelems": 7, "Out msg nelems": 14, "dtype": "Float8_e4m3fn"}
    events = [
        *call(0, "all_reduce", 1, operator=lists, annotation=tensors([3], [5])),
        *call(10, "_all_gather_base", 2, operator=tensors([80], [10]), annotation=tensors([10])),
        *call(20, "all_reduce", 3, parameters=message, annotation=tensors([99])),
        *call(30, "send 0->1", 4, annotation=tensors([6, 2], kind="c10::Half")),
        *call(40, "recv 0<-1", 5),
        *call(50, "all_reduce", 6, annotation=tensors([4])),
        event("cuda_runtime", "cudaLaunchKernelExC", 55, 1, 1, correlation=7),
        *call(60, "all_reduce", 8, annotation=tensors([4])),
        event("cuda_driver", "cuLaunchKernel", 300, 1, 1, correlation=9),
        event("cuda_runtime", "cudaLaunchKernel", 65, 1, 2, correlation=10),
        *(kernel(number) for number in (1, 2, 3, 4, 5, 6, 7, 9, 10, 11)),
        kernel(8, **{"In msg nelems": 2, "Out msg nelems": 2, "dtype": "ComplexDouble"}),
        {**kernel(12), "args": {}},
        event("cpu_op", "c10d::send", 80, 9, 1, **tensors([5])),
        event("cuda_runtime", "cudaLaunchKernel", 85, 1, 1, correlation=13),
        kernel(13, **{"Collective name": "send", "In msg nelems": 5, "dtype": "Unheard"}),
    ]  # fmt: skip
    found = told(tmp_path / "t.json", events)
    assert [found[f"ncclKernel_{number}(ncclDevComm*)"][:2] for number in range(1, 14)] == [
        ("COLLECTIVE", 32),  # of the annotation: a list of tensors has no type
        ("COLLECTIVE", 320),  # the larger side
        ("COLLECTIVE", 14),  # what is said of the message comes first
        ("SEND", 24),
        ("RECEIVE", 0),
        ("COLLECTIVE", 16),
        ("COLLECTIVE", 0),  # of the same call, whose bytes the first kernel has
        ("COLLECTIVE", 32),  # its own
        *[("COLLECTIVE", 0)] * 4,  # launched outside a call, on another thread, unseen, unnumbered
        ("SEND", 20),
    ]
    assert {found[name] for name in found if name.startswith("nccl:")} == {("COMPUTE", 0, 5)}


@pytest.mark.parametrize(
    ("ts", "begin_ns"),
    [("1700000000000000.001", 1), (1700000000000000, 0), ("1.7e15", 0), ("1700000000000000", 0)],
)
def test_times_as_text_or_numbers(ts: Any, begin_ns: int, tmp_path: Path) -> None:
    (row,) = rows(load(tmp_path / "t.json", json.dumps([event("cpu_op", "x", ts, "0.5")])))
    assert row[:2] == (17 * 10**17 + begin_ns, 17 * 10**17 + begin_ns + 500)


def test_half_an_emoji_in_a_name_is_exported_as_an_escape(tmp_path: Path) -> None:
    content = json.dumps([event("cpu_op", "half \ud83d of 🚀", 1000, 5)])
    events = load(tmp_path / "t.json", content)
    expected = "half \\ud83d of 🚀"
    assert list(events.names.values()) == [expected]
    write_perfetto(tmp_path / "p.json", [events])
    trace = read_trace(tmp_path / "p.json")
    assert broken_rules(trace) == []
    assert expected in {one["name"] for one in trace["traceEvents"]}
    (written,) = write_chakra(tmp_path / "c", [events])
    assert list(read_chakra(written).names.values()) == [expected]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"PK\x03\x04rest", "is packed as zip: unpack it first"),
        (b"\x28\xb5\x2f\xfdrest", "is packed as zstd: unpack it first"),
        (gzip.compress(b"  ", mtime=0), "is empty"),
        (json.dumps([event("HOROVOD", "x", 1, 1)]), "only events of category 'HOROVOD'"),
        (json.dumps([event("cpu_op", "x", 1, 1)])[:-1], "line 1, column"),
        (json.dumps({"traceEvents": [event("cpu_op", "x", 1, 1)]}) + "{}", "more than one JSON"),
        ('{"nodes": [1], "links": []}', "is not a file that can be read"),
        ('{"nodes": [{"id": 1}], "schema": "1.0.1"}', "a host trace of PyTorch has no times"),
    ],
)
def test_what_cannot_be_read_is_one_true_line(
    content: bytes | str, named: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path / "t.json", content)
    assert str(caught.value).startswith(f"{tmp_path / 't.json'}: ")
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
