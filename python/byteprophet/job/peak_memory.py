"""Files with the most memory that a rank's iterations took, ``memory-RANK.json``."""

from __future__ import annotations

import json
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, read_json
from byteprophet.whole_files import write_whole

_SCHEMA = 1


def write_peak(directory: Path, rank: int, peak_bytes: int) -> None:
    """Write the file of ``rank``; readers see all of it or none."""
    text = json.dumps({"schema": _SCHEMA, "peak_bytes": peak_bytes})
    write_whole(_path(directory, rank), text + "\n")


def read_peak(directory: Path, ranks: int) -> int:
    """The highest peak of all ranks in bytes. Raises ``UserError``, also if one has no file."""
    return max(_read(_path(directory, rank)) for rank in range(ranks))


def _path(directory: Path, rank: int) -> Path:
    return directory / f"memory-{rank}.json"


def _read(path: Path) -> int:
    if not path.exists():
        raise UserError(
            f"{path}: is missing: memory is measured in the fourth to sixth iteration, and these "
            "must take a step each: let the script train longer"
        )
    data = read_json(path)
    peak_bytes = data.get("peak_bytes") if has_schema(data, _SCHEMA) else None
    if type(peak_bytes) is not int or peak_bytes <= 0:
        raise UserError(f"{path}: peak_bytes must be a positive integer, and schema {_SCHEMA}")
    return peak_bytes
