"""Finds roles that somebody stopped (SIGSTOP) and left so.

Where the stopped process sends heartbeats, the others notice by themselves; this is for those that
send none, such as the other local ranks of a worker. It looks seldom, as it reads all of /proc.
Used by the supervisor's thread only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from byteprophet.launcher.descendants import Descendants

_LOOKS = 4  # within the limit
_FEWEST_S, _MOST_S = 0.5, 5.0


class StoppedWatch:
    """Knows since when which of a job's processes have been stopped; ``limit_s`` None: looks not.

    Of the time between two looks only so much counts as should have passed: while this process
    was stopped itself, or the machine slept, nothing is known of others.
    """

    def __init__(self, descendants: Descendants, limit_s: float | None) -> None:
        self._descendants = descendants
        self._limit_s = limit_s
        self._period_s = min(max((limit_s or 0) / _LOOKS, _FEWEST_S), _MOST_S)
        self._looked_s = time.monotonic()
        self._stopped_s: dict[tuple[int, int], float] = {}

    def look(self, roles: Mapping[int, str]) -> str | None:
        """One line if a role is stopped for too long; ``roles`` are names by process.

        The process of a role leads a session, which is how others of the role are known.
        """
        now_s = time.monotonic()
        if self._limit_s is None or now_s - self._looked_s < self._period_s:
            return None
        step_s = min(now_s - self._looked_s, 2 * self._period_s)
        self._looked_s = now_s
        before, self._stopped_s = self._stopped_s, {}
        for process in self._descendants.stopped():
            name = roles.get(process.session)
            key = (process.pid, process.start)
            self._stopped_s[key] = before[key] + step_s if key in before else 0.0
            if name is not None and self._stopped_s[key] >= self._limit_s:
                return f"{name} was stopped (SIGSTOP) and did not go on: process {process.pid}"
        return None
