"""The data about the process that the makers of consumers get."""

from __future__ import annotations

from dataclasses import dataclass, field

from byteprophet.observe.observer import Job
from byteprophet.profile.model import Profile
from byteprophet.profile.profiler import Stopwatch


@dataclass
class Findings:
    """Results of consumers, for the consumers after them in the list.

    Only the observer's thread reads and writes them.
    """

    profile: Profile | None = None


@dataclass(frozen=True)
class SessionJob(Job):
    """A ``Job`` with data that consumers take from each other or from the front.

    ``stopwatch`` measures forward passes; None if the front has none.
    """

    stopwatch: Stopwatch | None = None
    found: Findings = field(default_factory=Findings)
