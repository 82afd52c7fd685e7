"""Looks at a run directory again and again: a look gives a state (docs/formats.md, "Live state").

A look reads what is new in the run directory, and keeps what it needs for rates, iterations and
plans. While the job may be running, it also touches ``live/asked``, which makes the workers write
their status files (``observe/live.py``). Where that file cannot be written, a problem says so, and
only what workers write in any case is shown.

A file that cannot be read is a problem in the state, for as long as it cannot. One thread at a time
may call ``look``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from byteprophet.errors import NotWritten, UserError, one_line
from byteprophet.input_files import read_json
from byteprophet.observe.live import ASKED, DIRECTORY
from byteprophet.watch import bound
from byteprophet.watch.feed import Feed
from byteprophet.watch.live_file import LiveStatus, read_status
from byteprophet.watch.logged import Warnings
from byteprophet.watch.pacing import Pacing, straggler_of
from byteprophet.watch.plans import Plans
from byteprophet.watch.rates import WorkerRates
from byteprophet.watch.state import ENDED, Seen, state_of
from byteprophet.whole_files import writing
from byteprophet.workload.run_config import read_run_config

_MOST_STATUSES = 4096


class RunWatch:
    """The run in ``directory``. Raises ``UserError`` if there is no such directory."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        if not directory.is_dir():
            raise UserError(f"{directory}: there is no such run directory")
        self._directory = directory
        self._clock = clock
        self._config: Mapping[str, Any] | None = None
        self._statuses: dict[str, LiveStatus] = {}
        self._changed_s: dict[str, float] = {}  # when a role's status was seen to change
        self._rates: dict[str, WorkerRates] = {}
        self._pacing = Pacing()
        self._plans = Plans(directory)
        self._warnings = Warnings(directory)
        self._feed = Feed()
        self._bound = bound.Bound(None, "not known")
        self._bound_of: tuple[int, int] | None = None
        self._bound_problem: str | None = None
        self._news_s: float | None = None  # when anything was seen to change
        self._problems: list[str] = []
        self._looks = 0

    def look(self) -> dict[str, Any]:
        """The state now."""
        self._problems = []
        self._looks += 1
        summaries = self._summaries()
        ended = summaries.get("summary.json", {}).get("status") in ENDED
        if not ended:
            self._ask()
        self._read_config()
        self._read_statuses()
        self._read_logs()
        self._find_bound()
        straggler = self._feed_all()
        now_s = self._clock()
        return state_of(
            Seen(
                directory=self._directory,
                config=self._config,
                summaries=summaries,
                statuses=self._statuses,
                age_s={role: now_s - since_s for role, since_s in self._changed_s.items()},
                silent_s=None if self._news_s is None else now_s - self._news_s,
                rates=self._rates,
                pacing=self._pacing,
                plans=self._plans,
                warnings=self._warnings,
                bound=self._bound,
                feed=self._feed,
                straggler=straggler,
                problems=tuple(self._problems),
            )
        )

    def _ask(self) -> None:
        directory = self._directory / DIRECTORY
        if not self._directory.is_dir():
            self._problem(f"{self._directory}: the run directory is gone")
            return
        try:
            with writing(directory):
                # Not its parents: a run that somebody has deleted stays so.
                directory.mkdir(exist_ok=True)
            with writing(directory / ASKED):
                (directory / ASKED).touch()
        except NotWritten as error:
            self._problem(f"{error}; workers do not know that they are watched")

    def _summaries(self) -> dict[str, dict[str, Any]]:
        """What was written at the end of the job, or of single roles, by the file's name."""
        found = {}
        for path in sorted(self._directory.glob("summary*.json")):
            with self._reading():
                content = read_json(path)
                if not isinstance(content, dict):
                    raise UserError(f"{path}: is not a summary")
                found[path.name] = content
        return found

    def _read_config(self) -> None:
        if self._config is None and (self._directory / "config.toml").exists():
            with self._reading():
                self._config = read_run_config(self._directory)

    def _read_statuses(self) -> None:
        now_s = self._clock()
        paths = sorted((self._directory / DIRECTORY).glob("*.json"))[:_MOST_STATUSES]
        # Those of an earlier start are gone once the job starts again.
        there = {path.stem for path in paths}
        self._statuses = {role: status for role, status in self._statuses.items() if role in there}
        for path in paths:
            with self._reading():
                status = read_status(path)
                if status.role != path.stem:
                    raise UserError(f"{path}: role is {status.role!r:.100}")
                before = self._statuses.get(status.role)
                if before is None or _moment(before) != _moment(status):
                    self._changed_s[status.role] = now_s
                    self._news()
                self._statuses[status.role] = status
                self._rates.setdefault(status.role, WorkerRates()).add(status)
        self._pacing.add(self._statuses)

    def _read_logs(self) -> None:
        if self._plans.look(self._problem) + self._warnings.look(self._problem):
            self._news()
        for name, count in self._plans.bad_lines.items():
            self._problem(f"{self._directory / name}: {count} lines are not understood")

    def _find_bound(self) -> None:
        if self._config is None:
            return
        changed = bound.changed(self._directory)
        if changed != self._bound_of:
            self._bound_of = changed
            self._bound, self._bound_problem = bound.Bound(None, "a file is damaged"), None
            try:
                self._bound = bound.run_bound(self._directory, self._config)
            except (UserError, ValueError) as error:
                self._bound_problem = str(error)
        if self._bound_problem is not None:
            self._problem(self._bound_problem)

    def _straggler(self) -> str | None:
        now_s = self._clock()
        peers_ns: dict[str, int] = {}
        for role, status in self._statuses.items():
            rates = self._rates[role].latest(now_s - self._changed_s[role])
            if rates is not None and rates.peers_ns is not None:
                peers_ns[role] = rates.peers_ns
            elif status.transfers:  # of all the time in which somebody watched
                peers_ns[role] = status.peers_ns // status.transfers
        lateness, iteration_ns = self._pacing.lateness(), self._pacing.slowest_median_ns()
        one_clock = self._pacing.one_clock
        return straggler_of(lateness, iteration_ns, peers_ns, one_clock=one_clock)

    def _feed_all(self) -> str | None:
        """Notes what has happened, and returns the straggler."""
        unix_s = round(time.time(), 3) if self._looks > 1 else None
        self._feed.add(unix_s, "plan", self._plans.take_news())
        left = [role for role, status in self._statuses.items() if status.ended]
        self._feed.left(unix_s, left)
        return self._feed.straggler(unix_s, self._straggler())

    def _news(self) -> None:
        """Notes that something has changed. What is there at the first look is not new."""
        if self._looks > 1:
            self._news_s = self._clock()

    def _reading(self) -> _Noted:
        return _Noted(self._problem)

    def _problem(self, text: str) -> None:
        self._problems.append(one_line(text))


class _Noted:
    """A block whose ``UserError`` becomes a problem."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if isinstance(error, UserError):
            self._note(str(error))
            return True
        return False


def _moment(status: LiveStatus) -> tuple[int, int, int]:
    return status.pid, status.monotonic_ns, status.unix_ns
