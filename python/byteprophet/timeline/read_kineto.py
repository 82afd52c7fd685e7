"""Traces of ``torch.profiler`` (Kineto), as ``export_chrome_trace`` and its handlers write them.

    ProfilerStep#N                            ITERATION N + 1; what begins in it belongs to it
    kernels of NCCL; gloo:*, nccl:*, ...      COLLECTIVE, or SEND and RECEIVE
    autograd::engine::evaluate_function: *    BACKWARD, of one node
    annotations with the word forward         FORWARD, as DistributedDataParallel.forward
    annotations with the word backward        BACKWARD
    Optimizer.step#*                          UPDATE
    other operators, kernels and copies       COMPUTE

Where kernels of NCCL were traced, they are the collectives and ``nccl:*`` only starts them. Sizes
need ``record_shapes=True``, kernels of NCCL say theirs; else they are 0. Left out are calls of
CUDA, Python functions, and annotations that the profiler repeats on the device.

Threads and streams become lanes. Times are of the wall clock.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.timeline.events import Events
from byteprophet.timeline.json_traces import field, parse_json, read_bytes, time_ns, trace_events
from byteprophet.timeline.span_list import SpanList
from byteprophet.timeline.tables import Kind

_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_CATEGORIES = ("user_annotation", "cpu_op", *_ON_DEVICE)
_STEP = re.compile(r"ProfilerStep#(\d{1,9})")
_NODE = "autograd::engine::evaluate_function: "
_BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")
_POINT_TO_POINT = {"send": Kind.SEND, "recv": Kind.RECEIVE}
_ITEM_BYTES = {
    **dict.fromkeys(("bool", "unsigned char", "byte", "signed char", "char"), 1),
    **dict.fromkeys(("c10::half", "half", "c10::bfloat16", "bfloat16", "short int", "short"), 2),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("double", "long int", "long", "c10::complex<float>"), 8),
}


@dataclass(frozen=True)
class _Operation:
    number: int  # in the file, for errors
    category: str
    name: str
    begin_ns: int
    duration_ns: int
    track: tuple[str, str]
    arguments: Mapping[str, Any]


def read_kineto(path: Path, rank: int = 0) -> Events:
    """The spans in the file; ``rank`` is used only if it does not say its own.

    UserError in one line if it is cut off, of something else, or has nothing in it.
    """
    return kineto_events(path, parse_json(path, read_bytes(path)), rank)


def is_kineto(trace: Any) -> bool:
    """Whether a Chrome trace is of ``torch.profiler``."""
    return isinstance(trace, dict) and "schemaVersion" in trace and "traceEvents" in trace


def kineto_events(path: Path, trace: Any, rank: int) -> Events:
    """As ``read_kineto``, of a file's content."""
    events = trace_events(path, trace)
    base_ns = trace.get("baseTimeNanoseconds", 0)
    if type(base_ns) is not int:
        raise UserError(f"{path}: baseTimeNanoseconds {base_ns!r}: must be an integer")
    operations = [
        _operation(path, number, event, base_ns)
        for number, event in enumerate(events)
        if event.get("ph") == "X" and event.get("cat") in _CATEGORIES
    ]
    if not operations:
        raise UserError(f"{path}: has no operations: was a step profiled?")
    steps = sorted(
        (operation.begin_ns, operation.begin_ns + operation.duration_ns, int(match[1]) + 1)
        for operation in operations
        if (match := _step(operation))
    )
    starts = [begin_ns for begin_ns, _, _ in steps]
    on_device = any(
        operation.category == "kernel" and operation.name.startswith("nccl")
        for operation in operations
    )
    spans = SpanList(path)
    for operation in operations:
        kind, name, size_bytes = _what(operation, on_device)
        at = bisect_right(starts, operation.begin_ns) - 1
        inside = at >= 0 and operation.begin_ns <= steps[at][1]
        spans.add(
            kind,
            name,
            operation.begin_ns,
            operation.duration_ns,
            "iterations" if kind is Kind.ITERATION else operation.track,
            size_bytes,
            steps[at][2] if inside else 0,
        )
    return spans.events(_rank(path, trace, rank))


def _operation(path: Path, number: int, event: Mapping[str, Any], base_ns: int) -> _Operation:
    arguments = event.get("args", {})
    return _Operation(
        number,
        str(event["cat"]),
        field(path, event, number, "name", str),
        base_ns + time_ns(path, event, number, "ts"),
        time_ns(path, event, number, "dur"),
        (str(event.get("pid")), str(event.get("tid"))),
        arguments if isinstance(arguments, dict) else {},
    )


def _step(operation: _Operation) -> re.Match[str] | None:
    return _STEP.fullmatch(operation.name) if operation.category == "user_annotation" else None


def _what(operation: _Operation, on_device: bool) -> tuple[Kind, str, int]:
    """Kind, name and size. ``on_device``: the trace has kernels of NCCL."""
    name, arguments = operation.name, operation.arguments
    if operation.category in _ON_DEVICE:
        if operation.category == "kernel" and name.startswith("nccl"):
            what = str(arguments.get("Collective name"))
            return _POINT_TO_POINT.get(what, Kind.COLLECTIVE), name, _message_bytes(arguments)
        return Kind.COMPUTE, name, _count(arguments.get("bytes"))
    if operation.category == "cpu_op":
        if name.startswith(_NODE):
            return Kind.BACKWARD, name[len(_NODE) :], 0
        return Kind.COMPUTE, name, 0
    if _step(operation):
        return Kind.ITERATION, name, 0
    backend, _, what = name.partition(":")
    if what and backend in _BACKENDS:
        if backend == "nccl" and on_device:
            return Kind.COMPUTE, name, 0
        return _POINT_TO_POINT.get(what, Kind.COLLECTIVE), name, _input_bytes(arguments)
    if name.startswith("Optimizer.step#"):
        return Kind.UPDATE, name, 0
    words = re.split(r"[^a-z]+", name.lower())
    if "forward" in words:
        return Kind.FORWARD, name, 0
    return Kind.BACKWARD if "backward" in words else Kind.COMPUTE, name, 0


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def _message_bytes(arguments: Mapping[str, Any]) -> int:
    """The larger side's: of an all-gather what comes out, of a reduce-scatter what goes in."""
    items = max(_count(arguments.get(f"{side} msg nelems")) for side in ("In", "Out"))
    return items * _ITEM_BYTES.get(str(arguments.get("dtype")).lower(), 0)


def _input_bytes(arguments: Mapping[str, Any]) -> int:
    """Of all inputs whose shape and type are known."""
    shapes, types = arguments.get("Input Dims"), arguments.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list):
        return 0
    return sum(
        _items(shape) * _ITEM_BYTES.get(str(kind).lower(), 0)
        for shape, kind in zip(shapes, types, strict=False)
    )


def _items(shape: Any) -> int:
    if not isinstance(shape, Sequence) or any(type(size) is not int for size in shape):
        return 0
    return prod(shape)


def _rank(path: Path, trace: Mapping[str, Any], rank: int) -> int:
    information = trace.get("distributedInfo")
    said = information.get("rank", rank) if isinstance(information, dict) else rank
    if type(said) is not int or not 0 <= said < 2**31:
        raise UserError(f"{path}: rank {said!r}: must be an integer from 0")
    return said
