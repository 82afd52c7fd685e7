"""Reads ``torch.profiler`` (Kineto) traces as ``export_chrome_trace`` and its handlers write them.

    ProfilerStep#N                            ITERATION N + 1; includes all spans that begin in it
    kernels of NCCL; gloo:*, nccl:*, ...      COLLECTIVE, or SEND and RECEIVE
    autograd::engine::evaluate_function: *    BACKWARD of one node; if there are none, the nodes
    annotations with the word forward         FORWARD, e.g. DistributedDataParallel.forward
    annotations with the word backward        BACKWARD
    Optimizer.step#*                          UPDATE
    other operators, kernels and copies       COMPUTE

If NCCL kernels were traced, they are the collectives, and ``nccl:*`` only launches them. Sizes come
from the kernels or, if recorded with ``record_shapes=True``, from the call that launched them;
otherwise they are 0. CUDA calls, waits for streams and events, Python functions, and annotations
that the profiler repeats on the device are left out.

Threads and streams become lanes. Times are wall clock times.
"""

from __future__ import annotations

import re
import reprlib
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from byteprophet.errors import UserError
from byteprophet.timeline.chrome_reader import ChromeReader
from byteprophet.timeline.events import Events
from byteprophet.timeline.kineto_calls import Call, Calls, Track
from byteprophet.timeline.kineto_events import (
    BACKENDS,
    Category,
    EventReader,
    Operation,
    is_collective_kernel,
)
from byteprophet.timeline.kineto_sizes import count, message_bytes, tensor_bytes
from byteprophet.timeline.span_list import SpanList
from byteprophet.timeline.tables import Kind

_STEP = re.compile(r"ProfilerStep#(\d{1,9})")
_NODE = "autograd::engine::evaluate_function: "
_NODE_ITSELF = re.compile(r"(torch::autograd::)?(\w+Backward\d*|AccumulateGrad)")
_POINT_TO_POINT = {"send": Kind.SEND, "recv": Kind.RECEIVE}
_PARAMETERS = "record_param_comms"


def read_kineto(path: Path, rank: int = 0) -> Events:
    """The spans in the file. ``rank`` is used only if the file does not state its own.

    Raises ``UserError``, with one line, if the file is cut off, is not such a trace, or is empty.
    """
    return KinetoReader(path).read(rank)


class _Found(NamedTuple):
    """A span. ``correlation``: set for an NCCL kernel that does not state its size, else 0."""

    kind: Kind
    name: str
    begin_ns: int
    duration_ns: int
    track: Track
    size_bytes: int
    correlation: int


class KinetoReader(ChromeReader):
    """Takes the parts of a trace and then returns its spans."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._events = EventReader(path)
        self._calls = Calls()
        self._spans: list[_Found] = []
        self._steps: list[tuple[int, int, int]] = []  # begin, end, iteration
        self._has_kernels = False  # of NCCL
        self._has_evaluations = False  # of autograd's nodes
        self._nodes: list[int] = []  # indices of autograd's nodes among the spans

    def _event(self, number: int, event: Mapping[str, Any]) -> None:
        operation = self._events.read(number, event)
        if operation is not None:
            self._add(operation)

    def events(self, rank: int) -> Events:
        """All spans. ``rank`` is used if the trace does not state its own."""
        about = self.about()
        base_ns = about.get("baseTimeNanoseconds", 0)
        if type(base_ns) is not int:
            said = reprlib.repr(base_ns)
            raise UserError(f"{self.path}: baseTimeNanoseconds {said}: must be an integer")
        for operation in self._events.paired():
            self._add(operation)
        if not self._spans:
            raise UserError(f"{self.path}: {self._nothing()}")
        spans = SpanList(self.path)
        self._fill(spans, base_ns)
        return spans.events(_rank(self.path, about, rank))

    def _nothing(self) -> str:
        others = ", ".join(sorted(self._events.other_categories))
        if not others:
            return "has no operations: was a step profiled?"
        only = f"it has no operations of torch.profiler, only events of category {others}"
        return f"is not a file that can be read: {only}"

    def _add(self, operation: Operation) -> None:
        category, name, begin_ns, duration_ns, track, arguments = operation
        if category is Category.LAUNCH:
            if correlation := count(arguments.get("correlation")):
                self._calls.launches[correlation] = track, begin_ns
            return
        if category is Category.SYNCHRONISATION:
            return
        kind, size_bytes, correlation = Kind.COMPUTE, 0, 0
        if category is Category.COPY:
            size_bytes = count(arguments.get("bytes"))
        elif category is Category.KERNEL:
            if is_collective_kernel(name):
                self._has_kernels = True
                kind = _transfer(arguments.get("Collective name"))
                size_bytes = message_bytes(arguments)
                correlation = 0 if size_bytes else count(arguments.get("correlation"))
        elif category is Category.OPERATOR:
            if name.startswith(_NODE):
                kind, name = Kind.BACKWARD, name[len(_NODE) :]
                self._has_evaluations = True
            elif _NODE_ITSELF.fullmatch(name):
                self._nodes.append(len(self._spans))
            elif name == _PARAMETERS or name.startswith("c10d::"):
                tensors = max(tensor_bytes(arguments), default=0)
                self._call(operation, "", message_bytes(arguments), tensors)
        else:
            kind, size_bytes = self._annotation(operation)
        self._spans.append(
            _Found(kind, name, begin_ns, duration_ns, track, size_bytes, correlation)
        )

    def _annotation(self, operation: Operation) -> tuple[Kind, int]:
        """The kind and the bytes of an annotation."""
        name = operation.name
        if step := _STEP.fullmatch(name):
            end_ns = operation.begin_ns + operation.duration_ns
            self._steps.append((operation.begin_ns, end_ns, int(step[1]) + 1))
            return Kind.ITERATION, 0
        backend, _, what = name.partition(":")
        if what and backend in BACKENDS:
            size_bytes = sum(tensor_bytes(operation.arguments))
            if backend == "nccl":
                self._call(operation, what, 0, size_bytes)
            return _transfer(what), size_bytes
        if name.startswith("Optimizer.step#"):
            return Kind.UPDATE, 0
        words = re.split(r"[^a-z]+", name.lower())
        if "forward" in words:
            return Kind.FORWARD, 0
        return Kind.BACKWARD if "backward" in words else Kind.COMPUTE, 0

    def _call(self, operation: Operation, name: str, said: int, tensors: int) -> None:
        end_ns = operation.begin_ns + operation.duration_ns
        call = Call(operation.begin_ns, end_ns, name, said, tensors)
        self._calls.calls.setdefault(operation.track, []).append(call)

    def _fill(self, spans: SpanList, base_ns: int) -> None:
        """Adds all spans, with the data that only the whole trace tells."""
        steps = sorted(self._steps)
        starts = [begin_ns for begin_ns, _, _ in steps]
        nodes = set() if self._has_evaluations else set(self._nodes)
        launched = self._calls.of_kernels(s.correlation for s in self._spans if s.correlation)
        for place, span in enumerate(self._spans):
            kind, name, begin_ns, duration_ns, track, size_bytes, correlation = span
            if correlation in launched:
                what, size_bytes = launched[correlation]
                kind = _transfer(what) if what else kind
            elif self._has_kernels and name.startswith("nccl:"):
                kind, size_bytes = Kind.COMPUTE, 0
            elif place in nodes:
                kind = Kind.BACKWARD
            at = bisect_right(starts, begin_ns) - 1
            inside = at >= 0 and begin_ns <= steps[at][1]
            spans.add(
                kind,
                name,
                base_ns + begin_ns,
                duration_ns,
                "iterations" if kind is Kind.ITERATION else track,
                size_bytes,
                steps[at][2] if inside else 0,
            )


def _transfer(what: Any) -> Kind:
    """The kind of a collective, by its name. Later versions append the peers: ``send 0->1``."""
    name = what.partition(" ")[0] if isinstance(what, str) else ""
    return _POINT_TO_POINT.get(name, Kind.COLLECTIVE)


def _rank(path: Path, about: Mapping[str, Any], rank: int) -> int:
    information = about.get("distributedInfo")
    said = information.get("rank", rank) if isinstance(information, dict) else rank
    if type(said) is not int or not 0 <= said < 2**31:
        raise UserError(f"{path}: rank {reprlib.repr(said)}: must be an integer from 0")
    return said
