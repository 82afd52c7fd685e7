"""A file of Chrome's trace events in JSON, as Perfetto reads them, written one event at a time.

    M    names and order of processes and threads      X      slices
    C    counters                                      s t f  arrows: begin, over, end

Perfetto hangs an arrow's end on the slice that is open on that thread at that time: one that has
begun, and has not ended. It sorts by time and keeps the order in the file among equals; so an arrow
has to be written after its slices. Times are nanoseconds from the file's origin, written as
microseconds with three decimals: no digit is lost.
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
"""Letters of a name that Perfetto is given."""


class TraceFile:
    """The events of one file. Slices have their names as JSON (``quoted``), to quote each once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.slices = self.arrows = 0
        self._between = ""
        stream.write('{"displayTimeUnit": "ms", "traceEvents": [\n')

    def process(self, pid: int, name: str, order: int) -> None:
        """Name a process and say where it stands."""
        self._metadata(pid, pid, "process_name", {"name": name})
        self._metadata(pid, pid, "process_sort_index", {"sort_index": order})

    def thread(self, pid: int, tid: int, name: str) -> None:
        """Name a thread; they stand in the order of their numbers."""
        self._metadata(pid, tid, "thread_name", {"name": name})
        self._metadata(pid, tid, "thread_sort_index", {"sort_index": tid})

    def slice(
        self, pid: int, tid: int, name: str, begin_ns: int, end_ns: int, arguments: str = "{}"
    ) -> None:
        """What went on from ``begin_ns`` to ``end_ns``; ``name`` and ``arguments`` are JSON."""
        self.slices += 1
        self._write(
            f'{{"ph": "X", "pid": {pid}, "tid": {tid}, "ts": {_us(begin_ns)}, '
            f'"dur": {_us(end_ns - begin_ns)}, "name": {name}, "args": {arguments}}}'
        )

    def arrow(self, number: int, points: list[tuple[int, int, int]]) -> None:
        """An arrow through ``points`` (pid, tid, time), two or more, in order of time."""
        self.arrows += 1
        phases = ['"s"', *['"t"'] * (len(points) - 2), '"f", "bp": "e"']
        for phase, (pid, tid, time_ns) in zip(phases, points, strict=True):
            self._write(
                f'{{"ph": {phase}, "pid": {pid}, "tid": {tid}, "ts": {_us(time_ns)}, '
                f'"cat": "transfer", "name": "transfer", "id": {number}}}'
            )

    def counter(self, pid: int, name: str, time_ns: int, unit: str, value: int) -> None:
        """From ``time_ns`` on, the process' counter ``name`` has ``value``."""
        self._write(
            f'{{"ph": "C", "pid": {pid}, "tid": {pid}, "ts": {_us(time_ns)}, '
            f'"name": "{name}", "args": {{"{unit}": {value}}}}}'
        )

    def end(self, other: Mapping[str, Any]) -> None:
        """Complete the file; ``other`` is what it says about itself."""
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
    """``text`` as JSON, not too long."""
    return json.dumps(text[:MOST_NAME])


@contextmanager
def new_trace_file(path: Path) -> Iterator[TraceFile]:
    """A file that appears at ``path`` when it is whole; gzipped if the name ends in ``.gz``."""
    with whole_file(path) as partial, partial.open("wb") as raw:
        if path.suffix != ".gz":
            with io.TextIOWrapper(raw, "ascii") as text:
                yield TraceFile(text)
            return
        # No name and no time in it: the same trace gives the same bytes.
        with (
            gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
            io.TextIOWrapper(io.BufferedWriter(packed, 1 << 20), "ascii") as text,
        ):
            yield TraceFile(text)


def _us(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"
