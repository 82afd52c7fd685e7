"""The base class for readers of Chrome's JSON traces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.timeline.events import Events
from byteprophet.timeline.foreign_files import read_chunks
from byteprophet.timeline.json_traces import EVENTS, json_parts


class ChromeReader(ABC):
    """Takes the parts of a trace (``json_parts``) one by one and then returns its spans."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0
        self._about: Mapping[str, Any] | None = None

    def take(self, key: str, value: Any) -> None:
        """Takes the next part. Raises ``UserError`` if it is not part of a trace."""
        if key == EVENTS:
            if not isinstance(value, dict):
                raise UserError(f"{self.path}: event {self._number}: must be an object")
            self._event(self._number, value)
            self._number += 1
        elif key == "":
            if self._about is not None:
                raise UserError(f"{self.path}: is not a trace: it has more than one JSON value")
            self._about = value

    def read(self, rank: int) -> Events:
        """Reads the whole file and returns its spans."""
        for key, value in json_parts(self.path, read_chunks(self.path)):
            self.take(key, value)
        return self.events(rank)

    def about(self) -> Mapping[str, Any]:
        """The trace's data beside its events. Raises ``UserError`` if it has no list of events."""
        about = self._about or {}
        if not isinstance(about.get(EVENTS), list):
            raise UserError(f"{self.path}: is not a trace: it has no list {EVENTS}")
        return about

    @abstractmethod
    def events(self, rank: int) -> Events:
        """All spans. ``rank`` is used if the trace does not state its own."""

    @abstractmethod
    def _event(self, number: int, event: Mapping[str, Any]) -> None: ...
