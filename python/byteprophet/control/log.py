"""Writes and reads a run's control.jsonl (an event per line) and plan.json (last plan in force).

    {"schema": 1, "event": "plan", "controller": "5f3c...", "monotonic_ns": 123, ...}

``controller`` identifies one life of the controller; all lives append to one file. The event
"started" has the wall clock time. docs/formats.md describes the events and their fields.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byteprophet.errors import UserError
from byteprophet.input_files import LARGEST_LOG_BYTES, has_schema, parse_json, read_bytes
from byteprophet.whole_files import AppendedFile, OneWarning, make_directory, write_whole

if TYPE_CHECKING:
    from byteprophet.control.messages import Plan

NAME = "control.jsonl"
PLAN_NAME = "plan.json"
SCHEMA = 1
# The fields that readers use, besides ``controller``, which all events have.
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
    """Appends events. Each line is one write, so lives that overlap do not mix within a line."""

    def __init__(self, run_directory: Path, identity: str) -> None:
        self._identity = identity
        self._or_else = OneWarning("the log has gaps")
        make_directory(run_directory)
        self._file = AppendedFile(run_directory / NAME)

    def record(self, event: str, **fields: Any) -> None:
        """Writes one line. If lines cannot be written, warns once, and the job goes on."""
        line = {
            "schema": SCHEMA,
            "event": event,
            "controller": self._identity,
            "monotonic_ns": time.monotonic_ns(),
            **fields,
        }
        with self._or_else.instead():
            self._file.append((json.dumps(line) + "\n").encode(), leave_room=True)

    def write_plan(self, plan: Plan) -> None:
        """Writes plan.json. Readers see all of it or nothing."""
        with self._or_else.instead():
            text = plan.model_dump_json(by_alias=True, indent=1) + "\n"
            write_whole(self._file.path.with_name(PLAN_NAME), text)

    def close(self) -> None:
        """Closes the file."""
        with self._or_else.instead():
            self._file.close()


def read_plan(path: Path) -> Plan:
    """The plan in the file ``path``. Raises ``UserError``, which names the file and the field."""
    # The import of these models takes a moment, and most runs have no plan.
    from byteprophet.control.messages import Plan
    from byteprophet.profile.model import read_model

    return read_model(path, Plan, "plan")


def read_events(path: Path) -> list[dict[str, Any]]:
    """All events in the log at ``path``. An incomplete last line is left out.

    Raises ``UserError`` if the file is not such a log.
    """
    try:
        content = read_bytes(path, LARGEST_LOG_BYTES)
    except UserError as error:
        raise UserError(f"{error}; was the run made with a controller?") from None
    events = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            event = parse_json(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: is not an event: {error}") from None
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            raise UserError(f"{path}, line {number}: is not an event")
        if not has_schema(event, SCHEMA):
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
