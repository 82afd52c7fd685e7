"""When the device of a paced worker was busy: ``events/compute-<rank>.json`` of a recorded run.

    {"schema": 1, "rank": 0, "busy": [[begin_ns, end_ns], ...]}

Times of the monotonic clock, in order, without overlap: layers, forward and backward, as long as
they are stated to take. Between them the device waits, for parameters mostly.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.whole_files import write_whole

SCHEMA = 1

Interval = tuple[int, int]
"""Begin and end, in nanoseconds."""


def busy_path(run_directory: Path, rank: int) -> Path:
    """Where rank ``rank`` saves its intervals."""
    return run_directory / "events" / f"compute-{rank}.json"


def write_busy(run_directory: Path, rank: int, busy: Sequence[Interval]) -> None:
    """Write the file; readers see all of it or nothing."""
    path = busy_path(run_directory, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"schema": SCHEMA, "rank": rank, "busy": busy}
    write_whole(path, json.dumps(content) + "\n")


def read_busy(run_directory: Path, rank: int) -> list[Interval]:
    """The intervals of rank ``rank``; UserError if the run has none, or they are no intervals."""
    path = busy_path(run_directory, rank)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise UserError(f"{path}: schema must be {SCHEMA}, got {content['schema']!r}")
        busy = [(int(begin_ns), int(end_ns)) for begin_ns, end_ns in content["busy"]]
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}: record a paced run") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: is not a file of busy intervals") from None
    edges_ns = [edge_ns for interval in busy for edge_ns in interval]
    if edges_ns != sorted(edges_ns):
        raise UserError(f"{path}: busy: intervals must be in order and not overlap")
    return busy
