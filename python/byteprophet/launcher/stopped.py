"""Finds roles that somebody stopped (SIGSTOP) and did not continue.

If a stopped process sends heartbeats, the other roles notice by themselves. This is for processes
that send none, such as the other local ranks of a worker. It looks seldom, because it reads all of
/proc. Only the supervisor's thread uses it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from byteprophet.launcher.descendants import Descendants

_LOOKS = 4  # number of looks within the limit
_FEWEST_S, _MOST_S = 0.5, 5.0


class StoppedWatch:
    """Tracks how long each of a job's processes has been stopped. ``limit_s`` None: never looks.

    The time between two looks counts only up to twice the usual period. If it is longer, this
    process was stopped itself or the machine slept, so nothing is known about other processes.
    """

    def __init__(self, descendants: Descendants, limit_s: float | None) -> None:
        self._descendants = descendants
        self._limit_s = limit_s
        self._period_s = min(max((limit_s or 0) / _LOOKS, _FEWEST_S), _MOST_S)
        self._looked_s = time.monotonic()
        self._stopped_s: dict[tuple[int, int], float] = {}

    def look(self, roles: Mapping[int, str]) -> str | None:
        """One line if a role has been stopped for too long, else None.

        ``roles`` are names by process id. A role's process leads a session, so the session of
        another process tells to which role it belongs.
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
