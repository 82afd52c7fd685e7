"""Writes a file of Chrome's JSON trace events for Perfetto, one event at a time.

    M    names and order of processes and threads      X      slices
    C    counters                                      s t f  arrows: start, via, end

Perfetto attaches an arrow's end to the slice that is open on that thread at that time, i.e. has
begun and has not ended. It sorts by time and keeps the file's order among equal times. So an arrow
must be written after its slices. Times are nanoseconds from the file's origin, written as
microseconds with three decimals, so that no digit is lost.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from byteprophet.whole_files import whole_file

MOST_NAME = 1000
"""Names are cut to this many characters."""


class TraceFile:
    """The events of one file.

    Names of slices are given as JSON (``quoted``), so that callers can quote each name only once.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.slices = self.arrows = 0
        self._between = ""
        stream.write('{"displayTimeUnit": "ms", "traceEvents": [\n')

    def process(self, pid: int, name: str, order: int) -> None:
        """Sets the name and the position of a process."""
        self._metadata(pid, pid, "process_name", {"name": name})
        self._metadata(pid, pid, "process_sort_index", {"sort_index": order})

    def thread(self, pid: int, tid: int, name: str) -> None:
        """Sets the name of a thread. Threads are shown in the order of their numbers."""
        self._metadata(pid, tid, "thread_name", {"name": name})
        self._metadata(pid, tid, "thread_sort_index", {"sort_index": tid})

    def slice(
        self, pid: int, tid: int, name: str, begin_ns: int, end_ns: int, arguments: str = "{}"
    ) -> None:
        """Writes a slice from ``begin_ns`` to ``end_ns``. ``name`` and ``arguments`` are JSON."""
        self.slices += 1
        self._write(
            f'{{"ph": "X", "pid": {pid}, "tid": {tid}, "ts": {_us(begin_ns)}, '
            f'"dur": {_us(end_ns - begin_ns)}, "name": {name}, "args": {arguments}}}'
        )

    def arrow(self, number: int, points: list[tuple[int, int, int]]) -> None:
        """Writes an arrow through two or more ``points`` (pid, tid, time), in order of time."""
        self.arrows += 1
        phases = ['"s"', *['"t"'] * (len(points) - 2), '"f", "bp": "e"']
        for phase, (pid, tid, time_ns) in zip(phases, points, strict=True):
            self._write(
                f'{{"ph": {phase}, "pid": {pid}, "tid": {tid}, "ts": {_us(time_ns)}, '
                f'"cat": "transfer", "name": "transfer", "id": {number}}}'
            )

    def counter(self, pid: int, name: str, time_ns: int, unit: str, value: int) -> None:
        """Sets the process' counter ``name`` to ``value`` from ``time_ns`` on."""
        self._write(
            f'{{"ph": "C", "pid": {pid}, "tid": {pid}, "ts": {_us(time_ns)}, '
            f'"name": "{name}", "args": {{"{unit}": {value}}}}}'
        )

    def end(self, other: Mapping[str, Any]) -> None:
        """Completes the file. ``other`` is data about the file itself."""
        self._stream.write(f'\n],\n"otherData": {json.dumps(other)}}}\n')

    def _metadata(self, pid: int, tid: int, name: str, arguments: Mapping[str, Any]) -> None:
        self._write(
            f'{{"ph": "M", "pid": {pid}, "tid": {tid}, "ts": 0, "name": "{name}", '
            f'"args": {json.dumps(arguments)}}}'
        )

    def _write(self, event: str) -> None:
        self._stream.write(self._between)
        self._stream.write(event)
        self._between = ",\n"


def quoted(text: str) -> str:
    """``text`` as JSON, cut to ``MOST_NAME`` characters."""
    return json.dumps(text[:MOST_NAME])


@contextmanager
def new_trace_file(path: Path) -> Iterator[TraceFile]:
    """A trace file that appears at ``path`` once it is complete; gzipped if named ``*.gz``."""
    with whole_file(path) as partial, partial.open("wb") as raw:
        if path.suffix != ".gz":
            with io.TextIOWrapper(raw, "ascii") as text:
                yield TraceFile(text)
            return
        # The gzip header has no name and no time, so that equal traces give equal bytes.
        with (
            gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
            io.TextIOWrapper(io.BufferedWriter(packed, 1 << 20), "ascii") as text,
        ):
            yield TraceFile(text)


def _us(time_ns: int) -> str:
    us, ns = divmod(abs(time_ns), 1000)
    return f"{'-' if time_ns < 0 else ''}{us}.{ns:03d}"
