"""What has happened, in the order in which it was seen: plans, stragglers, workers that left.

What a run directory already has at the first look has no time, because nobody saw it happen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from byteprophet.errors import one_line

_MOST = 100
_LOOKS = 8  # in a row


@dataclass(frozen=True)
class Happened:
    """``unix_s``: when it was seen; None if that was before the first look."""

    unix_s: float | None
    kind: str
    text: str


class Feed:
    """The latest of what has happened."""

    def __init__(self) -> None:
        self.latest: deque[Happened] = deque(maxlen=_MOST)
        self._straggler: str | None = None
        self._seems: deque[str | None] = deque([None], maxlen=_LOOKS)
        self._left: set[str] = set()

    def add(self, unix_s: float | None, kind: str, texts: Iterable[str]) -> None:
        """Adds what has happened since the last call."""
        for text in texts:
            self.latest.append(Happened(unix_s, kind, one_line(text)))

    def straggler(self, unix_s: float | None, role: str | None) -> str | None:
        """Notes who seems to be the straggler, and returns who is.

        It is a role that has seemed so at several looks in a row, or at the first look.
        """
        self._seems.append(role)
        settled = unix_s is None or set(self._seems) == {role}
        if role != self._straggler and settled:
            lost = f"{self._straggler} is no straggler any more"
            self.add(unix_s, "straggler", [lost if role is None else f"{role} is a straggler"])
            self._straggler = role
        return self._straggler

    def left(self, unix_s: float | None, roles: Iterable[str]) -> None:
        """Notes which workers have left the job."""
        now = set(roles)
        self.add(unix_s, "worker", [f"{role} has left" for role in sorted(now - self._left)])
        self._left = now
