"""Reads ``torch.profiler``'s traces (Kineto) with all that a replay needs.

``timeline/read_kineto.py`` reads the same files as spans, for people. Here, launches, waits and
correlation ids are kept as well. All times are nanoseconds from the trace's base.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from byteprophet.errors import UserError
from byteprophet.timeline.json_traces import EVENTS
from byteprophet.timeline.kineto_calls import Call, Calls, Track
from byteprophet.timeline.kineto_events import (
    BACKENDS,
    ROUNDING_NS,
    Category,
    EventReader,
    Operation,
    is_collective_kernel,
)
from byteprophet.timeline.kineto_sizes import count, message_bytes, tensor_bytes
from byteprophet.traces.messages import Message, message_of
from byteprophet.traces.work import Use

_STEP = re.compile(r"ProfilerStep#(\d{1,9})")
_LATEST_NS = 1 << 61
_LOADING = "enumerate(DataLoader)#"


class Span(NamedTuple):
    """A call on a thread. ``message``: set where the thread itself communicates (gloo's do)."""

    begin_ns: int
    end_ns: int
    name: str
    category: Category
    message: Message | None = None

    @property
    def is_loading(self) -> bool:
        """Whether it is a wait for a DataLoader."""
        return self.name.startswith(_LOADING)


class Launch(NamedTuple):
    """A call of CUDA's or another runtime, on a thread."""

    begin_ns: int
    end_ns: int
    name: str
    track: Track
    correlation: int


class DeviceWork(NamedTuple):
    """A kernel or a copy."""

    begin_ns: int
    end_ns: int
    name: str
    stream: Track
    correlation: int
    use: Use
    message: Message | None


class Synchronisation(NamedTuple):
    """A wait as the device's tools saw it.

    Attributes:
        stream: the stream that waits, or for which the host waits.
        on: for events: the stream on which the event was recorded, if known.
        recorded: the correlation id of the call that recorded it; 0: not known.
    """

    stream: Track
    on: Track | None
    recorded: int


class StepSpan(NamedTuple):
    """A ``ProfilerStep#``."""

    begin_ns: int
    end_ns: int
    number: int
    track: Track


@dataclass
class Profile:
    """A rank's profile.

    ``synchronisations`` are known by the correlation ids of their calls.
    """

    path: Path
    rank: int
    world_size: int
    spans: dict[Track, list[Span]] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    work: list[DeviceWork] = field(default_factory=list)
    synchronisations: dict[int, Synchronisation] = field(default_factory=dict)
    steps: list[StepSpan] = field(default_factory=list)
    names: dict[Track, str] = field(default_factory=dict)


class ProfileReader:
    """Takes the parts of a trace (``json_traces.json_parts``) and then returns the profile."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._events = EventReader(path)
        self._number = 0
        self._about: Mapping[str, Any] | None = None
        self._profile = Profile(path, 0, 0)
        self._calls = Calls()
        self._kernels: list[tuple[Operation, bool]] = []  # and whether NCCL's

    def take(self, key: str, value: Any) -> None:
        """Takes the next part. Raises ``UserError`` if it is not part of a trace."""
        if key == "":
            if self._about is not None:
                raise UserError(f"{self._path}: is not a trace: it has more than one JSON value")
            self._about = value if isinstance(value, dict) else {}
        if key != EVENTS:
            return
        if not isinstance(value, dict):
            raise UserError(f"{self._path}: event {self._number}: must be an object")
        self._name(value)
        operation = self._events.read(self._number, value)
        if operation is not None:
            self._add(operation)
        self._number += 1

    def profile(self, rank: int) -> Profile:
        """The profile. ``rank`` is used if the trace does not state its own."""
        for operation in self._events.paired():
            self._add(operation)
        profile = self._profile
        about = self._about or {}
        said = about.get("distributedInfo")
        said = said if isinstance(said, dict) else {}
        stated = said.get("rank", rank)
        if type(stated) is not int or not 0 <= stated < 2**15:
            raise UserError(
                f"{self._path}: rank {reprlib.repr(stated)}: must be an integer from 0 to 32767"
            )
        profile.rank, profile.world_size = stated, count(said.get("world_size"))
        self._add_kernels()
        if not profile.spans and not profile.launches:
            raise UserError(f"{self._path}: has no operations of a thread: was a step profiled?")
        if not profile.steps:
            raise UserError(
                f"{self._path}: has no complete iteration: profile with a schedule, and call "
                "profiler.step() after each iteration"
            )
        self._check_steps()
        return profile

    def _check_steps(self) -> None:
        """Refuses iterations without a length, and those of one thread that overlap."""
        until_ns: dict[Track, int] = {}
        for step in sorted(self._profile.steps):
            what = f"{self._path}: ProfilerStep#{step.number}"
            if step.end_ns == step.begin_ns:
                raise UserError(f"{what}: takes no time: profile once more")
            if step.begin_ns < until_ns.get(step.track, step.begin_ns) - ROUNDING_NS:
                raise UserError(f"{what}: begins before the previous one ended: profile once more")
            until_ns[step.track] = step.end_ns

    def _name(self, event: Mapping[str, Any]) -> None:
        if event.get("ph") == "M" and event.get("name") == "thread_name":
            arguments = event.get("args")
            name = arguments.get("name") if isinstance(arguments, dict) else None
            if isinstance(name, str) and len(self._profile.names) < 1 << 16:
                track = str(event.get("pid")), str(event.get("tid"))
                self._profile.names[track] = name.strip()

    def _add(self, operation: Operation) -> None:
        category, name, begin_ns, duration_ns, track, arguments = operation
        if duration_ns < 0:
            raise UserError(
                f"{self._path}: {reprlib.repr(name)}: takes {duration_ns / 1000:.3f} us: its end "
                "is not known: profile once more"
            )
        end_ns = begin_ns + duration_ns
        if max(abs(begin_ns), duration_ns) > _LATEST_NS:
            raise UserError(f"{self._path}: {reprlib.repr(name)}: its times are too large")
        profile = self._profile
        correlation = count(arguments.get("correlation"))
        if category is Category.LAUNCH:
            profile.launches.append(Launch(begin_ns, end_ns, name, track, correlation))
            if correlation:
                self._calls.launches[correlation] = track, begin_ns
        elif category is Category.SYNCHRONISATION:
            profile.synchronisations[correlation] = _synchronisation(track, arguments)
        elif category in (Category.KERNEL, Category.COPY):
            self._kernels.append((operation, is_collective_kernel(name)))
        else:
            self._add_span(operation, end_ns)

    def _add_span(self, operation: Operation, end_ns: int) -> None:
        category, name, begin_ns, _, track, arguments = operation
        step = _STEP.fullmatch(name)
        if step:
            self._profile.steps.append(StepSpan(begin_ns, end_ns, int(step[1]), track))
            return
        message = None
        backend, _, what = name.partition(":")
        if category is Category.ANNOTATION and what and backend in BACKENDS:
            size_bytes = sum(tensor_bytes(arguments))
            if backend == "nccl":
                self._call(operation, end_ns, what, 0, size_bytes)
            else:
                message = message_of(what, arguments, size_bytes)
        elif name == "record_param_comms" or name.startswith("c10d::"):
            tensors = max(tensor_bytes(arguments), default=0)
            self._call(operation, end_ns, "", message_bytes(arguments), tensors)
        span = Span(begin_ns, end_ns, name, category, message)
        self._profile.spans.setdefault(track, []).append(span)

    def _call(self, operation: Operation, end_ns: int, name: str, said: int, tensors: int) -> None:
        call = Call(operation.begin_ns, end_ns, name, said, tensors)
        self._calls.calls.setdefault(operation.track, []).append(call)

    def _add_kernels(self) -> None:
        nccl = [operation for operation, is_nccl in self._kernels if is_nccl]
        ids = (count(operation.arguments.get("correlation")) for operation in nccl)
        called = self._calls.of_kernels(number for number in ids if number)
        for operation, is_nccl in self._kernels:
            category, name, begin_ns, duration_ns, stream, arguments = operation
            correlation = count(arguments.get("correlation"))
            use = Use.COPY if category is Category.COPY else Use.KERNEL
            message = None
            if is_nccl:
                use = Use.COLLECTIVE
                what, size_bytes = called.get(correlation, ("", 0))
                message = message_of(what or name, arguments, size_bytes)
            end_ns = begin_ns + duration_ns
            self._profile.work.append(
                DeviceWork(begin_ns, end_ns, name, stream, correlation, use, message)
            )


def _synchronisation(track: Track, arguments: Mapping[str, Any]) -> Synchronisation:
    stream, device = arguments.get("wait_on_stream"), arguments.get("device", track[0])
    on = (str(device), str(stream)) if type(stream) is int and stream >= 0 else None
    return Synchronisation(track, on, count(arguments.get("wait_on_cuda_event_record_corr_id")))
