"""``comm.json``: what BytePS itself traces under ``BYTEPS_TRACE_ON=1``, one file per local rank.

A Chrome trace. Its ``pid`` is ``Comm.<tensor>``; ``tid`` is ``total`` for the whole push_pull of a
tensor, else a partition's key, for one stage of its way:

    total          COLLECTIVE, named after the tensor
    PUSH, PULL     SEND, RECEIVE; a push lasts until the server has it
    other stages   COMPUTE: local sums and copies, compression

Stages are named ``<tensor>.<STAGE> [<partition>]``. Times are microseconds of the wall clock;
neither sizes nor iterations are there. The n-th time of one name and key is iteration n, counted
from the first that was traced (``BYTEPS_TRACE_START_STEP``). A stage that was under way when BytePS
wrote the file has no duration.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.timeline.events import Events
from byteprophet.timeline.json_traces import field, parse_json, read_bytes, time_ns, trace_events
from byteprophet.timeline.span_list import SpanList
from byteprophet.timeline.tables import Kind

_PREFIX = "Comm."
_TOTAL = "total"
_KINDS = {"PUSH": Kind.SEND, "PULL": Kind.RECEIVE}


def read_comm_json(path: Path, rank: int = 0) -> Events:
    """The spans in the file, as of worker ``rank``: it knows only the local one, by its directory.

    UserError in one line if it is cut off, of something else, or has nothing in it.
    """
    return comm_json_events(path, parse_json(path, read_bytes(path)), rank)


def is_comm_json(trace: Any) -> bool:
    """Whether a Chrome trace is BytePS'."""
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    return isinstance(events, list) and all(
        isinstance(event, dict) and event.get("cat") == "Comm" for event in events
    )


def comm_json_events(path: Path, trace: Any, rank: int) -> Events:
    """As ``read_comm_json``, of a file's content."""
    found = []
    for number, event in enumerate(trace_events(path, trace)):
        if event.get("cat") != "Comm" or event.get("ph") != "X":
            raise UserError(f"{path}: event {number}: is not one of BytePS' own traces")
        label = _without_prefix(path, number, field(path, event, number, "pid", str))
        name = _without_prefix(path, number, field(path, event, number, "name", str))
        key = field(path, event, number, "tid", str)
        if key == _TOTAL:
            kind, stage = Kind.COLLECTIVE, _TOTAL
        else:
            if not (key.isdecimal() and len(key) <= 20) or not name.startswith(f"{label}."):
                raise UserError(f"{path}: event {number}: name {name!r}, tid {key!r}: do not fit")
            stage = name[len(label) + 1 :]
            kind = _KINDS.get(stage, Kind.COMPUTE)
            name = f"{name} [{int(key) & 0xFFFF}]"
        begin_ns = time_ns(path, event, number, "ts")
        found.append((begin_ns, time_ns(path, event, number, "dur"), kind, name, stage))
    if not found:
        raise UserError(f"{path}: has no events: the job ended before BYTEPS_TRACE_END_STEP")
    spans, times = SpanList(path), Counter[str]()
    for begin_ns, duration_ns, kind, name, stage in sorted(found, key=lambda event: event[0]):
        times[name] += 1
        spans.add(kind, name, begin_ns, duration_ns, stage, iteration=times[name])
    return spans.events(rank)


def _without_prefix(path: Path, number: int, text: str) -> str:
    if not text.startswith(_PREFIX):
        raise UserError(f"{path}: event {number}: {text!r}: must begin with {_PREFIX}")
    return text[len(_PREFIX) :]
