"""control.jsonl in the run directory, one event per line as it happens; plan.json, the last plan.

    {"schema": 1, "event": "plan", "controller": "5f3c...", "monotonic_ns": 123, ...}

``controller`` tells one life of the controller from the next: all append to one file. The wall
clock is in "started". Events and their fields: docs/formats.md.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from byteprophet.control.messages import Plan
from byteprophet.errors import UserError
from byteprophet.profile.model import read_model
from byteprophet.whole_files import write_whole

NAME = "control.jsonl"
PLAN_NAME = "plan.json"
SCHEMA = 1
# What readers use of an event, besides the controller's life, which all have.
_USED: Mapping[str, Mapping[str, type]] = {
    "plan": {
        "number": int,
        "at_iteration": int,
        "workers": list,
        "predicted_iteration_ns": int,
        "reason": str,
    },
    "adopted": {"plan": int, "worker": str, "iteration": int},
    "outcome": {"plan": int, "measured_iteration_ns": int, "error": float},
    "refused": {"by": str, "reason": str, "count": int},
}
_KINDS = {int: "a whole number up to 2^63", str: "a text", list: "a list", float: "a number"}
_LARGEST = 1 << 63


class EventLog:
    """Appends; a line is one write, so lives that overlap do not mix within a line."""

    def __init__(self, run_directory: Path, identity: str) -> None:
        path = run_directory / NAME
        self._path = path
        self._identity = identity
        self._failed = False
        try:
            run_directory.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}") from None

    def record(self, event: str, **fields: Any) -> None:
        """One line. Where it cannot be written there is one warning, and the job goes on."""
        line = {
            "schema": SCHEMA,
            "event": event,
            "controller": self._identity,
            "monotonic_ns": time.monotonic_ns(),
            **fields,
        }
        try:
            os.write(self._fd, (json.dumps(line) + "\n").encode())
        except OSError as error:
            self._warn(error)

    def write_plan(self, plan: Plan) -> None:
        """plan.json; readers see all of it or nothing."""
        path = self._path.with_name(PLAN_NAME)
        try:
            write_whole(path, plan.model_dump_json(by_alias=True, indent=1) + "\n")
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            where = f"{self._path.parent}: {error.strerror}"
            print(f"byteprophet: warning: {where}; the log has gaps", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)


def read_plan(path: Path) -> Plan:
    """The plan in the plan.json at ``path``; UserError names file and field."""
    return read_model(path, Plan, "plan")


def read_events(path: Path) -> list[dict[str, Any]]:
    """All events of a run; UserError for a file that is none. A torn last line is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "is not text"
        raise UserError(f"{path}: {what}; was the run made with a controller?") from None
    events = []
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            raise UserError(f"{path}, line {number}: is no event")
        if event.get("schema") != SCHEMA:
            raise UserError(f"{path}, line {number}: schema {event.get('schema')!r}, not {SCHEMA}")
        for field, kind in {"controller": str, **_USED.get(event["event"], {})}.items():
            value = event.get(field)
            if not _is(kind, value):
                raise UserError(
                    f"{path}, line {number}: {field} must be {_KINDS[kind]}, got {value!r:.100}"
                )
        events.append(event)
    return events


def _is(kind: type, value: Any) -> bool:
    if kind is int:
        return type(value) is int and 0 <= value <= _LARGEST
    return type(value) is kind
