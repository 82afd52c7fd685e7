"""The files of a search, from which the same command goes on where it was stopped.

    search.json      what was searched (a digest), and the candidates: names, predictions
    candidates/      their strategies, one file each
    rounds/          what trials measured (optimize/rounds.py)
    strategy.json    the best so far, and in the end the result

Candidates are kept once the search on the engine has ended, and are not searched again: how far
that comes depends on the time it had. Everything behind it follows from what trials measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, read_json
from byteprophet.job import Job
from byteprophet.job.strategy import BYTEPS, MIXED
from byteprophet.job.strategy_file import Used, read_strategy_file, strategy_path, write_strategy
from byteprophet.optimize.compressing_costs import with_compressing_costs
from byteprophet.replay.all_reduce import with_strategy
from byteprophet.strategy.search.bases import Bases
from byteprophet.strategy.search.candidates import (
    BUILDER,
    RECORDED,
    ROUTING,
    Candidate,
    features_of,
)
from byteprophet.whole_files import make_directory, write_whole

SCHEMA = 3
FILE = "search.json"


class Kept:
    """The files in ``directory`` of the search ``of``, a digest of what it starts from."""

    def __init__(self, directory: Path, of: str, bases: Bases) -> None:
        self._directory, self._of, self._bases = directory, of, bases
        make_directory(directory / "candidates")
        make_directory(self.rounds)

    @property
    def rounds(self) -> Path:
        """The directory of rounds."""
        return self._directory / "rounds"

    @property
    def runs(self) -> Path:
        """The directory of runs."""
        return self._directory / "runs"

    @property
    def result(self) -> Path:
        """The file of the result."""
        return strategy_path(self._directory)

    def file_of(self, candidate: Candidate) -> Path:
        """The file of a candidate's strategy."""
        name = re.sub(r"[^A-Za-z0-9_.=-]+", "-", candidate.name)
        return self._directory / "candidates" / f"{name}.json"

    def save(self, candidate: Candidate) -> Path:
        """Write the file of a candidate's strategy, and return its path."""
        path = self.file_of(candidate)
        write_strategy(path, self._bases.used(candidate.job))
        return path

    def keep_best(self, candidate: Candidate) -> None:
        """Save the best so far."""
        write_strategy(self.result, self._bases.used(candidate.job))

    def keep(self, candidates: Sequence[Candidate], replays: int, search_s: float) -> None:
        """Save the candidates, and what finding them took."""
        for each in candidates:
            self.save(each)
        rows = [
            {
                "name": each.name,
                "digest": each.digest,
                "engine_ns": each.engine_ns,
                "by": each.by,
                "is_by_hand": each.is_by_hand,
            }
            for each in candidates
        ]
        took = {"replays": replays, "search_s": search_s}
        data = {"schema": SCHEMA, "of": self._of, **took, "candidates": rows}
        write_whole(self._directory / FILE, json.dumps(data, indent=1) + "\n")

    def left(self) -> tuple[list[Candidate], int, float] | None:
        """What an earlier search left: its candidates, how many replays these took, and seconds.

        None if that was another search, or cannot be read.
        """
        path = self._directory / FILE
        if not path.exists():
            return None
        try:
            data: Any = read_json(path)
            if not has_schema(data, SCHEMA) or data["of"] != self._of:
                return None
            candidates = [self._candidate(row) for row in data["candidates"]]
            return candidates, int(data["replays"]), float(data["search_s"])
        except (UserError, ValueError, KeyError, TypeError):
            return None

    def _candidate(self, row: dict[str, Any]) -> Candidate:
        name, digest, by = (str(row[each]) for each in ("name", "digest", "by"))
        if by not in (BUILDER, ROUTING, RECORDED):
            raise ValueError("not a candidate")
        known = Candidate(name, self._bases.mesh, digest, int(row["engine_ns"]), (), by)
        used = read_strategy_file(self.file_of(known))
        if used.digest != digest:
            raise ValueError("another strategy")
        job = job_under(self._bases, used)
        return replace(
            known, job=job, features=features_of(job), is_by_hand=row["is_by_hand"] is True
        )


def job_under(bases: Bases, used: Used) -> Job:
    """The variant of the bases under the strategy ``used``, which was made for them.

    Raises ``UserError`` if the bases have no such variant.
    """
    strategy = used.strategy
    if strategy.runtime not in (BYTEPS, MIXED):
        return with_compressing_costs(with_strategy(bases.mesh, strategy))
    base = bases.served if strategy.runtime == BYTEPS else bases.routed
    if base is None:
        raise UserError("there are no servers")
    if strategy.runtime == MIXED:
        return replace(base, strategy=strategy, policy=used.policy)
    if used.policy is None:
        raise UserError("a job with servers has a policy")
    own = replace(base.strategy, partition_bytes=strategy.partition_bytes, keys=strategy.keys)
    policy = replace(used.policy, ready_times=base.push_policy.ready_times)
    return replace(base, strategy=own, policy=policy)
