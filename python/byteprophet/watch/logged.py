"""Warnings and errors in the roles' logs: lines that byteprophet itself has written."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from byteprophet.errors import one_line
from byteprophet.watch.tail import Tail, new_lines

_MOST_BYTES = 1 << 22
_MOST_KEPT = 100
_MOST_ROLES = 4096
_LINE = re.compile(rb"byteprophet: (warning|error): (.*)")


@dataclass(frozen=True)
class Warned:
    """One line of ``role``. ``level``: ``warning`` or ``error``."""

    role: str
    level: str
    text: str


class Warnings:
    """The logs of a run. ``counts``: by role and level. ``latest``: the last lines."""

    def __init__(self, run_directory: Path) -> None:
        self._logs = run_directory / "logs"
        self._tails: dict[str, Tail] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self.latest: deque[Warned] = deque(maxlen=_MOST_KEPT)

    @property
    def roles(self) -> list[str]:
        """The roles that have a log."""
        return sorted(self._tails)

    def look(self, problem: Callable[[str], None]) -> int:
        """Takes in what was appended since the last call, and returns the number of lines.

        ``problem`` is told of files that cannot be read.
        """
        for path in sorted(self._logs.glob("*.log"))[:_MOST_ROLES]:
            self._tails.setdefault(path.stem, Tail(path, _MOST_BYTES))
        found = 0
        for role, tail in self._tails.items():
            lines = new_lines(tail, problem)
            found += len(lines)
            for line in lines:
                match = _LINE.search(line)
                if match is not None:
                    level, text = (part.decode("utf-8", "replace") for part in match.groups())
                    self.counts[role, level] += 1
                    self.latest.append(Warned(role, level, one_line(text)))
        return found
