"""Keeps a process alive that a job can do without: the controller.

Only the supervisor's thread uses this. The process is restarted only a few times, because one that
ends at once would do so again. Without it, the job goes on as it does between two of its lives.
"""

from __future__ import annotations

import dataclasses

from byteprophet.launcher.role import Role, RolePlan

_MOST_LIVES = 4
_PAUSE_S = 1.0  # between two lives
_WRONG_USAGE = 2  # an exit status that a new life would have, too


class Attendant:
    """``lives`` are the processes so far; the last one may still run. The supervisor adds lives."""

    def __init__(self, plan: RolePlan) -> None:
        self.plan = plan
        self.lives: list[Role] = []
        self._mourned = 0  # lives whose end was reported
        self._given_up = False

    def due(self, now_s: float) -> tuple[RolePlan | None, str | None]:
        """The process to start now, and a one-line warning about one that has just ended."""
        if not self.lives:
            return self.plan, None
        last = self.lives[-1]
        if last.exit_status is None or self._given_up:
            return None, None
        warning = None
        again = last.exit_status != _WRONG_USAGE and len(self.lives) < _MOST_LIVES
        if self._mourned < len(self.lives):
            self._mourned = len(self.lives)
            then = "it is started again" if again else "it is not started again"
            warning = f"byteprophet: warning: {last.obituary()}; the job goes on, {then}"
        return (self._next() if again and now_s - last.ended_s >= _PAUSE_S else None), warning

    def give_up(self) -> None:
        """Prevents further restarts."""
        self._given_up = True

    def _next(self) -> RolePlan:
        """The plan of the next life, with its own name and log."""
        name = f"{self.plan.name}.{len(self.lives) + 1}"
        return dataclasses.replace(self.plan, name=name, log=self.plan.log.with_name(f"{name}.log"))
