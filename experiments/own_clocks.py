"""Rewrites the recording of one machine as if every role had run on a machine of its own."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from byteprophet.timeline.clocks import Times, on_one_clock
from byteprophet.timeline.events import SUFFIX, Events, save_events
from byteprophet.timeline.read_events import load_events

OFFSET_NS = 50_000_000
DRIFT_PPB = 50_000
_BOOTED_NS = 30 * 24 * 3600 * 10**9  # the longest time since a machine booted


@dataclass(frozen=True)
class Clock:
    """A machine's clock, ``offset_ns`` ahead at true time ``since_ns`` and gaining ``drift_ppb``.

    Its monotonic clock began ``boot_ns`` before the true one. Its wall clock has the same error.
    """

    machine: str
    boot_ns: int
    offset_ns: int
    drift_ppb: int
    since_ns: int

    def shows(self, times_ns: Times) -> Times:
        """The reading of the monotonic clock at true times, rounded down."""
        gained = (times_ns - self.since_ns) * self.drift_ppb // 10**9
        shown: Times = times_ns + self.boot_ns + self.offset_ns + gained
        return shown

    def wrote(self, events: Events) -> Events:
        """``events``, recorded on the true clock, as this machine writes them."""
        origin = events.origin
        now_ns = int(self.shows(np.array([origin.monotonic_ns]))[0])
        wrong_ns = now_ns - self.boot_ns - origin.monotonic_ns
        (shown,) = on_one_clock([events], lambda _, times_ns: self.shows(times_ns))
        unix_ns = origin.unix_ns + wrong_ns
        mine = replace(origin, machine=self.machine, monotonic_ns=now_ns, unix_ns=unix_ns)
        return replace(shown, origin=mine)


def clocks_for(roles: Sequence[str], since_ns: int, seed: int) -> dict[str, Clock]:
    """A random clock for each role; ``seed`` determines all of them."""
    rng = np.random.default_rng(seed)
    return {
        role: Clock(
            machine=str(uuid.UUID(bytes=rng.bytes(16))),
            boot_ns=int(rng.integers(_BOOTED_NS)),
            offset_ns=int(rng.integers(-OFFSET_NS, OFFSET_NS + 1)),
            drift_ppb=int(rng.integers(-DRIFT_PPB, DRIFT_PPB + 1)),
            since_ns=since_ns,
        )
        for role in roles
    }


def by_wall_clocks(clocks: Mapping[str, Clock]) -> dict[str, Clock]:
    """The same clocks, for an alignment that trusts the machines' wall clocks."""
    return {role: replace(clock, machine="one", boot_ns=0) for role, clock in clocks.items()}


def rewrite(run: Path, directory: Path, clocks: Mapping[str, Clock]) -> Path:
    """Copy ``run`` to ``directory``, with events stamped by the roles' ``clocks``."""
    shutil.copytree(run, directory, ignore=shutil.ignore_patterns("events", "logs"))
    (directory / "events").mkdir()
    for path in sorted((run / "events").glob(f"*{SUFFIX}")):
        events = load_events(path)
        save_events(directory / "events" / path.name, clocks[events.origin.role].wrote(events))
    return directory
