"""The status file that a worker writes while somebody watches its job: ``live/<role>.json``.

    viewer ── touches live/asked ──► LiveConsumer ── replaces live/<role>.json ──► viewer

A viewer (``byteprophet.watch``) touches ``live/asked`` in the run directory every second. The
consumer looks at that file's time once a second. If it has changed within the last six seconds,
transfers are recorded, and the status file is replaced twice a second. Otherwise the consumer needs
nothing, does nothing, and costs one ``stat`` per second. Only changes of the time count, and only
on this machine's clock, so it does not matter what the viewer's clock says. When the process leaves
the job, it writes the file once more in any case: a finished run shows its last iterations.

Threads: all of it runs in the observer's thread. What it reads from others is in ``pace.py``. The
file is replaced as a whole, so a reader sees an old one or a new one.

docs/formats.md describes the file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from byteprophet.observe.interfaces import interface_bytes
from byteprophet.observe.live_traffic import Recent, Traffic
from byteprophet.observe.observer import Job
from byteprophet.observe.pace import Pace, process_pace
from byteprophet.observe.recording import role_in
from byteprophet.runtime_settings import flag
from byteprophet.timeline.events import Origin
from byteprophet.timeline.tables import Transfers
from byteprophet.whole_files import OneWarning, make_directory, write_whole

VARIABLE = "BYTEPROPHET_WATCH"
DIRECTORY, ASKED = "live", "asked"
SCHEMA = 1
_LOOK_NS = 1_000_000_000
_KEEP_NS = 6_000_000_000
_WRITE_NS = 500_000_000
_MOST_STARTS = 128
_MOST_WAITS = 12


class LiveConsumer:
    """A consumer of the observer, see above. ``has_transfers``: the process has a plug-in."""

    def __init__(
        self,
        run_directory: Path,
        role: str,
        job: Job,
        *,
        has_transfers: bool,
        pace: Pace = process_pace,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._directory = run_directory / DIRECTORY
        self._role, self._job = role, job
        self._has_transfers = has_transfers
        self._pace = pace
        self._clock = clock
        self._or_else = OneWarning("the job cannot be watched")
        self._traffic = Traffic(job.names)
        self._waits = Recent()
        self._wait_ns = 0
        self._stamp = 0  # the time of the viewer's file
        self._asked_ns: int | None = None  # when that time was seen to have changed
        self._looked_ns: int | None = None
        self._written_ns = 0
        self._watching = False
        self._watched = 0  # how often watching has begun

    @property
    def every(self) -> int:
        """1 while somebody watches, else 0."""
        return int(self._watching)

    def take(self, transfers: Transfers) -> None:
        """Adds ``transfers`` and writes the file, if somebody watches and it is time to."""
        now_ns = self._clock()
        if self._looked_ns is None or now_ns - self._looked_ns >= _LOOK_NS:
            self._looked_ns = now_ns
            self._look(now_ns)
        if not self._watching:
            return
        self._traffic.add(transfers, now_ns)
        self._add_waits(now_ns)
        if now_ns - self._written_ns >= _WRITE_NS:
            self._written_ns = now_ns
            self._write(ended=False)

    def close(self) -> None:
        """Writes the file for the last time."""
        if self._watching:
            self._add_waits(self._clock())
        if self._pace.count or self._watched:
            self._write(ended=True)

    def abandon(self) -> None:
        """Records no transfers any more."""
        self._watching = False

    def _look(self, now_ns: int) -> None:
        """Finds out whether somebody watches."""
        try:
            stamp = (self._directory / ASKED).stat().st_mtime_ns
        except OSError:
            stamp = 0
        if stamp and stamp != self._stamp:
            self._asked_ns = now_ns
        self._stamp = stamp
        watching = self._asked_ns is not None and now_ns - self._asked_ns < _KEEP_NS
        if watching and not self._watching:
            self._watched += 1
            self._pace.take_waits()  # those of the time before
        self._watching = watching

    def _add_waits(self, now_ns: int) -> None:
        for name, wait_ns in self._pace.take_waits():
            self._wait_ns += wait_ns
            self._waits.add(name, (1, wait_ns))
        self._waits.age(now_ns)

    def _write(self, ended: bool) -> None:
        with self._or_else.instead():
            make_directory(self._directory)
            text = json.dumps(self._status(ended), separators=(",", ":"))
            write_whole(self._directory / f"{self._role}.json", text + "\n")

    def _status(self, ended: bool) -> dict[str, Any]:
        origin = Origin(self._role, self._job.rank)
        waits = sorted(self._waits.items(), key=lambda row: -row[1][1])
        return {
            "schema": SCHEMA,
            "role": self._role,
            "rank": self._job.rank,
            "size": self._job.size,
            "pid": os.getpid(),
            "machine": origin.machine,
            "monotonic_ns": origin.monotonic_ns,
            "unix_ns": origin.unix_ns,
            "ended": ended,
            "watched": self._watched,
            "watching": self._watching,
            "iterations": self._pace.count,
            "starts": self._pace.starts(_MOST_STARTS),
            "wait_ns": self._wait_ns if self._pace.tells_waits else None,
            "waits": [
                {"name": name, "count": count, "wait_ns": wait_ns}
                for name, (count, wait_ns) in waits[:_MOST_WAITS]
            ],
            **self._traffic.sums(),
            "links": self._traffic.links(),
            "tensors": self._traffic.tensors(),
            "interfaces": None if self._has_transfers else interface_bytes(),
        }


def make_consumer(
    environment: Mapping[str, str], job: Job, *, has_transfers: bool
) -> LiveConsumer | None:
    """The consumer, or None without a run directory, or if the variable is 0.

    Raises ``UserError`` if the variable, or the role's name, is invalid.
    """
    if not flag(environment, VARIABLE, "1") or job.run_directory is None:
        return None
    role = role_in(environment) or f"worker-{job.rank}"
    return LiveConsumer(job.run_directory, role, job, has_transfers=has_transfers)
