"""Changes links while a job runs, in steps, and records when.

One thread runs from the start of the roles to their end. It waits for each step in turn, sets the
rate of the workers' links, and notes the monotonic clock before and after. ``close`` ends the
thread and writes ``steps.json``. Steps that were not made before the job ended have no times.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, parse_json, read_bytes
from byteprophet.network import Cluster
from byteprophet.network.steps import Step, announced
from byteprophet.whole_files import OneWarning, write_whole

SCHEMA = 1
FILE = "steps.json"
_FIELDS = (*Step.__dataclass_fields__, "began_ns", "done_ns")
_POLL_S = 0.02
_CLOSE_S = 30.0


class Stepper:
    """Makes ``steps`` in their order on the links of ``hosts``, which are the workers' hosts."""

    def __init__(
        self, cluster: Cluster, hosts: Sequence[str], steps: Sequence[Step], run_directory: Path
    ) -> None:
        self._cluster = cluster
        self._hosts = tuple(hosts)
        self._steps = tuple(steps)
        self._run_directory = run_directory
        self._times_ns: list[tuple[int, int]] = []
        self._closing = threading.Event()
        self._started_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="steps", daemon=True)
        self.failed: str | None = None
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and writes the file."""
        self._closing.set()
        self._thread.join(_CLOSE_S)
        rows = []
        for number, step in enumerate(self._steps):
            made = number < len(self._times_ns)
            began_ns, done_ns = self._times_ns[number] if made else (None, None)
            rows.append({**asdict(step), "began_ns": began_ns, "done_ns": done_ns})
        text = json.dumps({"schema": SCHEMA, "steps": rows}, indent=1) + "\n"
        with OneWarning("when the links changed is not known").instead():
            write_whole(self._run_directory / FILE, text)

    def _run(self) -> None:
        for step in self._steps:
            while not self._is_due(step):
                if self._closing.wait(_POLL_S):
                    return
            began_ns = time.monotonic_ns()
            try:
                self._cluster.set_rate(self._hosts, step.rate_bps)
            except UserError as error:
                if not self._closing.is_set():  # else the end of the job ended tc, too
                    self.failed = f"step {step}: {error}"
                return
            self._times_ns.append((began_ns, time.monotonic_ns()))

    def _is_due(self, step: Step) -> bool:
        if step.at_update is not None:
            return announced(step.at_update, self._run_directory)
        return time.monotonic() >= self._started_s + (step.at_s or 0.0)


def read_steps(run_directory: Path) -> list[dict[str, Any]]:
    """The rows of a run's ``steps.json``; an empty list if the job had no steps.

    Raises ``UserError`` if the file is not valid.
    """
    path = run_directory / FILE
    if not path.exists():
        return []
    try:
        content = parse_json(read_bytes(path))
        if not has_schema(content, SCHEMA):
            raise UserError(f"{path}: schema must be {SCHEMA}, got {content['schema']!r}")
        return [{field: row[field] for field in _FIELDS} for row in content["steps"]]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: is not a file of steps") from None
