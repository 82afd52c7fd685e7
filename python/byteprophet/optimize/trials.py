"""The best candidates of a search, tried in the real job: the job decides between them.

A replay knows the recorded runtime and policy best. Of another one it may be wrong by more than the
candidates differ, so the best candidate of each is run once, beside the recorded job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byteprophet.job import Job
from byteprophet.job.strategy_file import Used, write_strategy
from byteprophet.optimize.apply import BASELINE, apply
from byteprophet.optimize.recorded import used_by
from byteprophet.optimize.search import Candidate
from byteprophet.whole_files import make_directory


@dataclass(frozen=True)
class Trial:
    """A candidate that ran. ``ratio``: its measured iteration over the recorded job's."""

    candidate: Candidate
    ratio: float

    def as_json(self, recorded_ns: int) -> dict[str, Any]:
        """As ``byteprophet optimize --json`` saves it. ``recorded_ns``: of the recorded job."""
        return {
            "what": self.candidate.job.title,
            "replayed_gain": recorded_ns / self.candidate.iteration_ns,
            "measured_gain": 1 / self.ratio,
        }


def try_candidates(
    config: Mapping[str, Any],
    recorded: Job,
    candidates: Sequence[Candidate],
    directory: Path,
    progress: Callable[[str], None],
) -> list[Trial]:
    """Run the recorded job and each of ``candidates`` once; the fastest comes first.

    ``config``: a run's ``config.toml``; ``recorded``: its job. ``directory``: where strategies and
    runs are kept.
    """
    make_directory(directory)
    strategies: dict[str, tuple[Used, Path]] = {}
    for number, candidate in enumerate(candidates, 1):
        used = used_by(candidate.job, recorded)
        path = directory / f"trial-{number}.json"
        write_strategy(path, used)
        strategies[f"trial {number}"] = used, path
    applied = apply(config, strategies, directory / "runs", 1, progress)
    was_ns = applied.median_ns(BASELINE)
    trials = [
        Trial(candidate, applied.median_ns(variant) / was_ns)
        for candidate, variant in zip(candidates, strategies, strict=True)
    ]
    return sorted(trials, key=lambda trial: trial.ratio)
