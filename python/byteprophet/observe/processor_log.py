"""The processor time of this process, and of its training thread, when each iteration begins.

Reading both takes about a microsecond per iteration. The file ``processors/<role>.json`` of a run
also says which cores the process may use, and on which machine. ``byteprophet replay`` and
``optimize`` learn from it how computing and communication slow each other down
(``measure/processor_file.py``).

Threads: the training thread calls ``note``, the observer's writes the file when the recording ends.
A deque makes both atomic, and its length is bounded: the latest iterations stay.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from pathlib import Path

from byteprophet.timeline.events import Origin
from byteprophet.whole_files import OneWarning, make_directory, write_whole

DIRECTORY = "processors"
SCHEMA = 1
_CAPACITY = 1 << 16


class ProcessorLog:
    """Iterations with the processor time that was used before them."""

    def __init__(self) -> None:
        self._rows: deque[tuple[int, int, int, int]] = deque(maxlen=_CAPACITY)

    def note(self, iteration: int, now_ns: int) -> None:
        """Note, in the training thread, that ``iteration`` begins ``now_ns``."""
        self._rows.append((iteration, now_ns, time.thread_time_ns(), time.process_time_ns()))

    def write(self, run_directory: Path, origin: Origin) -> None:
        """Write the file, and forget what is in it. Nothing was noted: there is none."""
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        if not rows:
            return
        data = {
            "schema": SCHEMA,
            "role": origin.role,
            "rank": origin.rank,
            "machine": origin.machine,
            "cores": sorted(os.sched_getaffinity(0)),
            "iterations": rows,
        }
        directory = run_directory / DIRECTORY
        with OneWarning("processor time is not saved; training continues").instead():
            make_directory(directory)
            write_whole(directory / f"{origin.role}.json", json.dumps(data) + "\n")
