"""What a search looks for and finds, and the file in which it is kept, so that it can be resumed.

The file names by a digest what was searched for: the job, the cluster with all constants, the
content of the model's file, and the version of this package. A search of anything else begins anew.
A model that is a function of the user's may use any code, so its search always does.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, is_there, read_bytes, read_json
from byteprophet.simulate.clusters.description import Cluster
from byteprophet.whole_files import write_whole

FORMAT, SCHEMA = "byteprophet-search", 1
_EVERY_S = 5.0


@dataclass(frozen=True)
class Job:
    """What is searched for: a model, cluster and costs by name or file, GPUs, samples.

    ``fixed``: keys of a strategy in one line that all candidates have.
    """

    model: str
    cluster: str
    gpus: int
    batch: int
    sequence: int | None = None
    costs: str = ""
    fixed: str = ""


@dataclass(frozen=True)
class Found:
    """A candidate.

    Attributes:
        strategy: in one line.
        iteration_ns: the time of an iteration; 0 if it was not simulated.
        memory_bytes: of the fullest rank; at least so many if it was not simulated.
        mfu: model FLOPs utilisation.
        fits: whether it fits into memory.
        refused: why it cannot be simulated; then the figures are 0.
    """

    strategy: str
    iteration_ns: int = 0
    memory_bytes: int = 0
    mfu: float = 0.0
    fits: bool = False
    refused: str = ""


class Kept:
    """The file of a search."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._key = ""
        self._written_s = time.monotonic()

    def load(self, job: Job, cluster: Cluster) -> dict[str, Found]:
        """What an earlier search for the same found, by strategy; nothing if there was none."""
        self._key = _digest(job, cluster)
        try:
            data: Any = read_json(self._path)
            if data["format"] != FORMAT or not has_schema(data, SCHEMA) or data["key"] != self._key:
                return {}
            return {one.strategy: one for one in map(_found, data["found"])}
        except (UserError, KeyError, TypeError):
            return {}  # there is none, or it is damaged

    def keep(self, found: Mapping[str, Found]) -> None:
        """Write what was found, if that was long ago."""
        if time.monotonic() - self._written_s > _EVERY_S:
            self.write(found)

    def write(self, found: Mapping[str, Found]) -> None:
        """Write what was found."""
        rows = [asdict(one) for one in found.values()]
        data = {"format": FORMAT, "schema": SCHEMA, "key": self._key, "found": rows}
        write_whole(self._path, json.dumps(data) + "\n")
        self._written_s = time.monotonic()


def _digest(job: Job, cluster: Cluster) -> str:
    try:
        ours = version("byteprophet")
    except PackageNotFoundError:
        ours = ""
    parts = [repr(job), repr(cluster), ours]
    if cluster.shapes is not None:
        parts.append(hashlib.sha256(cluster.shapes.ratios.tobytes()).hexdigest())
    if is_there(job.model) and not Path(job.model).is_dir():  # results may be in one of that name
        parts.append(hashlib.sha256(read_bytes(job.model)).hexdigest())
    elif "=" not in job.model and ":" in job.model:
        parts.append(str(time.time_ns()))  # a function
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _found(row: Any) -> Found:
    found = Found(**row)
    kinds = (("strategy", str), ("iteration_ns", int), ("memory_bytes", int), ("fits", bool))
    if any(type(getattr(found, name)) is not kind for name, kind in kinds):
        raise TypeError("not a candidate")
    if not isinstance(found.mfu, (int, float)) or not isinstance(found.refused, str):
        raise TypeError("not a candidate")
    return found
