"""Counts refusals, and limits their lines in the log to one per reason and period."""

from __future__ import annotations

from collections import Counter

from byteprophet.control.issue import Record

_PERIOD_NS = 5_000_000_000
_LONGEST_DETAIL = 300


class Refusals:
    """Sends "refused" events to ``record``: the first of a reason at once, later ones together."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._counts: Counter[str] = Counter()
        self._told: dict[str, tuple[int, int]] = {}  # by reason: count and time
        self._details: dict[str, str] = {}

    def note(self, reason: str, detail: str, now_ns: int) -> None:
        """Counts a refusal. ``reason`` is one of a few texts; ``detail`` may be any text."""
        self._counts[reason] += 1
        self._details[reason] = detail[:_LONGEST_DETAIL]
        self.tick(now_ns)

    def tick(self, now_ns: int, final: bool = False) -> None:
        """Logs the counts that are due. ``final``: logs all counts that were not logged yet."""
        for reason, count in self._counts.items():
            told, told_ns = self._told.get(reason, (0, 0))
            if count > told and (told == 0 or final or now_ns - told_ns >= _PERIOD_NS):
                self._told[reason] = (count, now_ns)
                detail = self._details[reason]
                self._record("refused", by="controller", reason=reason, count=count, detail=detail)
