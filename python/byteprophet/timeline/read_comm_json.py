"""Reads ``comm.json``, which BytePS itself writes if ``BYTEPS_TRACE_ON=1``, one per local rank.

It is a Chrome trace. ``pid`` is ``Comm.<tensor>``. ``tid`` is ``total`` for the whole push_pull of
a tensor; for one stage of a partition, it is the partition's key:

    total          COLLECTIVE, named after the tensor
    PUSH, PULL     SEND, RECEIVE; a push lasts until the server has it
    other stages   COMPUTE: local sums and copies, compression

Stages are named ``<tensor>.<STAGE> [<partition>]``. Times are microseconds of the wall clock. The
file has neither sizes nor iterations. The n-th event of one name and key is iteration n, counted
from the first traced one (``BYTEPS_TRACE_START_STEP``). A stage that was running when BytePS wrote
the file has no duration.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from byteprophet.errors import UserError
from byteprophet.timeline.chrome_reader import ChromeReader
from byteprophet.timeline.events import Events
from byteprophet.timeline.json_traces import field, time_ns
from byteprophet.timeline.span_list import SpanList
from byteprophet.timeline.tables import Kind

_PREFIX = "Comm."
_TOTAL = "total"
_KINDS = {"PUSH": Kind.SEND, "PULL": Kind.RECEIVE}


def read_comm_json(path: Path, rank: int = 0) -> Events:
    """The spans in the file, which count as those of worker ``rank``.

    The file does not contain the rank; its directory tells only the local rank. Raises
    ``UserError``, with one line, if the file is cut off, is not such a trace, or is empty.
    """
    return CommJsonReader(path).read(rank)


class _Found(NamedTuple):
    begin_ns: int
    duration_ns: int
    kind: Kind
    name: str
    stage: str


class CommJsonReader(ChromeReader):
    """Takes the parts of a trace and then returns its spans."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._found: list[_Found] = []

    def _event(self, number: int, event: Mapping[str, Any]) -> None:
        self._found.append(_span(self.path, number, event))

    def events(self, rank: int) -> Events:
        """All spans, which count as those of worker ``rank``."""
        self.about()
        if not self._found:
            raise UserError(
                f"{self.path}: has no events: the job ended before BYTEPS_TRACE_END_STEP"
            )
        spans, times = SpanList(self.path), Counter[str]()
        for begin_ns, duration_ns, kind, name, stage in sorted(
            self._found, key=lambda found: found.begin_ns
        ):
            times[name] += 1
            spans.add(kind, name, begin_ns, duration_ns, stage, iteration=times[name])
        return spans.events(rank)


def _span(path: Path, number: int, event: Mapping[str, Any]) -> _Found:
    if event.get("cat") != "Comm" or event.get("ph") != "X":
        raise UserError(f"{path}: event {number}: is not one of BytePS' own traces")
    label = _without_prefix(path, number, field(path, event, number, "pid", str))
    name = _without_prefix(path, number, field(path, event, number, "name", str))
    key = field(path, event, number, "tid", str)
    if key == _TOTAL:
        kind, stage = Kind.COLLECTIVE, _TOTAL
    else:
        if not (key.isdecimal() and len(key) <= 20) or not name.startswith(f"{label}."):
            shown = f"name {reprlib.repr(name)}, tid {reprlib.repr(key)}"
            raise UserError(f"{path}: event {number}: {shown}: do not match")
        stage = name[len(label) + 1 :]
        kind = _KINDS.get(stage, Kind.COMPUTE)
        name = f"{name} [{int(key) & 0xFFFF}]"
    begin_ns = time_ns(path, event, number, "ts")
    return _Found(begin_ns, time_ns(path, event, number, "dur"), kind, name, stage)


def _without_prefix(path: Path, number: int, text: str) -> str:
    if not text.startswith(_PREFIX):
        raise UserError(f"{path}: event {number}: {reprlib.repr(text)}: must begin with {_PREFIX}")
    return text[len(_PREFIX) :]
