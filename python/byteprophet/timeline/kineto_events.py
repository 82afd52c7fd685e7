"""Reads operations from the events of a torch.profiler trace, in all forms that it has written.

                                          category         in 2021    in lists, by process
    calls of annotations                  user_annotation  Operator   CPU functions
    calls of operators                    cpu_op           Operator   CPU functions
    kernels on a device                   kernel           Kernel     CUDA functions
    copies and fills on a device          gpu_mem*         Mem*
    calls that launch them                cuda_*           Runtime
    waits of streams and of the host      cuda_sync

Events are complete ("X"), or consist of a begin event and an end event ("B", "E"). If one of the
two is missing, the event was running when recording began or ended, and is left out.
"""

from __future__ import annotations

import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from byteprophet.timeline.json_traces import field, time_ns
from byteprophet.timeline.kineto_calls import Track

BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")
_COLLECTIVE_KERNELS = ("nccl", "rccl", "msccl")
ROUNDING_NS = 1_000
"""So much too short an event may be by rounding, and so much may two overlap."""


class Category(Enum):
    """What an event is."""

    ANNOTATION = "annotation"
    OPERATOR = "operator"
    KERNEL = "kernel"
    COPY = "copy"
    LAUNCH = "launch"
    SYNCHRONISATION = "synchronisation"


_CATEGORIES = {
    "user_annotation": Category.ANNOTATION,
    "cpu_op": Category.OPERATOR,
    **dict.fromkeys(("kernel", "mtia_ccp_events"), Category.KERNEL),
    **dict.fromkeys(("gpu_memcpy", "gpu_memset", "memcpy", "memset"), Category.COPY),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "runtime"), Category.LAUNCH),
    **dict.fromkeys(("privateuse1_runtime", "privateuse1_driver"), Category.LAUNCH),
    "cuda_sync": Category.SYNCHRONISATION,
}
_NOT_SHOWN = (Category.LAUNCH, Category.SYNCHRONISATION)
_BY_NAME = "operator"
_OF_LISTS = " functions"
# Names of operators have a namespace. The only annotations with a colon are those of backends.
_OPERATOR = re.compile(rf"(?!(?:{'|'.join(BACKENDS)}):)[^:]*::|\w+Backward\d*$")


def is_collective_kernel(name: str) -> bool:
    """Whether a kernel is NCCL's or, on AMD's GPUs, RCCL's. Templates have a return type."""
    return name.removeprefix("void ").startswith(_COLLECTIVE_KERNELS)


class Operation(NamedTuple):
    """One event. Times count from the trace's base. One of negative duration has no known end."""

    category: Category
    name: str
    begin_ns: int
    duration_ns: int
    track: Track
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class _Open:
    """An event that has begun. ``category`` None: events of its kind are left out."""

    begin_ns: int
    number: int
    category: Category | None
    name: str
    arguments: Mapping[str, Any]


class EventReader:
    """Turns events into operations. ``path`` is the file that errors name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tracks: dict[Track, Track] = {}
        self._begun: dict[Track, list[_Open]] = {}
        self._ended: dict[Track, list[tuple[int, int, str]]] = {}
        self.other_categories: set[str] = set()

    def read(self, number: int, event: Mapping[str, Any]) -> Operation | None:
        """The operation of event ``number``; None for other kinds and for begin and end events.

        Raises ``UserError`` if the event lacks a field that events of its kind must have.
        """
        phase = event.get("ph")
        if phase not in ("X", "B", "E"):
            return None
        track = _shown(event.get("pid")), _shown(event.get("tid"))
        track = self._tracks.setdefault(track, track)
        if phase == "E":
            ended_ns = time_ns(self._path, event, number, "ts")
            name = _shown(event.get("name", ""))
            self._ended.setdefault(track, []).append((ended_ns, number, name))
            return None
        category = _category(event)
        if category is None and len(self.other_categories) < 5:
            self.other_categories.add(reprlib.repr(event.get("cat")))
        if category is None and phase == "X":
            return None
        begin_ns = time_ns(self._path, event, number, "ts")
        arguments = event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        if category in (None, *_NOT_SHOWN):
            name = _shown(event.get("name", ""))
        else:
            name = field(self._path, event, number, "name", str)
        if phase == "B":
            opened = _Open(begin_ns, number, category, name, arguments)
            self._begun.setdefault(track, []).append(opened)
            return None
        assert category is not None
        may_lack = category in _NOT_SHOWN and "dur" not in event
        duration_ns = 0 if may_lack else time_ns(self._path, event, number, "dur")
        if -ROUNDING_NS <= duration_ns < 0:
            duration_ns = 0
        return Operation(category, name, begin_ns, duration_ns, track, arguments)

    def paired(self) -> list[Operation]:
        """The operations from all pairs of a begin event and an end event that were read."""
        found = []
        for track, begun in self._begun.items():
            marks: list[tuple[int, int, _Open | str]] = [
                *((one.begin_ns, one.number, one) for one in begun),
                *self._ended.get(track, ()),
            ]
            for one, end_ns in _pairs(sorted(marks, key=lambda mark: mark[:2])):
                if one.category is not None:
                    took_ns = end_ns - one.begin_ns
                    arguments = one.arguments
                    found.append(
                        Operation(one.category, one.name, one.begin_ns, took_ns, track, arguments)
                    )
        return found


def _pairs(marks: Iterable[tuple[int, int, _Open | str]]) -> Iterator[tuple[_Open, int]]:
    """Pairs the begin and end events of one thread; yields each begin event with its end time.

    An end belongs to the innermost open event of its name, or to the innermost one if the end has
    no name. Events that began inside and are still open are dropped. An end without an open event
    is ignored.
    """
    stack: list[_Open] = []
    names = Counter[str]()
    for mark_ns, _, mark in marks:
        if isinstance(mark, _Open):
            stack.append(mark)
            names[mark.name] += 1
        elif names[mark] or (stack and not mark):
            while True:
                one = stack.pop()
                names[one.name] -= 1
                if mark in ("", one.name):
                    break
            yield one, mark_ns


def _category(event: Mapping[str, Any]) -> Category | None:
    """An event's category; None: the event is left out."""
    stated = event.get("cat")
    if isinstance(stated, str):
        category = stated.lower()
        if category == _BY_NAME:
            return _by_name(event)
        return _CATEGORIES.get(category)
    process = event.get("pid")
    if stated is None and isinstance(process, str) and process.endswith(_OF_LISTS):
        return _by_name(event) if process.startswith("CPU") else Category.KERNEL
    return None


def _by_name(event: Mapping[str, Any]) -> Category:
    is_operator = _OPERATOR.match(_shown(event.get("name")))
    return Category.OPERATOR if is_operator else Category.ANNOTATION


def _shown(value: Any) -> str:
    """``value`` as text. A number and its text are the same process or thread."""
    if isinstance(value, str | int):
        return str(value)
    return reprlib.repr(value)
